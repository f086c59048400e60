"""The demo's dataset, which the package carries."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage


@pipeline_task("copy the demo dataset")
def make_dataset(pipeline: Pipeline) -> StageOutcome:
    """Write triples, names and questions."""
    from kgqa_core.demo import copy_demo

    def write(folder: Path, recorder: Recorder) -> None:
        copy_demo(folder)

    return run_stage(pipeline, "dataset", write)
