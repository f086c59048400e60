"""What the answers to one question are worth: strictly by entity id, and as the published RoG evaluator counts.

Strict figures are Hits@k in expectation over ties and set metrics; they are broken down by the number of hops and of
answers. The published evaluator (used by RoG and GNN-RAG) counts a gold as found where it is a substring of the
prediction; its figures are met to the last digit, under their own names.
"""

from __future__ import annotations

import re
import string
import unicodedata
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import comb
from operator import neg
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kgqa_core.errors import InputError
from kgqa_core.types import Prediction, Question, check_ranking

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

CALIBRATION_BINS = 10  # equally wide
METRICS = ("hits1", "hits3", "hits10", "f1", "precision", "recall", "em", "coverage", "mean_top_tie")
ROG_METRICS = ("accuracy", "hit", "hit1", "f1", "precision", "recall")
TIE_TOLERANCE = 1e-4
UNKNOWN_HOPS = "unknown"  # neither does the dataset say how many hops, nor is a gold near enough to the topics
HOP_BUCKETS = ("1", "2", ">=3", UNKNOWN_HOPS)
ANSWER_BUCKETS = ("0", "1", "2-4", "5-9", ">=10")


def hop_bucket(hops: int | None) -> str:
    """Return the member of ``HOP_BUCKETS`` that a number of hops belongs to; ``None`` is an unknown number."""
    if hops is None:
        return UNKNOWN_HOPS
    return str(hops) if hops < 3 else ">=3"


def answer_bucket(num_answers: int) -> str:
    """Return the member of ``ANSWER_BUCKETS`` that a number of golds belongs to; a bare claim may have none."""
    if num_answers < 2:
        return str(num_answers)
    return "2-4" if num_answers < 5 else "5-9" if num_answers < 10 else ">=10"


class Outcome(NamedTuple):
    """One question beside what was answered to it: all that the metrics need to know of the two."""

    question_id: str
    hops: int | None
    golds: frozenset[int]  # entity ids
    candidates: Sequence[int]  # entity ids, best first
    scores: Sequence[float]  # parallel to candidates, non-increasing
    answers: frozenset[int]  # entity ids
    covered: bool
    evident: Sequence[bool]  # does the candidate at this place have an evidence path?
    claim: int | None = None
    verdict: bool | None = None  # what was answered
    gold_verdict: bool | None = None  # what is right; None: not a true/false question


@dataclass(frozen=True, slots=True)
class QuestionScores:
    """Metrics question by question, in the order of the questions."""

    question_ids: tuple[str, ...]
    hops: tuple[int | None, ...]
    num_answers: tuple[int, ...]  # golds
    values: dict[str, Floats]  # per name in METRICS [B], percent (mean_top_tie: candidates)

    def summary(self, chosen: Mask | None = None) -> dict[str, float]:
        """Return ``n`` and the mean of every metric, of all questions or those ``chosen`` [B]; of none, zeros."""
        picked = self.values if chosen is None else {name: column[chosen] for name, column in self.values.items()}
        num = len(self.question_ids) if chosen is None else int(chosen.sum())
        return {"n": num, **{name: float(picked[name].mean()) if num else 0.0 for name in METRICS}}

    def hop_groups(self) -> dict[str, Mask]:
        """Return which questions [B] have each number of hops, ascending; ``unknown`` last."""
        known = sorted({hops for hops in self.hops if hops is not None})
        names = [UNKNOWN_HOPS if hops is None else str(hops) for hops in self.hops]
        return group_by(names, [*map(str, known), UNKNOWN_HOPS])

    def answer_groups(self) -> dict[str, Mask]:
        """Return which questions [B] have each number of answers, in the order of ``ANSWER_BUCKETS``."""
        return group_by([answer_bucket(num) for num in self.num_answers], ANSWER_BUCKETS)


def group_by(names: Sequence[str], order: Sequence[str]) -> dict[str, Mask]:
    """Return which questions [B] bear each name, for the names in ``order`` that any bears."""
    column, known = np.array(names, dtype=object), set(names)
    return {name: column == name for name in order if name in known}


