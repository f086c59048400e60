"""The predictions table: what one system answered, readable by people (names, paths) and by metrics (ids, scores).

The file says itself on which graph it was made and who answered: which system, with which language model or player,
prompts, topics and settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core.errors import InputError, nearest, shorten
from kgqa_core.evaluation.metrics import (
    METRICS,
    Outcome,
    interval_figures,
    normalise_name,
    score_outcomes,
    score_rog_question,
    score_sets,
    summarise_rog,
)
from kgqa_core.schemas import PREDICTIONS
from kgqa_core.types import Prediction, Question, ReasoningPath

ROWS_AT_ONCE = 4096  # rows held as Python objects while writing and reading
GRAPH_KEY, SYSTEM_KEY, ABOUT_KEY = b"kgqa.graph", b"kgqa.system", b"kgqa.about"  # of the Parquet schema's metadata
CHANCE = ("random", "first")  # answerers that know nothing: what does not beat them is not the model's merit


@dataclass(frozen=True, slots=True)
class Source:
    """Where the predictions of a file come from; kept in the file, so that it can be compared wherever it is."""

    graph: str  # content hash of the graph, whose ids the file is full of
    system: str  # as reports call it


@dataclass(frozen=True, slots=True)
class SystemSource:
    """Who answered in a file of a system; kept in the file as well."""

    graph: str  # content hash of the graph, whose ids the file is full of
    system: str  # as the configuration calls it: "rog"
    seed: int | None = None
    answered_by: str = ""  # lm, oracle, random, first; empty: the system asks no language model
    model: str = ""  # identity of that model, by content
    prompts: str = ""  # content hash of the prompts
    topics: str = "gold"  # where topic entities come from: gold, linked, none (the system uses none)
    pool: str = "none"  # hard: the right plan and wrong ones in place of what the system retrieves
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the system, JSON: {"num_candidates": 3}

    @property
    def row(self) -> str:
        """Return the name of its row in tables, which the runs of several seeds share: ``rog (oracle, hard pool)``."""
        return _named(self.system, self._notes())

    @property
    def name(self) -> str:
        """Return the name of the one run: ``rog (oracle, seed 1)``."""
        return _named(self.system, [*self._notes(), *([] if self.seed is None else [f"seed {self.seed}"])])

    def _notes(self) -> list[str]:
        """Return in words what is unusual about it."""
        player = [self.answered_by] if self.answered_by not in ("", "lm") else []
        pool = [f"{self.pool} pool"] if self.pool != "none" else []
        return [*player, *(["linked topics"] if self.topics == "linked" else []), *pool]

    def metadata(self) -> dict[bytes, bytes]:
        """Return what the Parquet schema carries; ``read_source`` finds graph and name there, too."""
        about = json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)
        return {GRAPH_KEY: self.graph.encode(), SYSTEM_KEY: self.name.encode(), ABOUT_KEY: about.encode()}


def _named(system: str, notes: Sequence[str]) -> str:
    shown = "explorer alone" if system == "explorer" else system
    return f"{shown} ({', '.join(notes)})" if notes else shown


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


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise ``InputError`` with the name of the file where reading it as Parquet fails."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{shorten(str(path))} is not readable as predictions: {shorten(str(error))}") from error


def read_source(path: Path) -> Source | None:
    """Return where the predictions in ``path`` come from; None where the file does not say.

    Raises ``InputError`` when it is no readable Parquet file.
    """
    with readable(path):
        known = pq.read_schema(path).metadata or {}
    try:
        return Source(known[GRAPH_KEY].decode(), known[SYSTEM_KEY].decode())
    except (KeyError, UnicodeDecodeError):
        return None


def read_system_source(path: Path) -> SystemSource | None:
    """Return who answered the questions of ``path``; None where the file is no system's.

    Raises ``InputError`` when it is no readable Parquet file, or what it says of its source is damaged.
    """
    with readable(path):
        written = (pq.read_schema(path).metadata or {}).get(ABOUT_KEY)
    if written is None:
        return None
    try:
        known = json.loads(written)
        return SystemSource(**{one.name: known[one.name] for one in fields(SystemSource)})
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{shorten(str(path))} does not say rightly which system it is of ({shorten(str(error))}); "
            "evaluate that system again"
        ) from error


def read_predictions(path: Path) -> Iterator[PredictionBatch]:
    """Yield a predictions table in batches. Raises ``InputError`` when it is damaged or lacks a column."""
    with readable(path), pq.ParquetFile(path) as file:
        found = file.schema_arrow.names
        if missing := [name for name in PREDICTIONS.names if name not in found]:
            raise InputError(
                f"{shorten(str(path))} lacks the columns {shorten(missing)} of a predictions table; "
                f"it has {shorten(found)}"
            )
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=PREDICTIONS.names):
            yield _unpack(pa.Table.from_batches([batch]).cast(PREDICTIONS))


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


def render_path(path: ReasoningPath, *, entity_names: Sequence[str], relation_labels: Sequence[str]) -> str:
    """Return a path as readable triples, in walking order."""
    triples = (f"({entity_names[s.head]}, {relation_labels[s.relation]}, {entity_names[s.tail]})" for s in path)
    return " → ".join(triples)


# ------ The figures of any predictions file, for ``kgqa score``.


PARQUET_START = b"PAR1"
JSONL_SUFFIXES = (".jsonl", ".json", ".ndjson")
NAME_METRICS = ("hits1", "f1", "precision", "recall", "em")
"""Strict metrics that names alone can give: there are neither scores nor candidates beside the answers."""


def score_file(path: Path) -> dict[str, Any]:
    """Return ``{"n", "rog": {...}, "strict": {...}}`` of a predictions file, every figure but ``n`` in percent.

    Beside the strict figures that have a 95 % interval stand its bounds: ``hits1.low``, ``hits1.high``.
    Raises ``InputError`` for a missing, empty or damaged file, an unknown format, or a bad line (with its number).
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(PARQUET_START))
    except FileNotFoundError as error:
        siblings = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, siblings)
        hint = f"; did you mean {shorten(near[0])}?" if near else ""
        raise InputError(f"there is no predictions file {shorten(str(path))}{hint}") from error
    except OSError as error:
        raise InputError(f"cannot read {shorten(str(path))}: {error.strerror}; give a predictions file") from error
    if not start:
        raise InputError(f"{shorten(str(path))} is empty; expected predictions, run the evaluation again")
    if start == PARQUET_START:
        return score_parquet(path)
    if path.suffix.lower() in JSONL_SUFFIXES:
        return score_jsonl(path)
    raise InputError(
        f"cannot tell the format of {shorten(str(path))}: predictions are Parquet as written by an evaluation, or "
        f"JSON lines with a name ending in one of {', '.join(JSONL_SUFFIXES)}; convert or rename the file"
    )


