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

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Literal

import numpy as np

from kgqa_core.evaluation.figures import EXPLORER_FIRST, ReportRow, system_row
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
    interval_names,
)
from kgqa_core.evaluation.predictions import CHANCE, SystemSource
from kgqa_core.evaluation.runs import EvaluatedRun, SystemRun, mean_run, require_comparable, with_direct

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


# ------ Systems side by side: who is better beyond noise, what the language model adds, and what it overruled.


NOBODY = -1  # ``EXPLORER_FIRST`` of a question for which the explorer found nothing
DIRECT = "direct"
SHOWN_VALUE = 40  # characters of a setting, where it tells rows apart

Decision = tuple[Collection[int], int | None, int | None]
"""One question: its golds, the explorer's first candidate and the first entity answered; None where there is none."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """One row of the comparison: a system and whoever answered for it, over all its seeds."""

    name: str
    runs: tuple[SystemRun, ...]  # one per seed
    mean: EvaluatedRun  # over the seeds, question by question
    row: ReportRow
    lift: Mapping[str, float] = field(default_factory=dict)  # over ``direct``, see ``lift_figures``

    @property
    def about(self) -> SystemSource | None:
        """Return who answered; None for a table that is no system's."""
        return self.runs[0].about

    @property
    def is_chance(self) -> bool:
        """Was the language model one that knows nothing?"""
        return self.about is not None and self.about.answered_by in CHANCE


@dataclass(frozen=True, slots=True)
class Merit:
    """Whether a language model adds anything: its system against the same with models that know nothing."""

    system: str  # name of the row
    hits1: float
    against: dict[str, float]  # Hits@1 by player
    p_holm: dict[str, float]  # by player
    adds: bool  # better than both


@dataclass(frozen=True, slots=True)
class LmVsExplorer:
    """Who was right where a language model could overrule the explorer; one number of candidates N."""

    num_shown: int  # N
    num_questions: int
    num_overruled: int  # the answer is another than the explorer's first; abstentions are none
    num_abstained: int
    both_right: int
    only_explorer: int  # explorer right, language model wrong or silent
    only_lm: int  # language model right, explorer wrong
    both_wrong: int
    p: float  # of McNemar's test between the two


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The whole comparison."""

    num_questions: int
    entrants: list[Entrant]
    best: dict[str, frozenset[str]]  # metric -> rows within noise of the best figure, the best among them
    pairs: list[PairRow]  # every paired test that a statement rests on; p_holm as in its family
    merits: list[Merit]
    united: list[ReportRow]  # X + direct, a row per system
    lm_vs_explorer: list[tuple[str, LmVsExplorer]]  # with the name of the row


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
        pairs=list(tests.done.values()),
        merits=merits,
        united=[row for entrant in entrants for row in _united(entrant, entrants)],
        lm_vs_explorer=[(entrant.name, row) for entrant in entrants if (row := _lm_vs_explorer(entrant)) is not None],
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
        self.done: dict[tuple[str, str], PairRow] = {}

    def of(self, first: Entrant, second: Entrant) -> PairRow:
        """Return the test of two rows, not corrected for others."""
        key = (first.name, second.name)
        if key not in self.done:
            everything = np.ones(len(first.mean.asked), dtype=bool)
            self.done[key] = compare_pair(first.mean, second.mean, Scope("all", "all", everything))
        return self.done[key]

    def corrected(self, pairs: Sequence[tuple[Entrant, Entrant]], metric: str) -> list[PairRow]:
        """Return the tests of some pairs, those of ``metric`` corrected for their number."""
        rows = [self.of(*pair) for pair in pairs]
        correct_for_number(rows, metric)
        return rows


def _best(metric: str, entrants: Sequence[Entrant], tests: _Tests) -> frozenset[str]:
    """Return the rows whose figure is within noise of the highest; chance is no rival."""
    rivals = [entrant for entrant in entrants if not entrant.is_chance]
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
    rows = [one for one in entrants if one.about is not None and one.about.system == DIRECT and not one.is_chance]
    same = [one for one in rows if one.about is not None and one.about.model == entrant.about.model]
    asks = bool(entrant.about.answered_by)
    return same[0] if same else rows[0] if len(rows) == 1 and not asks else None


def _united(entrant: Entrant, entrants: Sequence[Entrant]) -> list[ReportRow]:
    """Return the row of a system whose answers are joined by those of ``direct``, seed by seed."""
    direct = _direct_of(entrant, entrants)
    if direct is None or entrant.is_chance:
        return []
    by_seed = {run.about.seed: run for run in direct.runs if run.about is not None}
    seeds = [run.about.seed if run.about is not None else None for run in entrant.runs]
    pairs = zip(entrant.runs, seeds, strict=True)
    runs = [with_direct(run, by_seed.get(seed, direct.runs[0])) for run, seed in pairs]
    return [system_row(f"{entrant.name} + {DIRECT}", runs, grouped=False)]


def _merits(entrants: Sequence[Entrant], tests: _Tests) -> list[Merit]:
    """Return for each row with a language model and both stand-ins beside it what the model adds."""
    judged = [
        (entrant, beside) for entrant in entrants if not entrant.is_chance and (beside := _chance_of(entrant, entrants))
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


def _chance_of(entrant: Entrant, entrants: Sequence[Entrant]) -> dict[str, Entrant]:
    """Return the rows of the same system, pool, topics and settings whose model knows nothing, by player.

    Empty unless all are there, and where the system asked nothing.
    """
    about = entrant.about
    if about is None or not about.answered_by or not entrant.row.overall.get("calls_per_question"):
        return {}
    alike = {
        other.about.answered_by: other
        for other in entrants
        if other.about is not None and other.is_chance and _task(other.about) == _task(about)
    }
    return {player: alike[player] for player in CHANCE} if len(alike) == len(CHANCE) else {}


def _task(about: SystemSource) -> SystemSource:
    return replace(about, seed=None, answered_by="", model="")


def _lm_vs_explorer(entrant: Entrant) -> LmVsExplorer | None:
    """Count who was right where a model could overrule the explorer; of several seeds, over all their questions."""
    columns = [run.record.counts.get(EXPLORER_FIRST) for run in entrant.runs if run.record is not None]
    about = entrant.about
    if about is None or "num_candidates" not in about.settings:
        return None
    decisions: list[Decision] = []
    for run, column in zip(entrant.runs, columns, strict=True):
        if column is None:
            return None
        for outcome, first in zip(run.outcomes, column.tolist(), strict=True):
            if first == first and outcome.gold_verdict is None:  # NaN: it was not asked
                answer = next((one for one in outcome.candidates if one in outcome.answers), None)
                decisions.append((outcome.golds, None if first == NOBODY else int(first), answer))
    return count_lm_vs_explorer(int(about.settings["num_candidates"]), decisions) if decisions else None


def count_lm_vs_explorer(num_shown: int, decisions: Sequence[Decision]) -> LmVsExplorer:
    """Return the row of one N."""
    cells = Counter((explorer in golds, answer in golds) for golds, explorer, answer in decisions)
    return LmVsExplorer(
        num_shown=num_shown,
        num_questions=len(decisions),
        num_overruled=sum(answer not in (None, explorer) for _, explorer, answer in decisions),
        num_abstained=sum(answer is None for *_, answer in decisions),
        both_right=cells[True, True],
        only_explorer=cells[True, False],
        only_lm=cells[False, True],
        both_wrong=cells[False, False],
        p=mcnemar(cells[True, False], cells[False, True]),
    )


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