def score_predictions(questions: Sequence[Question], predictions: Iterable[Prediction]) -> QuestionScores:
    """Score ``predictions``, one per question and in the order of ``questions``.

    An empty prediction counts 0 in every metric. Raises ``InputError`` as ``check_ranking`` and ``pair_outcome`` do.
    """
    return score_outcomes([pair_outcome(*pair) for pair in zip(questions, predictions, strict=True)])


def join_scores(parts: Sequence[QuestionScores]) -> QuestionScores:
    """Return the scores of several groups of questions, at least one, as those of all, in order."""
    return QuestionScores(
        question_ids=tuple(chain.from_iterable(part.question_ids for part in parts)),
        hops=tuple(chain.from_iterable(part.hops for part in parts)),
        num_answers=tuple(chain.from_iterable(part.num_answers for part in parts)),
        values={name: np.concatenate([part.values[name] for part in parts]) for name in METRICS},
    )


def pair_outcome(question: Question, given: Prediction) -> Outcome:
    """Put one question beside its prediction. Raises ``InputError`` where it answers another question."""
    if given.question_id != question.id:
        raise InputError(f"the prediction for question {given.question_id!r} stands in place of {question.id!r}'s")
    golds, answers, evident = frozenset(question.answers), frozenset(given.answers), tuple(map(bool, given.paths))
    answered = (given.candidates, given.scores, answers, given.covered, evident)
    return Outcome(question.id, question.hops, golds, *answered, question.claim, given.verdict, question.verdict)


def score_outcomes(outcomes: Sequence[Outcome]) -> QuestionScores:
    """Score every outcome; see ``score_outcome``."""
    shares = np.array([score_outcome(outcome) for outcome in outcomes], dtype=np.float64).reshape(-1, len(METRICS))
    scale = np.array([1.0 if name == "mean_top_tie" else 100.0 for name in METRICS])
    columns = (shares * scale).T
    return QuestionScores(
        question_ids=tuple(outcome.question_id for outcome in outcomes),
        hops=tuple(outcome.hops for outcome in outcomes),
        num_answers=tuple(len(outcome.golds) for outcome in outcomes),
        values={name: columns[place] for place, name in enumerate(METRICS)},
    )


def score_outcome(outcome: Outcome) -> tuple[float, ...]:
    """Return one question's metrics as shares, in the order of ``METRICS``.

    Without an answer every hit is 0, whatever was found on the way: that is coverage. A true/false question gets 1 or
    0 in every hit and set metric: see ``decides_claim``. Raises ``InputError`` as ``check_ranking`` does.
    """
    check_ranking(outcome.question_id, outcome.candidates, outcome.scores)
    top_tie, *hits = _rank_ties(outcome) if outcome.answers else (0.0,) * 4
    if outcome.gold_verdict is not None:
        right = float(decides_claim(outcome))
        return (right,) * 7 + (float(outcome.covered), top_tie)
    precision, recall, f1, exact = score_sets(outcome.answers, outcome.golds)
    return (*hits, f1, precision, recall, exact, float(outcome.covered), top_tie)


def _rank_ties(outcome: Outcome) -> tuple[float, float, float, float]:
    """Return the size of the top tie group, and the expected hits at 1, 3 and 10.

    Only the first tie group with a gold counts: wholly inside the first k it gives 1, cut by k it leaves no place for
    the groups after it.
    """
    # Scores are kept as 32-bit floats at rest: round first, so that memory and file give the same ties.
    scores = array("f", outcome.scores)
    top_end = end_of_tie(scores, 0)
    start, end = 0, top_end
    while start < min(10, len(scores)):
        num_golds = sum(candidate in outcome.golds for candidate in outcome.candidates[start:end])
        if num_golds:
            hit1, hit3, hit10 = (expected_hit(end - start, num_golds, k - start) for k in (1, 3, 10))
            return float(top_end), hit1, hit3, hit10
        start, end = end, end_of_tie(scores, end)
    return float(top_end), 0.0, 0.0, 0.0


def end_of_tie(scores: Sequence[float], start: int) -> int:
    """Return where the tie group that starts at ``start`` ends, by bisection over non-increasing ``scores``."""
    if start >= len(scores):
        return start
    lowest = scores[start] - TIE_TOLERANCE * abs(scores[start])
    return bisect_right(scores, -lowest, start + 1, key=neg)


