"""The predictions table: what one system answered, readable by people (names, paths) and by metrics (ids, scores)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core.errors import InputError, shorten
from kgqa_core.evaluation.metrics import Outcome
from kgqa_core.schemas import PREDICTIONS
from kgqa_core.types import Prediction, Question, ReasoningPath

ROWS_AT_ONCE = 4096  # rows held as Python objects while writing and reading
GRAPH_KEY, SYSTEM_KEY = b"kgqa.graph", b"kgqa.system"  # of the Parquet schema's metadata


@dataclass(frozen=True, slots=True)
class Source:
    """Where the predictions of a file come from; kept in the file, so that it can be compared wherever it is."""

    graph: str  # content hash of the graph, whose ids the file is full of
    system: str  # as reports call it


@dataclass(frozen=True, slots=True)
class PredictionBatch:
    """Some rows of a predictions table, in order."""

    outcomes: list[Outcome]  # for the metrics by entity id
    texts: list[str]  # of the questions
    predictions: list[list[str]]  # names of the answer sets
    ground_truths: list[list[str]]  # names of the golds


def write_predictions(
    path: Path,
    questions: Sequence[Question],
    predictions: Iterable[Prediction],
    *,
    entity_names: Sequence[str],
    render_path: Callable[[ReasoningPath], str],
    source: Source | None = None,
) -> None:
    """Write one row per question to ``path`` (``schemas.PREDICTIONS``), in the order of the questions.

    A question without a prediction gets an empty row. ``entity_names`` is indexed by entity id; ``render_path`` makes
    an evidence path readable. Without a ``source`` the file can be scored but not compared. It appears under its name
    only when it is complete.
    """
    known = None if source is None else {GRAPH_KEY: source.graph.encode(), SYSTEM_KEY: source.system.encode()}
    schema = PREDICTIONS.with_metadata(known)
    by_id = {prediction.question_id: prediction for prediction in predictions}
    unfinished = path.with_name(f"{path.name}.part")
    try:
        with pq.ParquetWriter(unfinished, schema, compression="zstd") as writer:
            for start in range(0, len(questions), ROWS_AT_ONCE):
                rows = [
                    make_row(
                        question,
                        by_id.get(question.id, Prediction(question.id, (), (), ())),
                        entity_names=entity_names,
                        render_path=render_path,
                    )
                    for question in questions[start : start + ROWS_AT_ONCE]
                ]
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def make_row(
    question: Question,
    prediction: Prediction,
    *,
    entity_names: Sequence[str],
    render_path: Callable[[ReasoningPath], str],
) -> dict[str, Any]:
    """Return the table row of one question; an empty evidence path becomes empty text."""
    rank = {entity: place for place, entity in enumerate(prediction.candidates)}
    answers = sorted(prediction.answers, key=lambda entity: (rank.get(entity, len(rank)), entity))
    return {
        "question_id": question.id,
        "question": question.text,
        "split": question.split,
        "hops": question.hops,
        "prediction": [entity_names[entity] for entity in answers],
        "ground_truth": [entity_names[entity] for entity in question.answers],
        "answer_ids": answers,
        "gold_ids": question.answers,
        "candidate_ids": prediction.candidates,
        "candidate_scores": prediction.scores,
        "paths": [render_path(steps) if steps else "" for steps in prediction.paths],
        "covered": prediction.covered,
        "verdict": prediction.verdict,
        "gold_verdict": question.verdict,
        "claim": question.claim,
    }


def read_source(path: Path) -> Source | None:
    """Return where the predictions in ``path`` come from; None where the file does not say.

    Raises ``InputError`` when it is no readable Parquet file.
    """
    try:
        known = pq.read_schema(path).metadata or {}
        return Source(known[GRAPH_KEY].decode(), known[SYSTEM_KEY].decode())
    except (KeyError, UnicodeDecodeError):
        return None
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{shorten(str(path))} is not readable as predictions: {shorten(str(error))}") from error


def read_predictions(path: Path) -> Iterator[PredictionBatch]:
    """Yield a predictions table in batches. Raises ``InputError`` when it is damaged or lacks a column."""
    try:
        with pq.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow)
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=PREDICTIONS.names):
                yield _unpack(pa.Table.from_batches([batch]).cast(PREDICTIONS))
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{shorten(str(path))} is not readable as predictions: {shorten(str(error))}") from error


def _check_columns(path: Path, found: pa.Schema) -> None:
    missing = [name for name in PREDICTIONS.names if name not in found.names]
    if missing:
        raise InputError(
            f"{shorten(str(path))} lacks the columns {shorten(missing)} of a predictions table; "
            f"it has {shorten(found.names)}"
        )


def _unpack(table: pa.Table) -> PredictionBatch:
    """Turn columns into records; lists go through numpy, since item by item is several times slower."""
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    shown = pc.binary_length(columns["paths"].values).to_numpy(zero_copy_only=False) > 0  # and not the texts themselves
    evident = _cut(shown.tolist(), columns["paths"])
    rows = zip(
        columns["question_id"].to_pylist(),
        columns["hops"].to_pylist(),
        map(frozenset, _lists(columns["gold_ids"])),
        _lists(columns["candidate_ids"]),
        _lists(columns["candidate_scores"]),
        map(frozenset, _lists(columns["answer_ids"])),
        columns["covered"].to_pylist(),
        evident,
        columns["claim"].to_pylist(),
        columns["verdict"].to_pylist(),
        columns["gold_verdict"].to_pylist(),
        strict=True,
    )
    return PredictionBatch(
        outcomes=[Outcome(*row) for row in rows],
        texts=columns["question"].to_pylist(),
        predictions=_lists(columns["prediction"]),
        ground_truths=_lists(columns["ground_truth"]),
    )


def _lists(column: pa.ListArray) -> list[list[Any]]:
    values = column.values.to_pylist() if pa.types.is_string(column.type.value_type) else column.values.to_numpy()
    return _cut(values if isinstance(values, list) else values.tolist(), column)


def _cut(items: list[Any], column: pa.ListArray) -> list[list[Any]]:
    """Return what belongs to each list of ``column``, of something for each of their items."""
    return [items[start:end] for start, end in pairwise(column.offsets.to_pylist())]
