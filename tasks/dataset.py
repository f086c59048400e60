"""The embedded dataset, made by the project's own generator."""

from __future__ import annotations

from pathlib import Path

from kgqa_core.config import EmbeddedDataset
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage


@pipeline_task("make embedded dataset")
def make_dataset(pipeline: Pipeline) -> StageOutcome:
    """Write triples, names and questions."""
    from kgqa_core.embedded import generate

    dataset = pipeline.config.dataset
    assert isinstance(dataset, EmbeddedDataset)

    def write(folder: Path, recorder: Recorder) -> None:
        generate(folder, seed=dataset.seed)

    return run_stage(pipeline, "dataset", write)