def expected_hit(num_tied: int, num_golds: int, places: int) -> float:
    """Return the probability that one of ``num_golds`` among ``num_tied`` lands in the first ``places``.

    The order inside the tie is uniformly random: 1 - C(tied - golds, places) / C(tied, places).
    """
    taken = min(max(places, 0), num_tied)
    if taken in (0, num_tied):
        return float(bool(taken and num_golds))
    ways = comb(num_tied, taken)
    return (ways - comb(num_tied - num_golds, taken)) / ways


def score_sets(answers: Set[object], golds: Set[object]) -> tuple[float, float, float, float]:
    """Return precision, recall, F1 and exact match of an answer set as shares; empty sets score 0."""
    right = len(answers & golds)
    if not right:
        return 0.0, 0.0, 0.0, 0.0
    f1 = 2 * right / (len(answers) + len(golds))
    return right / len(answers), right / len(golds), f1, float(answers == golds)


def decides_claim(outcome: Outcome) -> bool:
    """Return whether a true/false question is answered right *and* by evidence.

    A true claim needs the claimed entity in the answer set with an evidence path; a false one needs an answer set
    without it, of which at least one member has an evidence path. Anything else is a lucky guess.
    """
    if outcome.verdict is None or outcome.verdict != outcome.gold_verdict:
        return False
    shown = {entity for entity, path in zip(outcome.candidates, outcome.evident, strict=False) if path}
    if outcome.verdict:
        return outcome.claim in shown & outcome.answers
    return outcome.claim not in outcome.answers and bool(shown & outcome.answers)


_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


@lru_cache(maxsize=65_536)
def normalise_published(text: str) -> str:
    """Return ``text`` as the published RoG evaluator compares it.

    Lower case; ASCII punctuation removed; the words a, an and the dropped; white space collapsed. The published code
    also means to drop ``<pad>`` but has removed the angle brackets by then, so ``pad`` stays: kept so, because its
    figures are to be met to the last digit. A name of nothing but punctuation or articles becomes the empty string.
    """
    lowered = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", lowered).split())


@lru_cache(maxsize=65_536)
def normalise_name(text: str) -> str:
    """Return ``text`` for strict equality of names: composed characters, no case, white space collapsed.

    Punctuation and articles stay, since they tell entities apart ("It" and "It!", "Thing" and "The Thing").
    """
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def score_rog_question(prediction: str | Sequence[str], golds: Sequence[str]) -> tuple[float, ...]:
    """Return the published evaluator's six figures of one question as shares, in the order of ``ROG_METRICS``.

    A prediction in text is stripped and split at newlines, so an empty one is one empty line. Of a list the distinct
    members are the lines, the most frequent first and ties in order of appearance, so an empty list has none.
    A question without golds scores 0 everywhere (the published code divides by zero there).
    """
    if not golds:
        return (0.0,) * len(ROG_METRICS)
    if isinstance(prediction, str):
        lines = prediction.strip().split("\n")
    else:
        lines = [line for line, _ in Counter(prediction).most_common()]
    normalised = [normalise_published(gold) for gold in golds]
    whole = normalise_published(" ".join(lines))
    first = normalise_published(lines[0]) if lines else ""
    found = sum(gold in whole for gold in normalised)
    hit1 = float(any(gold in first for gold in normalised))
    accuracy = found / len(golds)
    precision = found / len(lines) if lines else 0.0
    recall = accuracy if lines else 0.0
    both = precision + recall
    f1 = 2 * precision * recall / both if both else 0.0
    return accuracy, float(found > 0), hit1, f1, precision, recall


def is_rog_hit(names: Sequence[str], golds: Sequence[str]) -> bool:
    """Return whether one question is a Hit, as ``score_rog_question`` says of the list ``names``, but sooner."""
    if not set(golds).isdisjoint(names):  # a gold among the lines is a part of all of them joined
        return True
    return bool(score_rog_question(names, golds)[ROG_METRICS.index("hit")])


INTERVAL_METRICS = ("hits1", "f1", "em")
CONFIDENCE = 0.95
RESAMPLES = 2000
SEED = 0
CELLS_AT_ONCE = 2**20  # numbers drawn at once
COUNT_COST = 16  # times what it takes to draw a question, it takes to draw a count
DIGITS = 6  # of a bound: the last digits of a sum depend on the processor, and equal input shall give equal bytes


