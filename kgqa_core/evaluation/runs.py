"""Runs, read from their predictions tables: what was answered, and of systems what it cost and what it rests on.

Two runs can be compared where questions, golds and graph are the same. The paired tests need to know whether a question
was answered right, yes or no; so where candidates tie at the top, the one with the smallest entity id is picked, for
every run alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core.errors import InputError, shorten
from kgqa_core.evaluation import metrics, predictions
from kgqa_core.evaluation.metrics import Floats, Mask, Outcome, QuestionScores
from kgqa_core.evaluation.predictions import Source, SystemSource

NUM_EXAMPLES = 3
TEXT_SHOWN = 60  # characters of a question in a message
HASH_SHOWN = 16  # digits of a graph's hash in a message
SPENT = ("num_calls", "num_prompt_tokens", "num_tokens", "seconds", "money")
READ = ("question_id", "confidence", "status", "stopped", "faithful", "unmatched", "counts", *SPENT)
STATUSES = ("answered", "abstained", "unmatched", "unreadable", "skipped", "failed")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a question is, apart from what was answered."""

    text: str
    golds: tuple[str, ...]  # names, sorted
    gold_ids: frozenset[int]
    claim: int | None
    verdict: bool | None  # the right one


@dataclass(frozen=True, slots=True)
class Record:
    """What only a system's table has, question by question [B], in the order of question ids."""

    status: tuple[str, ...]  # of ``STATUSES``
    stopped: tuple[str | None, ...]  # the limit of the budget that ended the question
    spent: dict[str, Floats]  # by name as in ``SPENT``; money NaN where nobody knows
    num_supported: Floats  # answers whose path stands in the graph and ends in them
    num_claimed: Floats  # all answers, names that nothing in the graph bears among them
    counts: dict[str, Floats]  # what the system counted, NaN where it did not
    confidence: Floats  # of the answer, 0..1; NaN: no answer, or nobody told


@dataclass(frozen=True, slots=True)
class EvaluatedRun:
    """One run's predictions, judged. Questions are in the order of their ids, so that runs line up."""

    name: str  # as the user calls it
    path: Path
    source: Source
    asked: dict[str, Asked]  # by question id
    scores: QuestionScores
    picked_right: Mask | Floats  # [B] was the fixed pick right? of a mean over seeds: in which share of them
    outcomes: tuple[Outcome, ...] = ()  # [B]; empty for a mean over seeds
    hit: Floats = field(default_factory=lambda: np.zeros(0))  # [B] the published evaluator's Hit, percent; likewise
    record: Record | None = None  # None: no system's table, or a mean over seeds

    @property
    def about(self) -> SystemSource | None:
        """Return who answered; None for a table that is no system's."""
        return self.source.about


def read_system_run(path: Path, name: str = "") -> EvaluatedRun:
    """Read and judge any table of predictions; ``name``: what to call it, else as the file says.

    ``InputError``: it is missing, damaged, empty, repeats a question or does not say on which graph it was made.
    """
    predictions.require_file(path, "; give what kgqa run printed as its evaluation")
    source = predictions.read_source(path)
    if source is None:
        raise InputError(
            f"{name or path.name}: {shorten(str(path))} does not say on which graph it was made; "
            "evaluate that run again"
        )
    called = name or source.system
    rows = sorted(predictions.read_predictions(path), key=lambda row: row[0].question_id)
    if not rows:
        raise InputError(f"{called}: {shorten(str(path))} holds no predictions; run the evaluation again")
    outcomes = tuple(outcome for outcome, *_ in rows)
    if twice := [one.question_id for one, other in pairwise(outcomes) if one.question_id == other.question_id]:
        raise InputError(f"{called}: question {shorten(twice[0])} is there twice; keep one of them")
    asked = {
        one.question_id: Asked(text, tuple(sorted(golds)), one.golds, one.claim, one.gold_verdict)
        for one, text, _, golds in rows
    }
    return EvaluatedRun(
        called,
        path,
        source,
        asked,
        metrics.score_outcomes(outcomes),
        np.array([is_picked_right(outcome) for outcome in outcomes]),
        outcomes,
        np.array([100.0 * metrics.is_rog_hit(names, golds) for _, _, names, golds in rows]),
        None if source.about is None else _read_record(path),
    )


