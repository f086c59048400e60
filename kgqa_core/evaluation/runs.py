"""Evaluated runs, read from their predictions; two can be compared where questions, golds and graph are the same.

The paired tests need to know whether a question was answered right, yes or no; so where candidates tie at the top, the
one with the smallest entity id is picked, for every run alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kgqa_core.errors import InputError, nearest, shorten
from kgqa_core.evaluation.metrics import Mask, Outcome, QuestionScores, decides_claim, end_of_tie, score_outcomes
from kgqa_core.evaluation.predictions import Source, read_predictions, read_source
from kgqa_core.evaluation.rog import is_rog_hit

Floats = npt.NDArray[np.float64]

NUM_EXAMPLES = 3
TEXT_SHOWN = 60  # characters of a question in a message
HASH_SHOWN = 16  # digits of a graph's hash in a message


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
class Answers:
    """A predictions table: what was asked and answered, in the order of question ids."""

    outcomes: tuple[Outcome, ...]
    asked: dict[str, Asked]  # by question id
    hit: Floats  # the published evaluator's Hit [B], percent


def require_source(path: Path, name: str) -> Source:
    """Return on which graph a predictions table was made; ``name`` is what messages call the run.

    Raises ``InputError`` where the table is missing, damaged, or does not say.
    """
    if not path.is_file():
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, beside)
        hint = f"; did you mean {shorten(near[0])}?" if near else "; give what kgqa run printed as its evaluation"
        raise InputError(f"{name}: there is no predictions table {shorten(str(path))}{hint}")
    source = read_source(path)
    if source is None:
        raise InputError(
            f"{name}: {shorten(str(path))} does not say on which graph it was made; evaluate that run again"
        )
    return source


def read_answers(path: Path, name: str) -> Answers:
    """Read a predictions table.

    Raises ``InputError`` where it is damaged, empty, or repeats a question.
    """
    rows: list[tuple[Outcome, bool]] = []
    asked: dict[str, Asked] = {}
    for batch in read_predictions(path):
        columns = zip(batch.outcomes, batch.texts, batch.predictions, batch.ground_truths, strict=True)
        for outcome, text, names, golds in columns:
            question = Asked(text, tuple(sorted(golds)), outcome.golds, outcome.claim, outcome.gold_verdict)
            if asked.setdefault(outcome.question_id, question) is not question:
                raise InputError(f"{name}: question {shorten(outcome.question_id)} is there twice; keep one of them")
            rows.append((outcome, is_rog_hit(names, golds)))
    if not rows:
        raise InputError(f"{name}: {shorten(str(path))} holds no predictions; run the evaluation again")
    rows.sort(key=lambda row: row[0].question_id)
    return Answers(tuple(outcome for outcome, _ in rows), asked, np.array([100.0 * hit for _, hit in rows]))


def judge_run(
    name: str, path: Path, source: Source, asked: dict[str, Asked], outcomes: Sequence[Outcome]
) -> EvaluatedRun:
    """Return the run whose answers, in the order of question ids, are ``outcomes``."""
    right = np.array([is_picked_right(outcome) for outcome in outcomes])
    return EvaluatedRun(name, path, source, asked, score_outcomes(outcomes), right)


def is_picked_right(outcome: Outcome) -> bool:
    """Return whether the smallest entity id of the top tie group is a gold; see ``decides_claim`` for claims."""
    if outcome.gold_verdict is not None:
        return decides_claim(outcome)
    top = outcome.candidates[: end_of_tie(outcome.scores, 0)]
    return bool(top and outcome.answers) and min(top) in outcome.golds


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