def score_parquet(path: Path) -> dict[str, Any]:
    """Score a predictions table: strict metrics by entity id, the published ones by the names beside them.

    The published evaluator knows no true/false questions: there it judges the names of the answer set all the same.
    """
    published: list[tuple[float, ...]] = []
    outcomes: list[Outcome] = []
    for batch in read_predictions(path):
        published += map(score_rog_question, batch.predictions, batch.ground_truths)
        outcomes += batch.outcomes
    if not outcomes:
        raise InputError(f"{shorten(str(path))} holds no predictions; run the evaluation again")
    scores = score_outcomes(outcomes)
    strict = scores.summary()
    named = {name: strict[name] for name in METRICS}
    return {
        "n": len(outcomes),
        "rog": summarise_rog(published),
        "strict": {**named, **interval_figures(scores.values)},
    }


def score_jsonl(path: Path) -> dict[str, Any]:
    """Score JSON lines, one at a time: strict metrics by equality of names, a repeated answer counted once."""
    published, shares = [], []
    for prediction, golds in read_jsonl(path):
        published.append(score_rog_question(prediction, golds))
        shares.append(score_names(prediction, golds))
    if not shares:
        raise InputError(f"{shorten(str(path))} is empty; expected one JSON object per line")
    values = dict(zip(NAME_METRICS, 100 * np.array(shares).T, strict=True))
    strict = {name: float(column.mean()) for name, column in values.items()}
    return {"n": len(shares), "rog": summarise_rog(published), "strict": {**strict, **interval_figures(values)}}


def score_names(prediction: str | Sequence[str], golds: Sequence[str]) -> tuple[float, float, float, float, float]:
    """Return one question's strict figures by name as shares, in the order of ``NAME_METRICS``."""
    lines = prediction.split("\n") if isinstance(prediction, str) else prediction
    answers = [name for name in map(normalise_name, lines) if name]
    right = frozenset(map(normalise_name, golds))
    precision, recall, f1, exact = score_sets(frozenset(answers), right)
    return float(bool(answers) and answers[0] in right), f1, precision, recall, exact


def read_jsonl(path: Path) -> Iterator[tuple[str | list[str], list[str]]]:
    """Yield (prediction, gold names) line by line; blank lines are skipped. Raises ``InputError`` for a bad line."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if raw.strip():
                yield parse_line(raw, f"{shorten(str(path))}, line {number}")


def parse_line(raw: bytes, place: str) -> tuple[str | list[str], list[str]]:
    """Return (prediction, gold names) of one JSON line; ``place`` names it in the ``InputError`` of a bad one."""
    try:
        row = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8 (byte {error.start}); convert the file") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{place}: not JSON: {shorten(raw.decode('utf-8', 'replace').strip())}") from error
    if not isinstance(row, dict):
        raise InputError(f"{place}: expected an object with prediction and ground_truth, found {shorten(row)}")
    for key in ("prediction", "ground_truth"):
        if key not in row:
            raise InputError(f"{place}: no field '{key}'; the fields are {shorten(sorted(row))}")
    prediction, golds = row["prediction"], row["ground_truth"]
    if not isinstance(prediction, str) and not _is_names(prediction):
        raise InputError(f"{place}: 'prediction' must be text or a list of texts, found {shorten(prediction)}")
    if not _is_names(golds):
        raise InputError(f"{place}: 'ground_truth' must be a list of texts, found {shorten(golds)}")
    return prediction, golds


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
