"""Runs, read from their predictions tables: what was answered, and of systems what it cost and what it rests on.

Two runs can be compared where questions, golds and graph are the same. The paired tests need to know whether a question
was answered right, yes or no; so where candidates tie at the top, the one with the smallest entity id is picked, for
every run alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core.errors import InputError, nearest, shorten
from kgqa_core.evaluation.metrics import (
    Floats,
    Mask,
    Outcome,
    QuestionScores,
    decides_claim,
    end_of_tie,
    is_rog_hit,
    score_outcomes,
)
from kgqa_core.evaluation.predictions import (
    Source,
    SystemSource,
    read_predictions,
    read_source,
    read_system_source,
    readable,
)

NUM_EXAMPLES = 3
TEXT_SHOWN = 60  # characters of a question in a message
HASH_SHOWN = 16  # digits of a graph's hash in a message
SPENT = ("num_calls", "num_prompt_tokens", "num_tokens", "seconds", "money")
READ = ("question_id", "status", "stopped", "faithful", "unmatched", "counts", *SPENT)
STATUSES = ("answered", "abstained", "skipped", "failed")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a question is, apart from what was answered."""

    text: str
    golds: tuple[str, ...]  # names, sorted
    gold_ids: frozenset[int]
    claim: int | None
    verdict: bool | None  # the right one


@dataclass(frozen=True, slots=True)
class EvaluatedRun:
    """One run's predictions, judged. Questions are in the order of their ids, so that runs line up."""

    name: str  # as the user calls it
    path: Path
    source: Source
    asked: dict[str, Asked]  # by question id
    scores: QuestionScores
    picked_right: Mask | Floats  # [B] was the fixed pick right? of a mean over seeds: in which share of them


@dataclass(frozen=True, slots=True)
class Record:
    """What only a system's table has, question by question [B], in the order of question ids."""

    status: tuple[str, ...]  # of ``STATUSES``
    stopped: tuple[str | None, ...]  # the limit of the budget that ended the question
    spent: dict[str, Floats]  # by name as in ``SPENT``; money NaN where nobody knows
    num_supported: Floats  # answers whose path stands in the graph and ends in them
    num_claimed: Floats  # all answers, names that nothing in the graph bears among them
    counts: dict[str, Floats]  # what the system counted, NaN where it did not


@dataclass(frozen=True, slots=True)
class SystemRun:
    """A judged run beside its outcomes and, where a system answered, its costs; in the order of question ids."""

    run: EvaluatedRun
    outcomes: tuple[Outcome, ...]
    hit: Floats  # the published evaluator's Hit [B], percent
    about: SystemSource | None  # None: no system's table
    record: Record | None

    @property
    def name(self) -> str:
        """Return what the user calls the run."""
        return self.run.name


def read_system_run(path: Path, name: str = "") -> SystemRun:
    """Read and judge any table of predictions; ``name``: what to call it, else as the file says.

    Raises:
        InputError: it is missing, damaged, empty, repeats a question or does not say on which graph it was made.
    """
    called = name or path.name
    if not path.is_file():
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, beside)
        hint = f"; did you mean {shorten(near[0])}?" if near else "; give what kgqa run printed as its evaluation"
        raise InputError(f"{called}: there is no predictions table {shorten(str(path))}{hint}")
    source = read_source(path)
    if source is None:
        raise InputError(
            f"{called}: {shorten(str(path))} does not say on which graph it was made; evaluate that run again"
        )
    about, called = read_system_source(path), name or source.system
    rows: list[tuple[Outcome, bool]] = []
    asked: dict[str, Asked] = {}
    for batch in read_predictions(path):
        columns = zip(batch.outcomes, batch.texts, batch.predictions, batch.ground_truths, strict=True)
        for outcome, text, names, golds in columns:
            question = Asked(text, tuple(sorted(golds)), outcome.golds, outcome.claim, outcome.gold_verdict)
            if asked.setdefault(outcome.question_id, question) is not question:
                raise InputError(f"{called}: question {shorten(outcome.question_id)} is there twice; keep one of them")
            rows.append((outcome, is_rog_hit(names, golds)))
    if not rows:
        raise InputError(f"{called}: {shorten(str(path))} holds no predictions; run the evaluation again")
    rows.sort(key=lambda row: row[0].question_id)
    outcomes = tuple(outcome for outcome, _ in rows)
    right = np.array([is_picked_right(outcome) for outcome in outcomes])
    run = EvaluatedRun(called, path, source, asked, score_outcomes(outcomes), right)
    hit = np.array([100.0 * found for _, found in rows])
    return SystemRun(run, outcomes, hit, about, None if about is None else _read_record(path))


