"""The figures of one row of a report: how often a system is right, what that costs, and what its answers rest on.

They stand in the same groups everywhere: overall, by hops and by the number of answers. What is not known (the price of
a model that has none, the cost of a table that does not say) is left out, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from kgqa_core.evaluation.metrics import Floats, Mask, QuestionScores, interval_figures, named_bounds, trust_figures
from kgqa_core.evaluation.runs import STATUSES, EvaluatedRun, Record

Role = Literal["learned", "seed", "template control", "ceiling", "other"]
"""``seed``: one of several runs of a learned system, whose mean is the ``learned`` row that is judged."""
OVERALL = "all"
ANSWERABLE = "answerable only"  # questions with an answer in the graph; the others stay in every other figure
MATCHES = ("partial", "complete", "hit")
"""partial: any gold is answered; complete: all are, others allowed; hit: as the published evaluator counts it, which is
not Hits@1. Exact match is ``em``. A true/false question matches only where the verdict is right and evidence decides
it."""
ENDS = (*STATUSES[1:], "stopped")
COSTS = ("calls", "tokens", "seconds", "money")
"""Logical: as if no call had been remembered. Tokens are read and given together."""
COUNT = "count."  # before the name of what a system counts itself: mean over the questions for which it did
EXPLORER_FIRST = "explorer_first"  # no number: the entity that a model could overrule; see ``LmVsExplorer``

Figures = Mapping[str, float]
"""``n``, the mean of every metric in percent, and the bounds of those that have an interval (``hits1.low``)."""


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One system's figures."""

    system: str
    role: Role
    overall: Figures
    by_hops: Mapping[str, Figures] = field(default_factory=dict)
    by_answers: Mapping[str, Figures] = field(default_factory=dict)  # by the number of golds
    answerable: Figures = field(default_factory=dict)  # of ``ANSWERABLE``; empty where all questions are

    def figures(self, hops: str) -> Figures | None:
        """Return the figures of one number of hops, of ``all`` or ``answerable only``; ``None`` without any."""
        if hops == ANSWERABLE:
            return self.answerable or None
        return self.overall if hops == OVERALL else self.by_hops.get(hops)


def report_row(
    system: str,
    role: Role,
    scores: QuestionScores,
    answerable: Mask | None = None,
    *,
    figures_of: Callable[[Mask | None], Figures] | None = None,
) -> ReportRow:
    """Return the row of one system's scores; ``answerable``: which questions [B] are (None: all).

    ``figures_of`` works out the figures of all questions (None) or some [B]; by default ``make_figures``.
    """
    figures_of = figures_of or partial(make_figures, scores)
    return ReportRow(
        system,
        role,
        figures_of(None),
        {hops: figures_of(chosen) for hops, chosen in scores.hop_groups().items()},
        {bucket: figures_of(chosen) for bucket, chosen in scores.answer_groups().items()},
        {} if answerable is None or answerable.all() else figures_of(answerable),
    )


def make_figures(scores: QuestionScores, chosen: Mask | None = None) -> Figures:
    """Return the means and the bounds of their intervals, over all questions or those ``chosen`` [B]."""
    return {**scores.summary(chosen), **interval_figures(scores.values, chosen)}


def mean_row(system: str, rows: Sequence[ReportRow]) -> ReportRow:
    """Return the mean of several runs of one system (its seeds) as a row of its own, over what all of them know.

    Bounds of intervals are averaged too: how far the figure of one run would move with other questions.
    """

    def mean(parts: Sequence[Any]) -> Any:
        if not isinstance(parts[0], Mapping):
            return sum(parts) / len(parts)
        return {name: mean([one[name] for one in parts]) for name in parts[0] if all(name in one for one in parts)}

    kinds = ("overall", "by_hops", "by_answers", "answerable")
    return ReportRow(system, rows[0].role, *(mean([getattr(row, kind) for row in rows]) for kind in kinds))


def system_row(
    name: str, runs: Sequence[EvaluatedRun], answerable: Mask | None = None, *, grouped: bool = True
) -> ReportRow:
    """Return the row of one system: of its one run, or the mean of its seeds; ``answerable``: see ``report_row``.

    Where ``grouped``, it has the figures by hops and by the number of answers too.
    """
    rows = [
        report_row(name, "other", run.scores, answerable, figures_of=partial(system_figures, run))
        if grouped
        else ReportRow(name, "other", system_figures(run))
        for run in runs
    ]
    return rows[0] if len(rows) == 1 else mean_row(name, rows)


def system_figures(run: EvaluatedRun, chosen: Mask | None = None) -> dict[str, float]:
    """Return every figure of one run over those ``chosen`` [B], or over all with bounds of ``MATCHES``, in percent."""
    some = np.ones(len(run.outcomes), dtype=bool) if chosen is None else chosen
    figures = dict(make_figures(run.scores, chosen))
    if some.any():
        figures |= dict(zip(MATCHES, _matches(run)[some].mean(axis=0).tolist(), strict=True))
        if run.record is not None:
            figures |= _record_figures(run.record, some, float(run.scores.values["hits1"][some].sum()) / 100)
            figures |= trust_figures(run.record.confidence[some], run.picked_right[some].astype(np.float64))
    return figures if chosen is not None else figures | named_bounds(MATCHES, _matches(run))


def _matches(run: EvaluatedRun) -> Floats:
    """Return ``MATCHES`` question by question [B, 3], in percent."""
    recall, claims = run.scores.values["recall"], [one.verdict is not None for one in run.asked.values()]
    return np.stack([100.0 * (recall > 0), 100.0 * (recall >= 100), np.where(claims, recall, run.hit)], axis=1)


def _record_figures(record: Record, some: Mask, correct: float) -> dict[str, float]:
    """Return how questions ended, what they cost and how far answers are supported, over ``some`` questions [B].

    Costs are per question, and per ``correct`` question (the sum of their Hits@1). An answer is supported where its
    path stands in the graph and ends in it, a question where all its answers are; names that nothing bears never are.
    """
    status = np.array(record.status, dtype=object)[some]
    figures = {end: 100 * float((status == end).mean()) for end in STATUSES[1:]}
    figures["stopped"] = 100 * float(np.array([limit is not None for limit in record.stopped])[some].mean())
    spent = record.spent
    columns = (spent["num_calls"], spent["num_prompt_tokens"] + spent["num_tokens"], spent["seconds"], spent["money"])
    for name, column in zip(COSTS, columns, strict=True):
        total = float(column[some].sum())
        if not np.isnan(total):
            figures[f"{name}_per_question"] = total / int(some.sum())
            if correct > 0:
                figures[f"{name}_per_correct"] = total / correct
    supported, claimed = record.num_supported[some], record.num_claimed[some]
    if claimed.sum():
        figures["supported_answers"] = 100 * float(supported.sum() / claimed.sum())
        figures["supported_questions"] = 100 * float((supported == claimed)[claimed > 0].mean())
    for name, column in record.counts.items():
        known = column[some & ~np.isnan(column)]
        if len(known) and name != EXPLORER_FIRST:
            figures[f"{COUNT}{name}"] = float(known.mean())
    return figures
