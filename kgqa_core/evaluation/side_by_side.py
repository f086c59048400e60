"""The figures of one system: how often it is right, what that costs, and what its answers rest on.

They stand in the same groups as all figures of a report: overall, by hops and by the number of answers. What is not
known (the price of a model that has none, the cost of a table that does not say) is left out, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kgqa_core.evaluation.compare import PairRow, Scope, compare_pair, judge
from kgqa_core.evaluation.intervals import INTERVAL_METRICS, bootstrap_bounds, holm, interval_names
from kgqa_core.evaluation.lm_vs_explorer import NOBODY, Decision, Overrules, count_overrules
from kgqa_core.evaluation.metrics import Mask
from kgqa_core.evaluation.predictions import STAND_INS, SystemSource
from kgqa_core.evaluation.report import ReportRow, make_figures, mean_row
from kgqa_core.evaluation.runs import (
    STATUSES,
    EvaluatedRun,
    Floats,
    Record,
    SystemRun,
    mean_run,
    require_comparable,
    with_direct,
)

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


# ------ Systems side by side: who is better beyond noise, what the language model adds, and what ...


DIRECT = "direct"
SHOWN_VALUE = 40  # characters of a setting, where it tells rows apart


@dataclass(frozen=True, slots=True)
class Entrant:
    """One row of the comparison: a system and whoever answered for it, over all its seeds."""

    name: str
    runs: tuple[SystemRun, ...]  # one per seed
    mean: EvaluatedRun  # over the seeds, question by question
    row: ReportRow
    lift: Mapping[str, float] = field(default_factory=dict)  # over ``direct``, see ``systems.lift_figures``

    @property
    def about(self) -> SystemSource | None:
        """Return who answered; None for a table that is no system's."""
        return self.runs[0].about

    @property
    def is_stand_in(self) -> bool:
        """Was the language model one that knows nothing?"""
        return self.about is not None and self.about.answered_by in STAND_INS


@dataclass(frozen=True, slots=True)
class Merit:
    """Whether a language model adds anything: its system against the same with models that know nothing."""

    system: str  # name of the row
    hits1: float
    against: dict[str, float]  # Hits@1 by stand-in
    p_holm: dict[str, float]  # by stand-in
    adds: bool  # better than both


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The whole comparison."""

    num_questions: int
    entrants: list[Entrant]
    best: dict[str, frozenset[str]]  # metric -> rows within noise of the best figure, the best among them
    pairs: list[PairRow]  # every paired test that a statement rests on; p_holm as in its family
    merits: list[Merit]
    united: list[ReportRow]  # X + direct, a row per system
    overrules: list[tuple[str, Overrules]]  # with the name of the row


def side_by_side(groups: Mapping[str, Sequence[SystemRun]]) -> SideBySide:
    """Compare systems; ``groups`` holds the runs of each row (its seeds) by name, in order of display.

    Raises:
        InputError: questions or graphs differ; the message says how.
    """
    require_comparable([run.run for runs in groups.values() for run in runs])
    entrants = [
        Entrant(name, tuple(runs), mean_run(name, [run.run for run in runs]), system_row(name, runs))
        for name, runs in groups.items()
    ]
    tests = _Tests()
    entrants = [_lifted(entrant, entrants, tests) for entrant in entrants]
    best = {metric: _best(metric, entrants, tests) for metric in INTERVAL_METRICS}
    merits = _merits(entrants, tests)
    return SideBySide(
        num_questions=len(entrants[0].mean.asked),
        entrants=entrants,
        best=best,
        pairs=tests.rows(),
        merits=merits,
        united=[row for entrant in entrants for row in _united(entrant, entrants)],
        overrules=[(entrant.name, row) for entrant in entrants for row in _overrules(entrant)],
    )


def group_runs(runs: Sequence[SystemRun]) -> dict[str, list[SystemRun]]:
    """Return the runs of each row by its name, in order: seeds of one system and setting belong together.

    A model that was tuned anew for each seed is another by content each time; but where two runs have the same seed,
    each model has a row of its own. Rows of one name are told apart by what differs: ``etd [num_candidates 5]``.
    """
    rows: dict[str, list[SystemRun]] = {}
    seeds = Counter(_row_key(run, with_seed=True) for run in runs)
    for run in runs:
        several = seeds[_row_key(run, with_seed=True)] > 1
        model = run.about.model if run.about is not None and several else ""
        rows.setdefault(f"{_row_key(run)}{model}", []).append(run)
    alike: dict[str, list[str]] = {}
    for key, own in rows.items():
        alike.setdefault(own[0].about.row if own[0].about is not None else own[0].name, []).append(key)
    names = {
        key: name if len(keys) == 1 else f"{name} [{_difference(rows[key][0], [rows[one][0] for one in keys])}]"
        for name, keys in alike.items()
        for key in keys
    }
    return {names[key]: own for key, own in rows.items()}


def _row_key(run: SystemRun, *, with_seed: bool = False) -> str:
    """Return what runs of one row share, apart from the model; a table that is no system's shares nothing."""
    if run.about is None:
        return str(run.run.path)
    return repr(replace(run.about, seed=run.about.seed if with_seed else None, model=""))