def is_picked_right(outcome: Outcome) -> bool:
    """Return whether the smallest entity id of the top tie group is a gold; see ``decides_claim`` for claims."""
    if outcome.gold_verdict is not None:
        return decides_claim(outcome)
    top = outcome.candidates[: end_of_tie(outcome.scores, 0)]
    return bool(top and outcome.answers) and min(top) in outcome.golds


def _read_record(path: Path) -> Record:
    """Read what only a system's table has; lists are counted by their lengths, row by row it takes much longer."""
    with readable(path), pq.ParquetFile(path) as file:
        found = file.schema_arrow.names
        if missing := [name for name in READ if name not in found]:
            raise InputError(
                f"{shorten(str(path))} lacks what a system's predictions say of costs and evidence: "
                f"{shorten(missing)}; evaluate that system again"
            )
        table = file.read(columns=list(READ))
    table = table.take(pc.sort_indices(table["question_id"])).combine_chunks()
    faithful = table["faithful"].combine_chunks()
    lengths = _lengths(faithful)
    supported = np.zeros(len(table))
    np.add.at(supported, np.repeat(np.arange(len(table)), lengths), faithful.flatten().to_numpy(zero_copy_only=False))
    return Record(
        status=tuple(table["status"].to_pylist()),
        stopped=tuple(table["stopped"].to_pylist()),
        spent={name: table[name].to_numpy().astype(np.float64) for name in SPENT},
        num_supported=supported,
        num_claimed=(lengths + _lengths(table["unmatched"].combine_chunks())).astype(np.float64),
        counts=_columns_of(table["counts"].combine_chunks()),
    )


def _lengths(lists: pa.ListArray) -> npt.NDArray[np.int64]:
    lengths: npt.NDArray[np.int64] = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    return lengths


def _columns_of(counts: pa.MapArray) -> dict[str, Floats]:
    """Return each count as a column, NaN where a question has it not."""
    entries = counts.cast(pa.list_(pa.struct({"key": pa.string(), "value": pa.float64()})))
    rows = np.repeat(np.arange(len(counts)), _lengths(entries))
    keys, values = entries.flatten().flatten()
    names = keys.to_numpy(zero_copy_only=False)
    columns: dict[str, Floats] = {}
    for name in sorted(set(names)):
        chosen = names == name
        columns[name] = np.full(len(counts), np.nan)
        columns[name][rows[chosen]] = values.to_numpy(zero_copy_only=False)[chosen]
    return columns


def mean_run(name: str, runs: Sequence[EvaluatedRun]) -> EvaluatedRun:
    """Return the mean over several runs of one system (its seeds), question by question.

    ``picked_right`` is then a share: of the runs that are right.
    """
    if len(runs) == 1:
        return replace(runs[0], name=name)
    first = runs[0].scores
    values = {metric: np.mean([run.scores.values[metric] for run in runs], axis=0) for metric in first.values}
    picked = np.mean([run.picked_right for run in runs], axis=0)
    return replace(runs[0], name=name, scores=replace(first, values=values), picked_right=picked)


def with_direct(run: SystemRun, direct: SystemRun) -> SystemRun:
    """Return a run that answers with the union of its own answers and those of ``direct`` (FiSKE, Table 2).

    It ranks as ``run`` where that answers, else as ``direct``; a true/false question goes by whoever has a verdict,
    ``run`` first. It costs what both cost, and what only ``direct`` answers has no evidence.
    """
    pairs = list(zip(run.outcomes, direct.outcomes, strict=True))
    outcomes = tuple(unite(own, other) for own, other in pairs)
    judged = _judge_again(f"{run.name} + {direct.name}", run, outcomes)
    record = None
    if run.record is not None and direct.record is not None:
        added = np.array([len(other.answers - own.answers) for own, other in pairs], dtype=np.float64)
        record = replace(
            run.record,
            spent={column: run.record.spent[column] + direct.record.spent[column] for column in SPENT},
            num_claimed=run.record.num_claimed + added,
        )
    return SystemRun(judged, outcomes, np.maximum(run.hit, direct.hit), run.about, record)


