"""Runs that answered the same questions, compared: paired tests, and systems side by side.

A figure is called better or worse only where two things agree: the paired test is significant, corrected by Holm's
method for the number of pairs of runs, and the bootstrap interval of the difference lies on one side of zero. Anything
else is a tie. Hits@1 and EM are tested by McNemar's exact test, Hits@1 on one fixed pick per question, while the
figures and their difference are in expectation over ties; F1 is tested by the paired randomisation test, and so is the
mean of several seeds, which is neither right nor wrong.

Side by side, systems also show what the language model adds over models that know nothing and over ``direct``, and what
it mends and spoils where it may overrule an explorer. Ties of the explorer count by its first candidate by entity id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, combinations
from typing import Literal

import numpy as np

from kgqa_core.evaluation import metrics
from kgqa_core.evaluation.figures import EXPLORER_FIRST, ReportRow, system_row
from kgqa_core.evaluation.metrics import DIGITS, INTERVAL_METRICS, Floats, Mask, interval_names
from kgqa_core.evaluation.predictions import CHANCE, SystemSource
from kgqa_core.evaluation.runs import EvaluatedRun, mean_run, require_comparable, with_direct

Verdict = Literal["better", "worse", "tie"]
Breakdown = Literal["all", "hops", "answers"]

FLIPS = 10_000  # of signs, in the randomisation test
ROUNDING = 1e-9  # sums that differ by less, as a share of the largest possible, are equal
ALPHA = 0.05
NOBODY = -1  # ``EXPLORER_FIRST`` of a question for which the explorer found nothing
DIRECT = "direct"


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the exact two-sided p of McNemar's test (binomial with 1/2 on the questions that only one got right)."""
    num = only_first + only_second
    ways, fewer = 1, 0  # ways: num choose taken
    for taken in range(min(only_first, only_second) + 1):
        fewer += ways
        ways = ways * (num - taken) // (taken + 1)
    return float(min(1.0, 2 * fewer / 2**num))