def _difference(run: SystemRun, others: Sequence[SystemRun]) -> str:
    """Return in words what tells a run from others of the same name."""
    known = [_described(other) for other in others]
    own = _described(run)
    differing = [name for name in own if any(other.get(name) != own[name] for other in known)]
    return ", ".join(f"{name} {own[name]}" for name in differing)


def _described(run: SystemRun) -> dict[str, str]:
    if run.about is None:
        return {"file": str(run.run.path)}
    about = {**run.about.settings, "model": run.about.model, "prompts": run.about.prompts}
    return {name: str(value)[:SHOWN_VALUE] for name, value in about.items()}


class _Tests:
    """The paired tests over all questions, each done once however many statements rest on it."""

    def __init__(self) -> None:
        self._done: dict[tuple[str, str], PairRow] = {}

    def of(self, first: Entrant, second: Entrant) -> PairRow:
        """Return the test of two rows, not corrected for others."""
        key = (first.name, second.name)
        if key not in self._done:
            everything = np.ones(len(first.mean.asked), dtype=bool)
            self._done[key] = compare_pair(first.mean, second.mean, Scope("all", "all", everything))
        return self._done[key]

    def corrected(self, pairs: Sequence[tuple[Entrant, Entrant]], metric: str) -> list[PairRow]:
        """Return the tests of some pairs, those of ``metric`` corrected for their number."""
        rows = [self.of(*pair) for pair in pairs]
        for row, p_holm in zip(rows, holm([row.metrics[metric].p for row in rows]), strict=True):
            found = row.metrics[metric]
            row.metrics[metric] = replace(found, p_holm=p_holm, verdict=judge(p_holm, found.low, found.high))
        return rows

    def rows(self) -> list[PairRow]:
        return list(self._done.values())


def _best(metric: str, entrants: Sequence[Entrant], tests: _Tests) -> frozenset[str]:
    """Return the rows whose figure is within noise of the highest; stand-ins are no rivals."""
    rivals = [entrant for entrant in entrants if not entrant.is_stand_in]
    if len(rivals) < 2:
        return frozenset()
    first = max(rivals, key=lambda entrant: entrant.row.overall[metric])
    others = [rival for rival in rivals if rival is not first]
    rows = tests.corrected([(first, other) for other in others], metric)
    tied = {other.name for other, row in zip(others, rows, strict=True) if row.metrics[metric].verdict != "better"}
    return frozenset({first.name, *tied})


def _lifted(entrant: Entrant, entrants: Sequence[Entrant], tests: _Tests) -> Entrant:
    """Return a row with its lift over ``direct``, where that was answered by the same language model."""
    direct = _direct_of(entrant, entrants)
    if direct is None:
        return entrant
    return replace(entrant, lift=lift_figures(tests.of(entrant, direct), entrant.mean, direct.mean))


