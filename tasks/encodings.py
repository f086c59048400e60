"""Encodings of the distinct masked texts and relation labels."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.questions.build import read_questions
from kgqa_core.run.open import ENCODINGS_FILE, encode_all, graph_of
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.schemas import ENCODINGS
from kgqa_core.text.cache import hash_text
from kgqa_core.tracking import Recorder
from tasks.runtime import pipeline_task
from tasks.stage import StageOutcome, run_stage


@pipeline_task("encode texts")
def encode_questions_and_relations(pipeline: Pipeline) -> StageOutcome:
    """Encode what the cache does not hold yet, and keep what this run needs."""

    def write(folder: Path, recorder: Recorder) -> None:
        questions = read_questions(pipeline.artifact("questions").folder)
        graph, masked = graph_of(pipeline), pipeline.config.exploration.mask_topics
        given = {label for label in graph.inverse_labels if label is not None}
        texts = sorted({question.asked(masked) for question in questions} | {*graph.relation_labels} | given)
        vectors = encode_all(pipeline, texts)
        rows = {"key": [hash_text(text) for text in texts], "text": texts, "vector": list(vectors)}
        pq.write_table(pa.table(rows, schema=ENCODINGS), folder / ENCODINGS_FILE, compression="zstd")
        recorder.metric("num_texts", len(texts))
        recorder.metric("encoding_dim", vectors.shape[1])

    return run_stage(pipeline, "encodings", write)
