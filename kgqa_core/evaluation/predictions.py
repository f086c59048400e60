"""The predictions table: what one system answered, readable by people (names, paths) and by metrics (ids, scores).

The file says on which graph it was made and who answered. ``score_file`` judges it, and JSON lines of other systems.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from kgqa_core.errors import InputError, nearest_beside, shorten
from kgqa_core.evaluation import metrics
from kgqa_core.evaluation.metrics import Outcome
from kgqa_core.schemas import PREDICTIONS
from kgqa_core.types import Prediction, Question, ReasoningPath

ROWS_AT_ONCE = 4096  # rows of a row group, and of what is held as Python objects while reading
LINE_DIGITS = 6  # of a score in JSON lines
GRAPH_KEY, SYSTEM_KEY, ABOUT_KEY = b"kgqa.graph", b"kgqa.system", b"kgqa.about"  # of the Parquet schema's metadata
CHANCE = ("random", "first")  # answerers that know nothing: what does not beat them is not the model's merit
JSONL_SUFFIXES = (".jsonl", ".json", ".ndjson")
NAME_METRICS = ("hits1", "f1", "precision", "recall", "em")  # names have neither scores nor ids, which others need


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


PredictionRow = tuple[Outcome, str, list[str], list[str]]
"""What metrics need by entity id, the question's text, and the names of answers and golds."""


Answer = Callable[[Sequence[Question]], Sequence[Prediction]]
WriteRows = Callable[[Sequence[Question], Iterable[Prediction]], None]
"""Writes a row per question, in order; a question without a prediction gets an empty row."""


def answer_stream(
    answer: Answer, questions: Iterable[Question], *, chunk: int, first: int | None = None
) -> Iterator[tuple[list[Question], Sequence[Prediction]]]:
    """Yield some questions with their answers, in order: ``chunk`` at a time, and perhaps fewer of the ``first``."""
    waiting, size = iter(questions), min(first or chunk, chunk)
    while asked := list(islice(waiting, size)):
        yield asked, answer(asked)
        size = chunk


