"""Training of one explorer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kgqa_core.artifacts import JOURNAL
from kgqa_core.questions.build import read_questions
from kgqa_core.run.open import device_of, ground_of, make_encoder, read_encodings
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage

if TYPE_CHECKING:
    from kgqa_core.explorer.fit import QuestionSet


@pipeline_task("train explorer")
def train_one_explorer(pipeline: Pipeline, seed: int) -> StageOutcome:
    """Train, choose the thresholds on dev, save; a training that was killed goes on where it was."""
    key = f"explorer-seed{seed}"

    def write(folder: Path, recorder: Recorder) -> None:
        from kgqa_core.explorer.fit import FitRun, FitSettings, fit_explorer

        section = pipeline.config.exploration
        others = [question_set(pipeline.lender(conf)) for conf in section.also_train_on]
        fit_explorer(
            [question_set(pipeline), *others],
            FitSettings(section, seed, make_encoder(pipeline.config).name, _start(pipeline, key)),
            FitRun(
                folder,
                recorder,
                threads=pipeline.config.runtime.threads,
                device=device_of(pipeline.config),
                journal=folder / JOURNAL,
                progress=lambda done, total: pipeline.progress(f"training explorer (seed {seed})", done, total),
            ),
        )

    return run_stage(pipeline, key, write, seed=seed)


def question_set(pipeline: Pipeline) -> QuestionSet:
    """Return what a run's dataset teaches."""
    from kgqa_core.explorer.fit import QuestionSet

    questions, ground = pipeline.artifact("questions").folder, ground_of(pipeline)
    return QuestionSet(
        ground.graph,
        train=ground.place(read_questions(questions, "train")),
        dev=ground.place(read_questions(questions, "dev")),
        encodings=read_encodings(pipeline.artifact("encodings").folder),
        reenter_topic=pipeline.config.dataset.reenter_topic,
    )


def _start(pipeline: Pipeline, key: str) -> Path | None:
    """Return the folder of the explorer to start from, where there is one."""
    borrowed = pipeline.specs[key].borrows.get("init")
    return (
        pipeline.lender(borrowed.conf).artifact(borrowed.key).folder
        if borrowed
        else pipeline.config.exploration.init_from
    )