def is_picked_right(outcome: Outcome) -> bool:
    """Return whether the smallest entity id of the top tie group is a gold; see ``decides_claim`` for claims."""
    if outcome.gold_verdict is not None:
        return metrics.decides_claim(outcome)
    top = outcome.candidates[: metrics.end_of_tie(outcome.scores, 0)]
    return bool(top and outcome.answers) and min(top) in outcome.golds


def _read_record(path: Path) -> Record:
    """Read what only a system's table has; lists are counted by their lengths, row by row it takes much longer."""
    with predictions.readable(path), pq.ParquetFile(path) as file:
        predictions.require_columns(path, file, READ)
        table = file.read(columns=list(READ))
    table = table.take(pc.sort_indices(table["question_id"])).combine_chunks()
    faithful, unmatched = table["faithful"].combine_chunks(), table["unmatched"].combine_chunks()
    owner, unmatched_owner = pc.list_parent_indices(faithful), pc.list_parent_indices(unmatched)
    supported = faithful.flatten().to_numpy(zero_copy_only=False)
    # Each count as a column, NaN where a question has it not.
    counted = table["counts"].combine_chunks().cast(pa.list_(pa.struct({"key": pa.string(), "value": pa.float64()})))
    rows = pc.list_parent_indices(counted).to_numpy()
    keys, values = (column.to_numpy(zero_copy_only=False) for column in counted.flatten().flatten())
    counts: dict[str, Floats] = {}
    for name in sorted(set(keys)):
        counts[name] = np.full(len(table), np.nan)
        counts[name][rows[keys == name]] = values[keys == name]
    return Record(
        status=tuple(table["status"].to_pylist()),
        stopped=tuple(table["stopped"].to_pylist()),
        spent={name: table[name].to_numpy().astype(np.float64) for name in SPENT},
        num_supported=np.bincount(owner, weights=supported, minlength=len(table)).astype(np.float64),
        num_claimed=np.bincount(np.append(owner, unmatched_owner), minlength=len(table)).astype(np.float64),
        counts=counts,
        confidence=table["confidence"].to_numpy().astype(np.float64),
    )


def group_runs(runs: Sequence[EvaluatedRun]) -> dict[str, list[EvaluatedRun]]:
    """Return the runs of each row of one comparison by its name, in order: the seeds of a row belong together."""
    rows: dict[str, list[EvaluatedRun]] = {}
    for run in runs:
        rows.setdefault(run.about.row if run.about else run.name, []).append(run)
    return rows


def mean_run(name: str, runs: Sequence[EvaluatedRun]) -> EvaluatedRun:
    """Return the mean over several runs of one system (its seeds), question by question.

    ``picked_right`` is then a share: of the runs that are right.
    """
    if len(runs) == 1:
        return replace(runs[0], name=name)
    first = runs[0].scores
    values = {metric: np.mean([run.scores.values[metric] for run in runs], axis=0) for metric in first.values}
    picked = np.mean([run.picked_right for run in runs], axis=0)
    scores = replace(first, values=values)
    return replace(runs[0], name=name, scores=scores, picked_right=picked, outcomes=(), hit=np.zeros(0), record=None)


