"""Systems side by side: who is better beyond noise, what the language model adds, and what it overruled.

A system that lets a language model choose among an explorer's candidates gains what the model mends and loses what it
spoils. Ties of the explorer count by one fixed pick, its first candidate by entity id, as for any paired test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kgqa_core.evaluation.compare import PairRow, Scope, compare_pair, correct_for_number, mcnemar
from kgqa_core.evaluation.figures import EXPLORER_FIRST, ReportRow, system_row
from kgqa_core.evaluation.metrics import INTERVAL_METRICS, interval_names
from kgqa_core.evaluation.predictions import CHANCE, SystemSource
from kgqa_core.evaluation.runs import EvaluatedRun, SystemRun, mean_run, require_comparable, with_direct

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