def _judge_again(name: str, run: SystemRun, outcomes: Sequence[Outcome]) -> EvaluatedRun:
    """Return ``run`` with other outcomes; those that are its own keep their scores."""
    old = run.run.scores
    rows = [row for row, pair in enumerate(zip(run.outcomes, outcomes, strict=True)) if pair[0] is not pair[1]]
    changed = [outcomes[row] for row in rows]
    values = {metric: column.copy() for metric, column in old.values.items()}
    for metric, column in score_outcomes(changed).values.items():
        values[metric][rows] = column
    picked = run.run.picked_right.copy()
    picked[rows] = [is_picked_right(outcome) for outcome in changed]
    return replace(run.run, name=name, scores=replace(old, values=values), picked_right=picked)


def unite(own: Outcome, other: Outcome) -> Outcome:
    """Return one question's outcome with the answers of both, ``own`` itself where ``other`` adds nothing."""
    adds = not other.answers <= own.answers or (own.verdict is None and other.verdict is not None)
    if not adds and (own.covered or not other.covered):
        return own
    leading = own if own.answers else other
    return replace(
        own,
        candidates=leading.candidates,
        scores=leading.scores,
        evident=leading.evident,
        answers=own.answers | other.answers,
        covered=own.covered or other.covered,
        verdict=other.verdict if own.verdict is None else own.verdict,
    )


def require_comparable(runs: Sequence[EvaluatedRun]) -> None:
    """Raise ``InputError``, with every difference spelled out, unless questions, golds and graph are those of all."""
    first, *others = runs
    problems = [problem for other in others for problem in find_differences(first, other)]
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise InputError(
            f"these runs cannot be compared:{listed}\nEvaluate them on the same questions and the same graph."
        )


def find_differences(first: EvaluatedRun, second: EvaluatedRun) -> Iterator[str]:
    """Yield in words how the graphs, the sets of questions, their texts and their golds differ."""
    graphs = [run.source.graph for run in (first, second)]
    if graphs[0] != graphs[1]:
        shown = (f"{run.name} has {run.source.graph[:HASH_SHOWN]}" for run in (first, second))
        yield f"graphs differ: {', '.join(shown)} (content hashes)"
    for one, other in ((first, second), (second, first)):
        missing = sorted(one.asked.keys() - other.asked.keys())
        if missing:
            shown = (f"{id} {shorten(one.asked[id].text, TEXT_SHOWN)}" for id in missing[:NUM_EXAMPLES])
            yield f"{count_questions(missing)} only in {one.name}, not in {other.name}: {', '.join(shown)}"
    shared = sorted(first.asked.keys() & second.asked.keys())
    both = [(id, first.asked[id], second.asked[id]) for id in shared]
    names = f"{first.name} and {second.name}"
    texts = [
        f"{id} {shorten(a.text, TEXT_SHOWN)} / {shorten(b.text, TEXT_SHOWN)}" for id, a, b in both if a.text != b.text
    ]
    if texts:
        yield f"{count_questions(texts)} with another text in {names}: {', '.join(texts[:NUM_EXAMPLES])}"
    same_ids = graphs[0] == graphs[1]  # else ids mean nothing, and names have to do
    golds = [id for id, a, b in both if not have_same_golds(a, b, same_ids=same_ids)]
    if golds:
        yield f"{count_questions(golds)} with other answers in {names}: {', '.join(golds[:NUM_EXAMPLES])}"


def have_same_golds(one: Asked, other: Asked, *, same_ids: bool) -> bool:
    """Return whether two questions have the same golds and the same right verdict."""
    if same_ids and (one.gold_ids != other.gold_ids or one.claim != other.claim):
        return False
    return one.golds == other.golds and one.verdict == other.verdict


def count_questions(found: Sequence[str]) -> str:
    """Return ``1 question`` or ``7 questions``."""
    return f"{len(found)} question{'' if len(found) == 1 else 's'}"