@contextmanager
def open_predictions(
    path: Path | TextIO,
    *,
    entity_names: Sequence[str],
    render_path: Callable[[ReasoningPath], str],
    source: Source | None = None,
) -> Iterator[WriteRows]:
    """Yield what writes answers to ``path`` as they come: ``schemas.PREDICTIONS``, or lines as of ``answer_line``.

    JSON lines are told by the file's suffix, and all that an open stream gets. ``entity_names`` is indexed by entity
    id; ``render_path`` makes an evidence path readable. Without a ``source`` a table can be scored but not compared.
    Until it is complete a file is called ``NAME.part``, and an error leaves nothing of it.
    """
    known = None if source is None else {GRAPH_KEY: source.graph.encode(), SYSTEM_KEY: source.system.encode()}
    schema = PREDICTIONS.with_metadata(known)
    waiting = schema.empty_table()

    def make_rows(questions: Sequence[Question], predictions: Iterable[Prediction]) -> list[dict[str, Any]]:
        by_id = {prediction.question_id: prediction for prediction in predictions}
        pairs = [(question, by_id.get(question.id, Prediction(question.id, (), (), ()))) for question in questions]
        return [make_row(*pair, entity_names=entity_names, render_path=render_path) for pair in pairs]

    def write_lines(questions: Sequence[Question], predictions: Iterable[Prediction]) -> None:
        lines.writelines(map(answer_line, make_rows(questions, predictions)))
        lines.flush()

    def write_table(questions: Sequence[Question], predictions: Iterable[Prediction]) -> None:
        nonlocal waiting
        rows = pa.Table.from_pylist(make_rows(questions, predictions), schema=schema)
        waiting = pa.concat_tables([waiting, rows])
        while waiting.num_rows >= ROWS_AT_ONCE:
            table.write_table(waiting.slice(0, ROWS_AT_ONCE).combine_chunks())
            waiting = waiting.slice(ROWS_AT_ONCE)

    if not isinstance(path, Path):
        lines = path
        yield write_lines
        return
    unfinished = path.with_name(f"{path.name}.part")
    try:
        if path.suffix.lower() in JSONL_SUFFIXES:
            with unfinished.open("w", encoding="utf-8") as lines:
                yield write_lines
        else:
            with pq.ParquetWriter(unfinished, schema, compression="zstd") as table:
                yield write_table
                if waiting.num_rows:
                    table.write_table(waiting.combine_chunks())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def answer_line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of JSON, which ``read_jsonl`` reads: answers, best first, with scores and evidence."""
    first = row["candidate_ids"][: len(row["answer_ids"])]  # what else was answered has neither score nor evidence
    scores, paths = (dict(zip(first, row[name], strict=False)) for name in ("candidate_scores", "paths"))
    line = {name: row[name] for name in ("question_id", "question", "prediction")}
    line |= {"scores": [round(scores.get(entity, 0.0), LINE_DIGITS) for entity in row["answer_ids"]]}
    line |= {"evidence": [paths.get(entity, "") for entity in row["answer_ids"]], "ground_truth": row["ground_truth"]}
    line |= {} if row["verdict"] is None else {"verdict": row["verdict"]}
    return json.dumps(line, ensure_ascii=False) + "\n"


def make_row(
    question: Question,
    prediction: Prediction,
    *,
    entity_names: Sequence[str],
    render_path: Callable[[ReasoningPath], str],
) -> dict[str, Any]:
    """Return the table row of one question; an empty evidence path becomes empty text."""
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
        "paths": [render_path(steps) if steps else "" for steps in prediction.paths],
        "covered": prediction.covered,
        "verdict": prediction.verdict,
        "gold_verdict": question.verdict,
        "claim": question.claim,
    }


def render_path(path: ReasoningPath, *, entity_names: Sequence[str], relation_names: Sequence[str]) -> str:
    """Return a path as readable triples, in walking order."""
    triples = (f"({entity_names[s.head]}, {relation_names[s.relation]}, {entity_names[s.tail]})" for s in path)
    return " → ".join(triples)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise ``InputError`` with the name of the file where reading it as Parquet fails."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{shorten(str(path))} is not readable as predictions: {shorten(str(error))}") from error


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


# ------ The figures of any predictions file, for ``kgqa score``.


def score_file(path: Path) -> dict[str, Any]:
    """Return ``{"n", "rog": {...}, "strict": {...}}`` of a predictions file, every figure but ``n`` in percent.

    Our Parquet is judged strictly by entity id, JSON lines of other systems by equality of names. Both get the
    published evaluator's figures too; it knows no true/false questions. Strict figures have their 95 % interval beside
    them (``hits1.low``). Raises ``InputError`` for a missing, empty or damaged file, or a bad line (with its number).
    """
    require_file(path)
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise InputError(f"cannot read {shorten(str(path))}: {error.strerror}; give a predictions file") from error
    published: list[tuple[float, ...]] = []
    names: tuple[str, ...]
    if start == b"PAR1":
        outcomes: list[Outcome] = []
        for outcome, _, prediction, golds in read_predictions(path):
            published.append(metrics.score_rog_question(prediction, golds))
            outcomes.append(outcome)
        values, names = metrics.score_outcomes(outcomes).values, metrics.METRICS
    elif not start or path.suffix.lower() in JSONL_SUFFIXES:
        shares = []
        for line, golds in read_jsonl(path):
            published.append(metrics.score_rog_question(line, golds))
            shares.append(score_names(line, golds))
        names = NAME_METRICS
        values = dict(zip(names, 100 * np.array(shares).T, strict=True)) if shares else {}
    else:
        raise InputError(
            f"cannot tell the format of {shorten(str(path))}: predictions are Parquet as written by an evaluation, or "
            f"JSON lines with a name ending in one of {', '.join(JSONL_SUFFIXES)}; convert or rename the file"
        )
    if not published:
        raise InputError(f"{shorten(str(path))} is empty: it holds no predictions; run the evaluation again")
    strict = {name: float(values[name].mean()) for name in names} | metrics.interval_figures(values)
    return {"n": len(published), "rog": metrics.summarise_rog(published), "strict": strict}


def score_names(prediction: str | Sequence[str], golds: Sequence[str]) -> tuple[float, float, float, float, float]:
    """Return one question's strict figures by name as shares, in the order of ``NAME_METRICS``.

    A repeated answer counts once.
    """
    lines = prediction.split("\n") if isinstance(prediction, str) else prediction
    answers = [name for name in map(metrics.normalise_name, lines) if name]
    right = frozenset(map(metrics.normalise_name, golds))
    precision, recall, f1, exact = metrics.score_sets(frozenset(answers), right)
    return float(bool(answers) and answers[0] in right), f1, precision, recall, exact


class _Line(BaseModel):
    """One line of JSON predictions; what else it has is ignored."""

    model_config = ConfigDict(strict=True)

    prediction: str | list[str]  # text with one answer per line, or a list
    ground_truth: list[str]


def read_jsonl(path: Path) -> Iterator[tuple[str | list[str], list[str]]]:
    """Yield (prediction, gold names) line by line; blank lines are skipped. Raises ``InputError`` for a bad line."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            try:
                row = _Line.model_validate_json(raw.decode("utf-8-sig"))
            except UnicodeDecodeError as error:
                fault = f"not UTF-8 (byte {error.start}); convert the file"
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = f"{first['loc'][0]!r}: " if first["loc"] else ""
                fault = f"{where}{first['msg']}, found {shorten(first['input'])}"
            else:
                yield row.prediction, row.ground_truth
                continue
            raise InputError(
                f"{shorten(str(path))}, line {number}: {fault}; expected a JSON object with prediction (text or a list "
                "of texts) and ground_truth (a list of texts)"
            )