def _direct_of(entrant: Entrant, entrants: Sequence[Entrant]) -> Entrant | None:
    """Return the row of ``direct`` to compare with: of the same model, or the only one for a system that asks none."""
    if entrant.about is None or entrant.about.system == DIRECT:
        return None
    rows = [one for one in entrants if one.about is not None and one.about.system == DIRECT and not one.is_stand_in]
    same = [one for one in rows if one.about is not None and one.about.model == entrant.about.model]
    asks = bool(entrant.about.answered_by)
    return same[0] if same else rows[0] if len(rows) == 1 and not asks else None


def _united(entrant: Entrant, entrants: Sequence[Entrant]) -> list[ReportRow]:
    """Return the row of a system whose answers are joined by those of ``direct``, seed by seed."""
    direct = _direct_of(entrant, entrants)
    if direct is None or entrant.is_stand_in:
        return []
    by_seed = {run.about.seed: run for run in direct.runs if run.about is not None}
    seeds = [run.about.seed if run.about is not None else None for run in entrant.runs]
    pairs = zip(entrant.runs, seeds, strict=True)
    runs = [with_direct(run, by_seed.get(seed, direct.runs[0])) for run, seed in pairs]
    return [system_row(f"{entrant.name} + {DIRECT}", runs, grouped=False)]


def _merits(entrants: Sequence[Entrant], tests: _Tests) -> list[Merit]:
    """Return for each row with a language model and both stand-ins beside it what the model adds."""
    judged = [
        (entrant, beside)
        for entrant in entrants
        if not entrant.is_stand_in and (beside := _stand_ins_of(entrant, entrants))
    ]
    pairs = [(entrant, other) for entrant, beside in judged for other in beside.values()]
    rows = {(row.first, row.second): row.metrics["hits1"] for row in tests.corrected(pairs, "hits1")}
    merits = []
    for entrant, beside in judged:
        found = {player: rows[entrant.name, other.name] for player, other in beside.items()}
        merits.append(
            Merit(
                system=entrant.name,
                hits1=entrant.row.overall["hits1"],
                against={player: one.second for player, one in found.items()},
                p_holm={player: one.p_holm for player, one in found.items()},
                adds=all(one.verdict == "better" for one in found.values()),
            )
        )
    return merits


def _stand_ins_of(entrant: Entrant, entrants: Sequence[Entrant]) -> dict[str, Entrant]:
    """Return the rows of the same system, pool, topics and settings whose model knows nothing, by player.

    Empty unless all are there, and where the system asked nothing.
    """
    about = entrant.about
    if about is None or not about.answered_by or not entrant.row.overall.get("calls_per_question"):
        return {}
    alike = {
        other.about.answered_by: other
        for other in entrants
        if other.about is not None and other.is_stand_in and _task(other.about) == _task(about)
    }
    return {player: alike[player] for player in STAND_INS} if len(alike) == len(STAND_INS) else {}


def _task(about: SystemSource) -> SystemSource:
    return replace(about, seed=None, answered_by="", model="")


def _overrules(entrant: Entrant) -> list[Overrules]:
    """Return who was right where a model could overrule the explorer; of several seeds, over all their questions."""
    columns = [run.record.counts.get(OVERRULING) for run in entrant.runs if run.record is not None]
    about = entrant.about
    if about is None or "num_candidates" not in about.settings or any(column is None for column in columns):
        return []
    decisions = []
    for run, column in zip(entrant.runs, columns, strict=True):
        assert column is not None
        for outcome, first in zip(run.outcomes, column.tolist(), strict=True):
            if first == first and outcome.gold_verdict is None:  # NaN: it was not asked
                answer = next((one for one in outcome.candidates if one in outcome.answers), None)
                decisions.append(Decision(outcome.golds, None if first == NOBODY else int(first), answer))
    return [count_overrules(int(about.settings["num_candidates"]), decisions)] if decisions else []