def randomisation_test(differences: Floats) -> float:
    """Return the two-sided p of the mean of paired ``differences`` [B]: the share of random signs that go as far.

    The observed signs count among those drawn, so p is at least 1 / (``FLIPS`` + 1).
    """
    apart = np.sort(differences[differences != 0])
    if not len(apart):
        return 1.0
    total = float(apart.sum())
    least = abs(total) - ROUNDING * float(np.abs(apart).sum())
    random = np.random.default_rng(metrics.SEED)
    # Of differences of one size only the number that keep their sign matters. It is binomial: where few sizes are
    # distinct, drawing the numbers gives exactly the distribution that drawing signs gives.
    sizes, counts = np.unique(np.abs(apart), return_counts=True)
    by_counts = metrics.COUNT_COST * len(sizes) < len(apart)
    as_far, step = 0, max(1, metrics.CELLS_AT_ONCE // len(sizes if by_counts else apart))
    for start in range(0, FLIPS, step):
        size = min(step, FLIPS - start)
        if by_counts:
            sums = (2 * random.binomial(counts, 0.5, size=(size, len(sizes))) - counts) @ sizes
        else:
            kept = random.integers(2, size=(size, len(apart)), dtype=np.int8)
            sums = 2 * (kept.astype(np.float64) @ apart) - total
        as_far += int((np.abs(sums) >= least).sum())
    return (1 + as_far) / (1 + FLIPS)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return each p as corrected for there being several (Holm's step-down method), in the order given."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    raised = [min(1.0, (len(order) - rank) * p_values[place]) for rank, place in enumerate(order)]
    return [p for _, p in sorted(zip(order, accumulate(raised, max), strict=True))]


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
    """Two runs on some of the questions."""

    first: str  # names of the runs
    second: str
    by: Breakdown
    bucket: str  # "all", or of ``HOP_BUCKETS`` or ``ANSWER_BUCKETS``
    n: int
    metrics: dict[str, Difference]  # by name, as in ``INTERVAL_METRICS``


def compare_runs(runs: Sequence[EvaluatedRun]) -> list[PairRow]:
    """Compare every run with every later one: over all questions, then by hops and by the number of answers.

    Breakdowns stand only where they have more than one bucket. Raises ``InputError`` where questions or graphs differ.
    """
    require_comparable(runs)
    rows = []
    for by, bucket, chosen in scopes_of(runs):
        own = [compare_pair(*pair, chosen, by, bucket) for pair in combinations(runs, 2)]
        for metric in INTERVAL_METRICS:
            correct_for_number(own, metric)
        rows += own
    return rows


def scopes_of(runs: Sequence[EvaluatedRun]) -> Iterator[tuple[Breakdown, str, Mask]]:
    """Yield which questions [B] are compared: all, then those of each breakdown that has more than one bucket."""
    known = zip(*(run.scores.hops for run in runs), strict=True)  # of runs that searched, the first that found is right
    hops = [next((count for count in counts if count is not None), None) for counts in known]
    yield "all", "all", np.ones(len(hops), dtype=bool)
    groups: dict[Breakdown, dict[str, Mask]] = {
        "hops": metrics.group_by([metrics.hop_bucket(count) for count in hops], metrics.HOP_BUCKETS),
        "answers": runs[0].scores.answer_groups(),
    }
    for by, own in groups.items():
        if len(own) > 1:
            yield from ((by, bucket, chosen) for bucket, chosen in own.items())


def correct_for_number(rows: Sequence[PairRow], metric: str) -> None:
    """Set, in place, p and verdict of one metric to what they are where all ``rows`` were tested (Holm's method)."""
    for row, p_holm in zip(rows, holm([row.metrics[metric].p for row in rows]), strict=True):
        found = row.metrics[metric]
        row.metrics[metric] = replace(found, p_holm=p_holm, verdict=judge(p_holm, found.low, found.high))


def compare_pair(
    first: EvaluatedRun, second: EvaluatedRun, chosen: Mask, by: Breakdown = "all", bucket: str = "all"
) -> PairRow:
    """Compare two runs on the questions ``chosen`` [B], as if no others were compared."""
    columns = [first.scores.values[metric] - second.scores.values[metric] for metric in INTERVAL_METRICS]
    differences = np.stack(columns, axis=1)[chosen]
    bounds = metrics.bootstrap_bounds(differences)
    picks = first.picked_right[chosen].astype(float) - second.picked_right[chosen]
    found: dict[str, Difference] = {}
    for place, metric in enumerate(INTERVAL_METRICS):
        tested = picks if metric == "hits1" else differences[:, place]
        only_first, only_second = int((tested > 0).sum()), int((tested < 0).sum())
        yes_or_no = metric != "f1" and len(np.unique(np.abs(tested[tested != 0]))) < 2
        p = mcnemar(only_first, only_second) if yes_or_no else randomisation_test(tested)
        low, high = bounds[:, place].tolist()
        found[metric] = Difference(
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
    return PairRow(first.name, second.name, by, bucket, int(chosen.sum()), found)


def judge(p: float, low: float, high: float) -> Verdict:
    """Return what to call a difference: a tie unless the test and the interval agree that there is one."""
    if p >= ALPHA or low <= 0 <= high:
        return "tie"
    return "better" if low > 0 else "worse"


# ------ Systems side by side.


@dataclass(frozen=True, slots=True)
class Entrant:
    """One row of the comparison: a system and whoever answered for it, over all its seeds."""

    name: str
    runs: tuple[EvaluatedRun, ...]  # one per seed
    mean: EvaluatedRun  # over the seeds, question by question
    row: ReportRow
    about: SystemSource | None  # who answered; None for a table that is no system's
    lift: Mapping[str, float] = field(default_factory=dict)  # over ``direct``, see ``lift_figures``

    @property
    def player(self) -> str:
        """Return who played the language model, or else empty text."""
        return self.about.answered_by if self.about else ""


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

    system: str  # name of the row
    num_shown: int  # N
    num_questions: int
    num_overruled: int  # the answer is another than the explorer's first; abstentions are none
    num_abstained: int
    both_right: int
    only_explorer: int  # explorer right, language model wrong or silent
    only_lm: int  # language model right, explorer wrong
    both_wrong: int
    p: float  # between the two: McNemar's test; of several seeds a randomisation test over questions


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The whole comparison."""

    num_questions: int
    entrants: list[Entrant]
    best: dict[str, frozenset[str]]  # metric -> rows within noise of the best figure, the best among them
    pairs: list[PairRow]  # every paired test that a statement rests on; p_holm as in its family
    merits: list[Merit]
    united: list[ReportRow]  # X + direct, a row per system
    lm_vs_explorer: list[LmVsExplorer]


class _Tests(dict[tuple[str, str], PairRow]):
    """The paired tests over all questions, each done once however many statements rest on it."""

    def of(self, first: Entrant, second: Entrant) -> PairRow:
        """Return the test of two rows, not corrected for others."""
        key = (first.name, second.name)
        if key not in self:
            self[key] = compare_pair(first.mean, second.mean, np.ones(len(first.mean.asked), dtype=bool))
        return self[key]

    def corrected(self, pairs: Sequence[tuple[Entrant, Entrant]], metric: str) -> list[Difference]:
        """Return ``metric`` of some pairs, corrected for their number."""
        rows = [self.of(*pair) for pair in pairs]
        correct_for_number(rows, metric)
        return [row.metrics[metric] for row in rows]


def side_by_side(groups: Mapping[str, Sequence[EvaluatedRun]]) -> SideBySide:
    """Compare systems; ``groups`` holds the runs of each row (its seeds) by name, in order of display.

    Raises ``InputError`` where questions or graphs differ; the message says how.
    """
    require_comparable([run for runs in groups.values() for run in runs])
    entrants = [
        Entrant(name, tuple(runs), mean_run(name, runs), system_row(name, runs), runs[0].about)
        for name, runs in groups.items()
    ]
    tests, united = _Tests(), []
    directs = [direct_of(one, entrants) for one in entrants]
    for place, (one, direct) in enumerate(zip(list(entrants), directs, strict=True)):
        if direct is None:
            continue
        entrants[place] = replace(one, lift=lift_figures(tests.of(one, direct), one.mean, direct.mean))
        if one.player not in CHANCE:  # a row of its answers joined by those of ``direct``, seed by seed
            by_seed = {run.about.seed if run.about else None: run for run in direct.runs}
            pairs = [(run, by_seed.get(run.about.seed if run.about else None, direct.runs[0])) for run in one.runs]
            runs = [with_direct(run, other) for run, other in pairs]
            united.append(system_row(f"{one.name} + {DIRECT}", runs, grouped=False))
    best: dict[str, frozenset[str]] = {metric: frozenset() for metric in INTERVAL_METRICS}
    rivals = [one for one in entrants if one.player not in CHANCE]
    if any(one.player == "lm" for one in rivals):  # an oracle is told the answers: it is no model's rival
        rivals = [one for one in rivals if one.player != "oracle"]
    for metric in INTERVAL_METRICS if len(rivals) > 1 else ():
        first = max(rivals, key=lambda one: one.row.overall[metric])
        others = [rival for rival in rivals if rival is not first]
        found = tests.corrected([(first, other) for other in others], metric)
        tied = {other.name for other, test in zip(others, found, strict=True) if test.verdict != "better"}
        best[metric] = frozenset({first.name, *tied})
    merits = _merits(entrants, tests)
    overruled = [row for one in entrants if (row := _lm_vs_explorer(one)) is not None]
    num_questions = len(entrants[0].mean.asked)
    return SideBySide(num_questions, entrants, best, list(tests.values()), merits, united, overruled)


def direct_of(entrant: Entrant, entrants: Sequence[Entrant]) -> Entrant | None:
    """Return the row of ``direct`` to compare with: by the same untuned model, or the only one where none is asked.

    Of several that of the same run, which its name tells ("A rog", "A direct"), then one by the same prompts.
    """
    about = entrant.about
    if about is None or about.system == DIRECT:
        return None
    rows = [one for one in entrants if one.about and one.about.system == DIRECT and one.player not in CHANCE]
    same = [one for one in rows if one.about and (one.about.base or one.about.model) == (about.base or about.model)]
    fitting = same or (rows if len(rows) == 1 and not about.answered_by else [])

    def strangeness(one: Entrant) -> tuple[bool, bool]:
        assert one.about is not None
        of_run = one.name.removesuffix(one.about.row) == entrant.name.removesuffix(about.row)
        return not of_run, one.about.prompts != about.prompts

    return min(fitting, key=strangeness, default=None)


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
    for name, some in (("hits1.known", known), ("hits1.unknown", ~known)):
        if some.any():
            figures[name] = float(run.scores.values["hits1"][some].mean())
    return figures


def _merits(entrants: Sequence[Entrant], tests: _Tests) -> list[Merit]:
    """Return what the model adds, for each row beside which both stand-ins did the same with the same settings."""

    def task(one: Entrant) -> SystemSource | None:
        return one.about and replace(one.about, seed=None, answered_by="", model="", roles="", base="")

    compared: list[tuple[Entrant, list[Entrant]]] = []
    for one in entrants:
        if one.player and one.player not in CHANCE and one.row.overall.get("calls_per_question"):
            beside = {other.player: other for other in entrants if other.player in CHANCE and task(other) == task(one)}
            if len(beside) == len(CHANCE):
                compared.append((one, [beside[player] for player in CHANCE]))
    found = iter(tests.corrected([(one, other) for one, others in compared for other in others], "hits1"))
    merits = []
    for one, others in compared:
        own = {other.player: next(found) for other in others}
        against, p_holm = ({who: getattr(test, name) for who, test in own.items()} for name in ("second", "p_holm"))
        adds = all(test.verdict == "better" for test in own.values())
        merits.append(Merit(one.name, one.row.overall["hits1"], against, p_holm, adds))
    return merits


def _lm_vs_explorer(entrant: Entrant) -> LmVsExplorer | None:
    """Count who was right where a model could overrule the explorer; of several seeds, over all their questions.

    The test is over questions, not over their repetitions by other seeds.
    """
    num_shown = entrant.about.settings.get("num_candidates") if entrant.about else None
    cells, num_overruled, num_abstained = Counter[tuple[bool, bool]](), 0, 0  # is the explorer right, and the model?
    gains = np.zeros(len(entrant.mean.asked))  # of a question over all seeds
    for run in entrant.runs:
        if num_shown is None or run.record is None or EXPLORER_FIRST not in run.record.counts:
            return None
        firsts = run.record.counts[EXPLORER_FIRST].tolist()  # NaN where it was not asked
        for place, (outcome, first) in enumerate(zip(run.outcomes, firsts, strict=True)):
            if not np.isnan(first) and outcome.gold_verdict is None:
                answer = next((one for one in outcome.candidates if one in outcome.answers), None)
                explorer = None if first == NOBODY else int(first)
                cells[explorer in outcome.golds, answer in outcome.golds] += 1
                num_overruled += answer not in (None, explorer)
                num_abstained += answer is None
                gains[place] += (answer in outcome.golds) - (explorer in outcome.golds)
    if not cells or not num_shown:
        return None
    only_explorer, only_lm = cells[True, False], cells[False, True]
    counts = (num_overruled, num_abstained, cells[True, True], only_explorer, only_lm, cells[False, False])
    p = mcnemar(only_explorer, only_lm) if len(entrant.runs) == 1 else randomisation_test(gains)
    return LmVsExplorer(entrant.name, int(num_shown), cells.total(), *counts, p)
