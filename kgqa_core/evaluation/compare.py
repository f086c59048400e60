"""How sure a figure is: its bootstrap interval, and paired tests of runs that answered the same questions.

Intervals say how far a mean would move had other questions been asked. Percentile bootstrap: draw as many questions as
there are, with replacement, many times; the interval holds the middle 95 % of the means. A mean depends only on how
often each distinct row of values is drawn, and those counts follow a multinomial distribution: where few rows are
distinct, drawing the counts gives exactly the distribution that drawing questions gives, in time that does not grow
with their number.

A figure is called better or worse only where two things agree: the paired test is significant, corrected by Holm's
method for the number of pairs of runs, and the bootstrap interval of the difference lies on one side of zero. Anything
else is a tie. Hits@1 and EM are tested by McNemar's exact test, Hits@1 on one fixed pick per question, while the
figures and their difference are in expectation over ties; F1 is tested by the paired randomisation test, and so is the
mean of several seeds, which is neither right nor wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from kgqa_core.evaluation.metrics import (
    ANSWER_BUCKETS,
    CELLS_AT_ONCE,
    COUNT_COST,
    DIGITS,
    HOP_BUCKETS,
    INTERVAL_METRICS,
    Floats,
    Mask,
    answer_bucket,
    bootstrap_bounds,
    group_by,
    hop_bucket,
)
from kgqa_core.evaluation.runs import EvaluatedRun, require_comparable

Verdict = Literal["better", "worse", "tie"]
Breakdown = Literal["all", "hops", "answers"]

FLIPS = 10_000  # of signs, in the randomisation test
ROUNDING = 1e-9  # sums that differ by less, as a share of the largest possible, are equal
ALPHA = 0.05


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the exact two-sided p of McNemar's test (binomial with 1/2 on the questions that only one got right)."""
    num = only_first + only_second
    ways, fewer = 1, 0  # ways: num choose taken
    for taken in range(min(only_first, only_second) + 1):
        fewer += ways
        ways = ways * (num - taken) // (taken + 1)
    return float(min(1.0, 2 * fewer / 2**num))


