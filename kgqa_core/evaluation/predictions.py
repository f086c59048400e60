"""The predictions table: what one system answered, readable by people (names, paths) and by metrics (ids, scores).

The file says on which graph it was made and who answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core.errors import InputError, nearest_beside, shorten
from kgqa_core.evaluation.metrics import Outcome
from kgqa_core.schemas import PREDICTIONS
from kgqa_core.types import Prediction, Question, ReasoningPath

ROWS_AT_ONCE = 4096  # rows of a row group, and of what is held as Python objects while reading
GRAPH_KEY, SYSTEM_KEY, ABOUT_KEY = b"kgqa.graph", b"kgqa.system", b"kgqa.about"  # of the Parquet schema's metadata
CHANCE = ("random", "first")  # answerers that know nothing: what does not beat them is not the model's merit


@dataclass(frozen=True, slots=True)
class SystemSource:
    """Who answered in a file of a system; kept in the file, so that it can be compared wherever it is."""

    graph: str  # content hash of the graph, whose ids the file is full of
    system: str  # as the configuration calls it: "rog"
    seed: int | None = None
    answered_by: str = ""  # lm, oracle, random, first; empty: the system asks no language model
    model: str = ""  # identity of that model, by content
    prompts: str = ""  # content hash of the prompts
    topics: str = "gold"  # where topic entities come from: gold, linked, none (the system uses none)
    pool: str = "none"  # hard: the right plan and wrong ones in place of what the system retrieves
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the system, JSON: {"num_candidates": 3}
    roles: str = ""  # the model of each role that was asked, for people: "plan, reason: base+rog, direct: base"
    base: str = ""  # identity of the model that answered, its tuning aside; empty: as ``model``

    @property
    def players(self) -> str:
        """Return who answered, as tables show it: ``oracle``, or the model of each role."""
        player = "" if self.answered_by == "lm" and self.roles else self.answered_by
        return ", ".join(filter(None, (player, self.roles)))

    @property
    def row(self) -> str:
        """Return the name of its row in tables, which the runs of several seeds share: ``rog (oracle, hard pool)``."""
        return replace(self, seed=None).name

    @property
    def name(self) -> str:
        """Return the name of the one run: ``rog (oracle, seed 1)``."""
        notes = [self.answered_by] if self.answered_by not in ("", "lm") else []
        notes += ["linked topics"] if self.topics == "linked" else []
        notes += [f"{self.pool} pool"] if self.pool != "none" else []
        notes += [] if self.seed is None else [f"seed {self.seed}"]
        shown = "explorer alone" if self.system == "explorer" else self.system
        return f"{shown} ({', '.join(notes)})" if notes else shown

    def metadata(self) -> dict[bytes, bytes]:
        """Return what the Parquet schema carries: the graph, the name, and all fields as JSON."""
        about = json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)
        return {GRAPH_KEY: self.graph.encode(), SYSTEM_KEY: self.name.encode(), ABOUT_KEY: about.encode()}


@dataclass(frozen=True, slots=True)
class Source:
    """Where the predictions of a file come from."""

    graph: str  # content hash of the graph, whose ids the file is full of
    system: str  # as reports call it
    about: SystemSource | None = None  # None: the file is no system's


class NameTables(Protocol):
    """What entities and relations are called, by id: all that is read of a KnowledgeGraph here."""

    @property
    def entity_names(self) -> Sequence[str]:
        """Names by entity id."""

    @property
    def relation_names(self) -> Sequence[str]:
        """Names by relation id."""


PredictionRow = tuple[Outcome, str, list[str], list[str]]
"""What metrics need by entity id, the question's text, and the names of answers and golds."""


Answer = Callable[[Sequence[Question]], Sequence[Prediction]]
WriteRows = Callable[[Sequence[Question], Sequence[Prediction]], None]
"""Writes a row per question, each with its prediction, in order."""


