"""Which entities the questions are about, before there is a graph."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.questions.build import read_topics
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.tracking import Recorder
from tasks.questions import question_section
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage

TOPICS_FILE = "topics.parquet"


@pipeline_task("read topics", io=True)
def read_question_topics(pipeline: Pipeline) -> StageOutcome:
    """Write the distinct topics of all question files: the graph depends on these, not on texts and answers."""

    def write(folder: Path, recorder: Recorder) -> None:
        topics = read_topics(question_section(pipeline))
        pq.write_table(pa.table([topics], schema=schemas.TOPICS), folder / TOPICS_FILE, compression="zstd")
        recorder.metric("num_topics", len(topics))

    return run_stage(pipeline, "topics", write)


def topics_of(pipeline: Pipeline) -> list[str]:
    """Return the topics that were read."""
    labels: list[str] = pq.read_table(pipeline.artifact("topics").folder / TOPICS_FILE)["label"].to_pylist()
    return labels
