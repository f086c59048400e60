"""Paired comparison of runs that answered the same questions: differences, their intervals, and whether they are noise.

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

from kgqa_core.evaluation.intervals import DIGITS, INTERVAL_METRICS, bootstrap_bounds, holm, mcnemar, randomisation_test
from kgqa_core.evaluation.metrics import ANSWER_BUCKETS, HOP_BUCKETS, Mask, answer_bucket, group_by, hop_bucket
from kgqa_core.evaluation.runs import EvaluatedRun, require_comparable

Verdict = Literal["better", "worse", "tie"]
Breakdown = Literal["all", "hops", "answers"]
ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Scope:
    """Some of the questions."""

    by: Breakdown
    bucket: str  # "all", or of ``buckets.HOP_BUCKETS`` or ``buckets.ANSWER_BUCKETS``
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
    metrics: dict[str, Difference]  # by name, as in ``intervals.INTERVAL_METRICS``


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
        corrected = holm([row.metrics[metric].p for row in rows])
        for row, p_holm in zip(rows, corrected, strict=True):
            found = row.metrics[metric]
            row.metrics[metric] = replace(found, p_holm=p_holm, verdict=judge(p_holm, found.low, found.high))
    return rows


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