def answer_stream(
    answer: Answer, questions: Iterable[Question], *, chunk: int, first: int | None = None
) -> Iterator[tuple[list[Question], Sequence[Prediction]]]:
    """Yield some questions with their answers, in order: ``chunk`` at a time, and perhaps fewer of the ``first``."""
    waiting, size = iter(questions), min(first or chunk, chunk)
    while asked := list(islice(waiting, size)):
        yield asked, answer(asked)
        size = chunk


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Yield what a file is called until it is complete, ``NAME.part``; an error leaves nothing of it."""
    partial = path.with_name(f"{path.name}.part")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def open_predictions(path: Path, names: NameTables, source: Source | None = None) -> Iterator[WriteRows]:
    """Yield what writes answers to a table of ``schemas.PREDICTIONS`` as they come; see ``unfinished``.

    Without a ``source`` it can be scored but not compared.
    """
    known = None if source is None else {GRAPH_KEY: source.graph.encode(), SYSTEM_KEY: source.system.encode()}
    schema = PREDICTIONS.with_metadata(known)
    waiting = schema.empty_table()

    def write(questions: Sequence[Question], predictions: Sequence[Prediction]) -> None:
        nonlocal waiting
        rows = [make_row(*pair, names) for pair in zip(questions, predictions, strict=True)]
        waiting = pa.concat_tables([waiting, pa.Table.from_pylist(rows, schema=schema)])
        while waiting.num_rows >= ROWS_AT_ONCE:
            table.write_table(waiting.slice(0, ROWS_AT_ONCE).combine_chunks())
            waiting = waiting.slice(ROWS_AT_ONCE)

    with unfinished(path) as partial, pq.ParquetWriter(partial, schema, compression="zstd") as table:
        yield write
        if waiting.num_rows:
            table.write_table(waiting.combine_chunks())


def make_row(question: Question, prediction: Prediction, names: NameTables) -> dict[str, Any]:
    """Return the table row of one question; an empty evidence path becomes empty text."""
    entity_names = names.entity_names
    answers = prediction.candidates[: len(prediction.answers)]  # as a rule; candidates may be thousands
    if {*answers} != {*prediction.answers}:
        rank = {entity: place for place, entity in enumerate(prediction.candidates)}
        answers = tuple(sorted(prediction.answers, key=lambda entity: (rank.get(entity, len(rank)), entity)))
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
        "paths": [render_path(steps, names) if steps else "" for steps in prediction.paths],
        "covered": prediction.covered,
        "verdict": prediction.verdict,
        "gold_verdict": question.verdict,
        "claim": question.claim,
    }


def render_path(path: ReasoningPath, names: NameTables) -> str:
    """Return a path as readable triples, in walking order."""
    entity_names, relation_names = names.entity_names, names.relation_names
    triples = (f"({entity_names[s.head]}, {relation_names[s.relation]}, {entity_names[s.tail]})" for s in path)
    return " → ".join(triples)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise ``InputError`` with the name of the file where reading it as Parquet fails."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{shorten(str(path))} is not readable as predictions, a Parquet table as kgqa evaluate CONF --questions "
            f"... --out FILE.parquet writes it: {shorten(str(error))}"
        ) from error


def require_file(path: Path, hint: str = "") -> None:
    """Raise ``InputError`` unless ``path`` is a file, with the nearest name beside it or else ``hint``."""
    if not path.exists():
        raise InputError(f"there is no predictions file {shorten(str(path))}{nearest_beside(path) or hint}")
    if not path.is_file():  # a device or a pipe may never end
        raise InputError(f"cannot read {shorten(str(path))}: it is no file; give a predictions file")


def read_source(path: Path) -> Source | None:
    """Return where the predictions in ``path`` come from; None where the file does not say.

    Raises ``InputError`` when it is no readable Parquet file, or what it says of its system is damaged.
    """
    with readable(path):
        known = pq.read_schema(path).metadata or {}
    try:
        about = None
        if ABOUT_KEY in known:
            written = json.loads(known[ABOUT_KEY])
            about = SystemSource(**{one.name: written[one.name] for one in fields(SystemSource) if one.name in written})
        if GRAPH_KEY not in known or SYSTEM_KEY not in known:
            return None
        return Source(known[GRAPH_KEY].decode(), known[SYSTEM_KEY].decode(), about)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{shorten(str(path))} does not say rightly which system it is of ({shorten(str(error))}); "
            "evaluate that system again"
        ) from error


def read_predictions(path: Path) -> Iterator[PredictionRow]:
    """Yield a predictions table row by row. Raises ``InputError`` when it is damaged or lacks a column."""
    with readable(path), pq.ParquetFile(path) as file:
        require_columns(path, file, PREDICTIONS.names)
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=PREDICTIONS.names):
            yield from _unpack(pa.Table.from_batches([batch]).cast(PREDICTIONS))


def require_columns(path: Path, file: pq.ParquetFile, names: Sequence[str]) -> None:
    """Raise ``InputError`` with those of ``names`` that the table has no column of."""
    found = file.schema_arrow.names
    if missing := [name for name in names if name not in found]:
        raise InputError(
            f"{shorten(str(path))} lacks the columns {shorten(missing)} of a predictions table; it has "
            f"{shorten(found)}; evaluate again"
        )


def _unpack(table: pa.Table) -> Iterator[PredictionRow]:
    """Turn columns into records; lists go through numpy, since item by item is several times slower."""
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}

    def cut(name: str, items: Sequence[Any]) -> list[Any]:  # ``items`` of all rows one after the other
        return [items[start:end] for start, end in pairwise(columns[name].offsets.to_pylist())]

    def lists(name: str) -> list[Any]:
        values = columns[name].values
        return cut(name, values.to_pylist() if pa.types.is_string(values.type) else values.to_numpy().tolist())

    shown = pc.binary_length(columns["paths"].values).to_numpy(zero_copy_only=False) > 0  # and not the texts themselves
    plain = ("question_id", "question", "hops", "covered", "claim", "verdict", "gold_verdict")
    ids, texts, hops, covered, claims, verdicts, right = (columns[name].to_pylist() for name in plain)
    golds, answers = (map(frozenset, lists(name)) for name in ("gold_ids", "answer_ids"))
    ranked = (lists("candidate_ids"), lists("candidate_scores"))
    evident = cut("paths", shown.tolist())
    outcomes = map(Outcome, ids, hops, golds, *ranked, answers, covered, evident, claims, verdicts, right)
    return zip(outcomes, texts, lists("prediction"), lists("ground_truth"), strict=True)
