"""The figures of one system: how often it is right, what that costs, and what its answers rest on.

They stand in the same groups as all figures of a report: overall, by hops and by the number of answers. What is not
known (the price of a model that has none, the cost of a table that does not say) is left out, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kgqa_core.evaluation.compare import PairRow
from kgqa_core.evaluation.intervals import bootstrap_bounds, interval_names
from kgqa_core.evaluation.metrics import Mask
from kgqa_core.evaluation.report import ReportRow, make_figures, mean_row
from kgqa_core.evaluation.runs import EvaluatedRun, Floats
from kgqa_core.evaluation.system_runs import STATUSES, Record, SystemRun

MATCHES = ("partial", "complete", "hit")
"""partial: any gold is answered; complete: all are, others allowed; hit: as the published evaluator counts it, which is
not Hits@1. Exact match is ``em``. A true/false question matches only where the verdict is right and evidence decides
it."""
ENDS = ("abstained", "skipped", "failed", "stopped")
COSTS = ("calls", "tokens", "seconds", "money")
"""Logical: as if no call had been remembered. Tokens are read and given together."""
COUNT = "count."  # before the name of what a system counts itself: mean over the questions for which it did
OVERRULING = "explorer_first"  # no number: the entity that a model could overrule; see ``overrules``


def system_row(
    name: str, runs: Sequence[SystemRun], answerable: Mask | None = None, *, grouped: bool = True
) -> ReportRow:
    """Return the row of one system: of its one run, or the mean of its seeds.

    Args:
        name: of the row.
        runs: of its seeds.
        answerable: which questions [B] are; None: all.
        grouped: give the figures by hops and by the number of answers too.
    """
    rows = [_row(name, run, answerable, grouped) for run in runs]
    return rows[0] if len(rows) == 1 else mean_row(name, rows)


def _row(name: str, run: SystemRun, answerable: Mask | None, grouped: bool) -> ReportRow:
    scores = run.run.scores
    hops, answers = (scores.hop_groups(), scores.answer_groups()) if grouped else ({}, {})
    return ReportRow(
        name,
        "other",
        system_figures(run) | match_bounds(run),
        {count: system_figures(run, chosen) for count, chosen in hops.items()},
        {bucket: system_figures(run, chosen) for bucket, chosen in answers.items()},
        {} if answerable is None or answerable.all() else system_figures(run, answerable),
    )


def system_figures(run: SystemRun, chosen: Mask | None = None) -> dict[str, float]:
    """Return every figure of one run over all questions, or those ``chosen`` [B]; shares in percent."""
    some = np.ones(len(run.outcomes), dtype=bool) if chosen is None else chosen
    figures = dict(make_figures(run.run.scores, chosen))
    if not some.any():
        return figures
    figures |= dict(zip(MATCHES, matches_of(run)[some].mean(axis=0).tolist(), strict=True))
    if run.record is not None:
        correct = float(run.run.scores.values["hits1"][some].sum()) / 100
        figures |= end_figures(run.record, some)
        figures |= cost_figures(run.record, some, correct)
        figures |= evidence_figures(run.record, some)
    return figures


def matches_of(run: SystemRun) -> Floats:
    """Return ``MATCHES`` question by question [B, 3], in percent."""
    recall = run.run.scores.values["recall"]
    return np.stack([100.0 * (recall > 0), 100.0 * (recall >= 100), run.hit], axis=1)


def match_bounds(run: SystemRun) -> dict[str, float]:
    """Return the bounds of the intervals of ``MATCHES`` over all questions."""
    bounds = bootstrap_bounds(matches_of(run)).T.tolist()
    named = zip(MATCHES, bounds, strict=True)
    return {name: bound for match, own in named for name, bound in zip(interval_names(match), own, strict=True)}


def end_figures(record: Record, some: Mask) -> dict[str, float]:
    """Return the shares of questions that ended without an answer, and of those that a budget stopped."""
    status = np.array(record.status, dtype=object)[some]
    stopped = np.array([limit is not None for limit in record.stopped])[some]
    shares = {end: 100 * float((status == end).mean()) for end in STATUSES[1:]}
    return {**shares, "stopped": 100 * float(stopped.mean())}


def cost_figures(record: Record, some: Mask, correct: float) -> dict[str, float]:
    """Return what was spent per question, and per correct question where there is one.

    Args:
        record: of the run.
        some: questions [B], one at least.
        correct: how many of them are right: the sum of their Hits@1.
    """
    spent = record.spent
    totals = {
        "calls": spent["num_calls"],
        "tokens": spent["num_prompt_tokens"] + spent["num_tokens"],
        "seconds": spent["seconds"],
        "money": spent["money"],
    }
    figures: dict[str, float] = {}
    for name, column in totals.items():
        total = float(column[some].sum())
        if np.isnan(total):
            continue
        figures[f"{name}_per_question"] = total / int(some.sum())
        if correct > 0:
            figures[f"{name}_per_correct"] = total / correct
    return figures


def evidence_figures(record: Record, some: Mask) -> dict[str, float]:
    """Return how far answers are supported, and the means of what the system counted.

    ``supported_answers``: of all answers, names that nothing in the graph bears among them, the share whose path stands
    in the graph and ends in the answer. ``supported_questions``: of the questions answered, the share all of whose
    answers are supported.
    """
    supported, claimed = record.num_supported[some], record.num_claimed[some]
    figures: dict[str, float] = {}
    if claimed.sum():
        figures["supported_answers"] = 100 * float(supported.sum() / claimed.sum())
        figures["supported_questions"] = 100 * float((supported == claimed)[claimed > 0].mean())
    for name, column in record.counts.items():
        known = column[some & ~np.isnan(column)]
        if len(known) and name != OVERRULING:
            figures[f"{COUNT}{name}"] = float(known.mean())
    return figures


def lift_figures(against_direct: PairRow, run: EvaluatedRun, direct: EvaluatedRun) -> dict[str, float]:
    """Return what a system adds to the model's own knowledge, as ``direct`` shows it, in points.

    Beside the differences, with bounds, stands Hits@1 on the questions that ``direct`` gets right, and on the others.
    """
    figures: dict[str, float] = {}
    for metric, found in against_direct.metrics.items():
        name = f"lift.{metric}"
        figures[name] = found.difference
        figures |= dict(zip(interval_names(name), (found.low, found.high), strict=True))
    known = direct.picked_right > 0
    hits = run.scores.values["hits1"]
    for name, some in (("hits1.known", known), ("hits1.unknown", ~known)):
        if some.any():
            figures[name] = float(hits[some].mean())
    return figures
