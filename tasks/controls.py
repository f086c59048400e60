"""The controls beside every learned system: template control and ceiling, predicted once per run."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.artifacts import write_json
from kgqa_core.questions.build import read_questions
from kgqa_core.questions.coverage import fill_hops
from kgqa_core.run.open import graph_of, ground_of
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage


@pipeline_task("fit controls")
def fit_controls(pipeline: Pipeline) -> StageOutcome:
    """Fit the template control on training questions and score both controls on the evaluation split."""

    def write(folder: Path, recorder: Recorder) -> None:
        from kgqa_core.systems.controls import fit_template_control, score_controls

        ground, config = ground_of(pipeline), pipeline.config
        questions = pipeline.artifact("questions").folder
        control = fit_template_control(
            ground.graph,
            ground.place(read_questions(questions, "train")),
            max_hops=config.exploration.steps,
            reenter_topic=config.dataset.reenter_topic,
            progress=lambda done, total: pipeline.progress("fitting the template control", done, total),
        )
        control.save(folder / "template_control.json")
        asked = read_questions(questions, config.evaluation.split)
        asked = fill_hops(
            asked, graph_of(pipeline), reenter_topic=config.dataset.reenter_topic, subgraphs=ground.subgraphs
        )
        rows = score_controls(control, ground.place(asked), max_hops=config.exploration.steps)
        write_json(folder / "scores.json", rows)
        for row in rows:
            for name in ("hits1", "f1"):
                recorder.metric(f"{row['role'].replace(' ', '_')}.{name}", row["overall"][name])

    return run_stage(pipeline, "controls", write)
