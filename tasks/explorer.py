"""Training of one explorer."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.pipeline import Pipeline
from kgqa_core.questions.loaders import read_questions
from kgqa_core.tracking import Recorder
from kgqa_core.workspace import ground_of, make_encoder, read_encodings
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage


@pipeline_task("train explorer")
def train_one_explorer(pipeline: Pipeline, seed: int) -> StageOutcome:
    """Train, choose the answer threshold on dev, save."""

    def write(folder: Path, recorder: Recorder) -> None:
        from kgqa_core.explorer.fit import FitSettings, fit_explorer

        explorer, runtime = pipeline.config.explorer, pipeline.config.runtime
        questions, ground = pipeline.artifact("questions").folder, ground_of(pipeline)
        fit_explorer(
            ground.graph,
            train=ground.place(read_questions(questions, "train")),
            dev=ground.place(read_questions(questions, "dev")),
            encodings=read_encodings(pipeline.artifact("encodings").folder),
            settings=FitSettings(
                **explorer.model_dump(exclude={"seeds"}),
                seed=seed,
                reenter_topic=pipeline.config.dataset.reenter_topic,
                threads=runtime.threads,
                encoder=make_encoder(pipeline.config).name,
            ),
            folder=folder,
            recorder=recorder,
            progress=lambda done, total: pipeline.progress(f"training explorer (seed {seed})", done, total),
        )

    return run_stage(pipeline, f"explorer-seed{seed}", write, seed=seed)