def with_direct(run: EvaluatedRun, direct: EvaluatedRun) -> EvaluatedRun:
    """Return a run that answers with the union of its own answers and those of ``direct`` (FiSKE, Table 2).

    It ranks as ``run`` where that answers, else as ``direct``; a true/false question goes by whoever has a verdict,
    ``run`` first. It costs what both cost, and what only ``direct`` answers has no evidence.
    """
    pairs = list(zip(run.outcomes, direct.outcomes, strict=True))
    outcomes = tuple(unite(own, other) for own, other in pairs)
    rows = [row for row, (own, _) in enumerate(pairs) if outcomes[row] is not own]  # the others keep their scores
    changed = [outcomes[row] for row in rows]
    values = {metric: column.copy() for metric, column in run.scores.values.items()}
    for metric, column in metrics.score_outcomes(changed).values.items():
        values[metric][rows] = column
    picked = run.picked_right.copy()
    picked[rows] = [is_picked_right(outcome) for outcome in changed]
    record = None
    if run.record is not None and direct.record is not None:
        twice = [len(a.answers) + len(b.answers) - len(c.answers) for (a, b), c in zip(pairs, outcomes, strict=True)]
        first = [own.answers or own.verdict is not None for own, _ in pairs]  # whose answer leads: as in ``unite``
        ends = zip(first, run.record.status, direct.record.status, strict=True)
        record = replace(
            run.record,
            status=tuple(own if leads else other for leads, own, other in ends),
            confidence=np.where(np.array(first, dtype=bool), run.record.confidence, direct.record.confidence),
            spent={column: run.record.spent[column] + direct.record.spent[column] for column in SPENT},
            num_claimed=run.record.num_claimed + direct.record.num_claimed - twice,
        )
    return replace(
        run,
        name=f"{run.name} + {direct.name}",
        scores=replace(run.scores, values=values),
        picked_right=picked,
        outcomes=outcomes,
        hit=np.maximum(run.hit, direct.hit),
        record=record,
    )


def unite(own: Outcome, other: Outcome) -> Outcome:
    """Return one question's outcome with the answers of both, ``own`` itself where ``other`` adds nothing."""
    is_judged = own.verdict is not None  # what another verdict rests on, such as the claim itself, would undo it
    adds = not is_judged and (not other.answers <= own.answers or other.verdict is not None)
    if not adds and (own.covered or not other.covered):
        return own
    leading = own if own.answers or is_judged else other
    return own._replace(
        candidates=leading.candidates,
        scores=leading.scores,
        evident=leading.evident,
        answers=own.answers if is_judged else own.answers | other.answers,
        covered=own.covered or other.covered,
        verdict=own.verdict if is_judged else other.verdict,
    )


def require_comparable(runs: Sequence[EvaluatedRun]) -> None:
    """Raise ``InputError``, with every difference spelled out, unless questions, golds and graph are those of all."""
    problems = [problem for other in runs[1:] for problem in find_differences(runs[0], other)]
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise InputError(
            f"these runs cannot be compared:{listed}\nEvaluate them on the same questions and the same graph. "
            "Releases of before and after a change of data: kgqa compare CONF@champion CONF@challenger"
        )


def find_differences(first: EvaluatedRun, second: EvaluatedRun) -> Iterator[str]:
    """Yield in words how the graphs, the sets of questions, their texts and their golds differ."""

    def told(found: Sequence[object], what: str, examples: Sequence[str]) -> str:
        num = f"{len(found)} question{'' if len(found) == 1 else 's'}"
        return f"{num} {what}: {', '.join(examples)}"

    same_ids = first.source.graph == second.source.graph  # else ids mean nothing, and names have to do
    if not same_ids:
        shown = (f"{run.name} has {run.source.graph[:HASH_SHOWN]}" for run in (first, second))
        yield f"graphs differ: {', '.join(shown)} (content hashes)"
    for one, other in ((first, second), (second, first)):
        if missing := sorted(one.asked.keys() - other.asked.keys()):
            examples = [f"{id} {shorten(one.asked[id].text, TEXT_SHOWN)}" for id in missing[:NUM_EXAMPLES]]
            yield told(missing, f"only in {one.name}, not in {other.name}", examples)
    both = [(id, first.asked[id], second.asked[id]) for id in sorted(first.asked.keys() & second.asked.keys())]
    names = f"{first.name} and {second.name}"
    if texts := [(id, a.text, b.text) for id, a, b in both if a.text != b.text]:
        pairs = [(id, *(shorten(text, TEXT_SHOWN) for text in own)) for id, *own in texts[:NUM_EXAMPLES]]
        yield told(texts, f"with another text in {names}", [f"{id} {one} / {other}" for id, one, other in pairs])
    golds = [
        id
        for id, a, b in both
        if (a.golds, a.verdict) != (b.golds, b.verdict) or (same_ids and (a.gold_ids, a.claim) != (b.gold_ids, b.claim))
    ]
    if golds:
        yield told(golds, f"with other answers in {names}", golds[:NUM_EXAMPLES])