def randomisation_test(differences: Floats, *, flips: int = FLIPS, seed: int = 0) -> float:
    """Return the two-sided p of the mean of paired ``differences`` [B]: the share of random signs that go as far.

    The observed signs count among those drawn, so p is at least 1 / (``flips`` + 1).
    """
    apart = np.sort(differences[differences != 0])
    if not len(apart):
        return 1.0
    total = float(apart.sum())
    least = abs(total) - ROUNDING * float(np.abs(apart).sum())
    random = np.random.default_rng(seed)
    # Of differences of one size only the number that keep their sign matters. It is binomial: where few sizes are
    # distinct, drawing the numbers gives exactly the distribution that drawing signs gives.
    sizes, counts = np.unique(np.abs(apart), return_counts=True)
    if COUNT_COST * len(sizes) < len(apart):
        kept = random.binomial(counts, 0.5, size=(flips, len(sizes)))
        as_far = int((np.abs((2 * kept - counts) @ sizes) >= least).sum())
        return (1 + as_far) / (1 + flips)
    as_far = 0
    step = max(1, CELLS_AT_ONCE // len(apart))
    for start in range(0, flips, step):
        kept = random.integers(2, size=(min(step, flips - start), len(apart)), dtype=np.int8)
        as_far += int((np.abs(2 * (kept.astype(np.float64) @ apart) - total) >= least).sum())
    return (1 + as_far) / (1 + flips)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return each p as corrected for there being several (Holm's step-down method), in the order given."""
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


@dataclass(frozen=True, slots=True)
class Scope:
    """Some of the questions."""

    by: Breakdown
    bucket: str  # "all", or of ``HOP_BUCKETS`` or ``ANSWER_BUCKETS``
    chosen: Mask  # [B]


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of two runs, in percent."""

    first: float
    second: float
    difference: float  # first - second
    low: float  # of the 95 % interval of the difference
    high: float
    only_first: int  # questions on which the first did better; of Hits@1: that only its pick was right
    only_second: int
    p: float
    p_holm: float  # corrected for the number of pairs of runs
    verdict: Verdict  # on the first


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two runs on the questions of one scope."""

    first: str  # names of the runs
    second: str
    by: Breakdown
    bucket: str
    n: int
    metrics: dict[str, Difference]  # by name, as in ``INTERVAL_METRICS``


def compare_runs(runs: Sequence[EvaluatedRun]) -> list[PairRow]:
    """Compare every run with every later one: over all questions, then by hops and by the number of answers.

    Raises ``InputError`` where questions or graphs differ.
    """
    require_comparable(runs)
    return [row for scope in comparison_scopes(runs) for row in compare_in_scope(runs, scope)]


def comparison_scopes(runs: Sequence[EvaluatedRun]) -> Iterator[Scope]:
    """Yield all questions, then each bucket of hops and of answers, where there is more than one bucket.

    Runs may have searched for unknown numbers of hops; the first that knows a question's is believed.
    """
    known = zip(*(run.scores.hops for run in runs), strict=True)
    hops = [next((count for count in counts if count is not None), None) for counts in known]
    yield Scope("all", "all", np.ones(len(hops), dtype=bool))
    by_hops = group_by([hop_bucket(count) for count in hops], HOP_BUCKETS)
    by_answers = group_by([answer_bucket(num) for num in runs[0].scores.num_answers], ANSWER_BUCKETS)
    if len(by_hops) > 1:
        yield from (Scope("hops", bucket, chosen) for bucket, chosen in by_hops.items())
    if len(by_answers) > 1:
        yield from (Scope("answers", bucket, chosen) for bucket, chosen in by_answers.items())


def compare_in_scope(runs: Sequence[EvaluatedRun], scope: Scope) -> list[PairRow]:
    """Compare all pairs of runs on the questions of one scope; they are what Holm's correction is for."""
    rows = [compare_pair(first, second, scope) for first, second in combinations(runs, 2)]
    for metric in INTERVAL_METRICS:
        correct_for_number(rows, metric)
    return rows


def correct_for_number(rows: Sequence[PairRow], metric: str) -> None:
    """Set, in place, p and verdict of one metric to what they are where all ``rows`` were tested (Holm's method)."""
    for row, p_holm in zip(rows, holm([row.metrics[metric].p for row in rows]), strict=True):
        found = row.metrics[metric]
        row.metrics[metric] = replace(found, p_holm=p_holm, verdict=judge(p_holm, found.low, found.high))


def compare_pair(first: EvaluatedRun, second: EvaluatedRun, scope: Scope) -> PairRow:
    """Compare two runs on the questions of one scope, as if no others were compared."""
    chosen = scope.chosen
    columns = [first.scores.values[metric] - second.scores.values[metric] for metric in INTERVAL_METRICS]
    differences = np.stack(columns, axis=1)[chosen]
    bounds = bootstrap_bounds(differences)
    picks = first.picked_right[chosen].astype(float) - second.picked_right[chosen]
    metrics: dict[str, Difference] = {}
    for place, metric in enumerate(INTERVAL_METRICS):
        tested = picks if metric == "hits1" else differences[:, place]
        only_first, only_second = int((tested > 0).sum()), int((tested < 0).sum())
        yes_or_no = metric != "f1" and len(np.unique(np.abs(tested[tested != 0]))) < 2
        p = mcnemar(only_first, only_second) if yes_or_no else randomisation_test(tested)
        low, high = bounds[:, place].tolist()
        metrics[metric] = Difference(
            first=float(first.scores.values[metric][chosen].mean()),
            second=float(second.scores.values[metric][chosen].mean()),
            difference=round(float(differences[:, place].mean()), DIGITS) + 0.0,  # no -0.0
            low=low,
            high=high,
            only_first=only_first,
            only_second=only_second,
            p=p,
            p_holm=p,
            verdict=judge(p, low, high),
        )
    return PairRow(first.name, second.name, scope.by, scope.bucket, int(chosen.sum()), metrics)


def judge(p: float, low: float, high: float) -> Verdict:
    """Return what to call a difference: a tie unless the test and the interval agree that there is one."""
    if p >= ALPHA or low <= 0 <= high:
        return "tie"
    return "better" if low > 0 else "worse"