def resampled_means(values: Floats, *, resamples: int = RESAMPLES) -> Floats:
    """Return the means [resamples, M] of ``values`` [B, M] over B rows drawn with replacement; B is at least 1."""
    num = len(values)
    rows, counts = np.unique(values, axis=0, return_counts=True)
    by_counts = COUNT_COST * len(rows) < num
    columns = np.repeat(rows, counts, axis=0).T.copy()  # sorted, so that the order of the questions changes nothing
    random = np.random.default_rng(SEED)
    means = np.empty((resamples, values.shape[1]))
    step = max(1, CELLS_AT_ONCE // (len(rows) if by_counts else num))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        if by_counts:
            means[start : start + size] = random.multinomial(num, counts / num, size=size) @ rows / num
        else:
            drawn = random.integers(num, size=(size, num))
            for place, column in enumerate(columns):  # one by one: rows of a table are several times slower to gather
                means[start : start + size, place] = column.take(drawn).mean(axis=1)
    return means


def bootstrap_bounds(values: Floats, *, resamples: int = RESAMPLES) -> Floats:
    """Return the lower and upper bounds [2, M] of the means of the columns [B, M], by the same draws; 0 if B is 0."""
    if not len(values):
        return np.zeros((2, values.shape[1]))
    tail = (1 - CONFIDENCE) / 2
    bounds = np.quantile(resampled_means(values, resamples=resamples), [tail, 1 - tail], axis=0)
    return np.round(bounds, DIGITS) + 0.0  # no -0.0


def interval_names(metric: str) -> tuple[str, str]:
    """Return the names of a metric's bounds, as they stand beside it in a summary: ``hits1.low`` and ``hits1.high``."""
    return f"{metric}.low", f"{metric}.high"


def interval_figures(values: Mapping[str, Floats], chosen: Mask | None = None) -> dict[str, float]:
    """Return the bounds of ``INTERVAL_METRICS`` over all questions or those ``chosen`` [B], of ``values`` by name."""
    columns = np.stack([values[name] for name in INTERVAL_METRICS], axis=1)
    return named_bounds(INTERVAL_METRICS, columns if chosen is None else columns[chosen])


def named_bounds(metrics: Sequence[str], values: Floats) -> dict[str, float]:
    """Return the bounds of ``values`` [B, M] by name, as they stand in a summary: ``hits1.low`` and ``hits1.high``."""
    bounds = zip(metrics, bootstrap_bounds(values).T.tolist(), strict=True)
    return {end: bound for metric, own in bounds for end, bound in zip(interval_names(metric), own, strict=True)}


# ------ How well a confidence tells right answers from wrong ones.


def risk_area(confidence: Floats, right: Floats) -> float:
    """Return the area under the risk-coverage curve (AURC), percent: the mean share of wrong over giving 1, 2, ... all.

    Equal confidences are in random order; what has no confidence comes last, and is ``right`` [B] all the same or not.
    """
    _, group = np.unique(np.where(np.isnan(confidence), np.inf, -confidence), return_inverse=True)
    expected = (np.bincount(group, weights=1.0 - right) / np.bincount(group))[np.sort(group)]
    return 100 * float((np.cumsum(expected) / np.arange(1, len(right) + 1)).mean())


def trust_figures(confidence: Floats, right: Floats) -> dict[str, float]:
    """Return how well confidence tells right answers [B] from wrong ones; nothing where nobody told any."""
    if np.isnan(confidence).all():
        return {}
    return {
        "aurc": risk_area(confidence, right),
        "aurc_best": risk_area(right, right),
        "calibration_error": calibration_error(confidence, right),
    }


def calibration_error(probability: Floats, right: Floats) -> float:
    """Return the expected calibration error (Guo et al., 2017), percent: how far confidence is from accuracy."""
    known = ~np.isnan(probability)
    told, hits = probability[known], right[known]
    if not len(told):
        return 0.0
    bins = np.minimum((told * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    return 100 * float(np.abs(np.bincount(bins, weights=told - hits, minlength=CALIBRATION_BINS)).sum()) / len(told)
