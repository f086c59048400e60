"""How often the gate lets an equal challenger pass, and refuses one that is worse: by simulation, no model is asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.measure import write_section
from kgqa_core.config import GateSection
from kgqa_core.evaluation.metrics import QuestionScores
from kgqa_core.evaluation.predictions import Source
from kgqa_core.evaluation.runs import Asked, EvaluatedRun
from tasks.verdict import LOSS, judge_challenger

TRIALS = 400
SMALL = 20  # trials
SETTINGS = GateSection()
RIGHT = 0.85  # the champion's Hits@1
DISAGREE = (0.02, 0.05, 0.1, 0.2)  # share of questions that only one of the two gets right
RELATIONS = 9  # groups, the n-th with 1/n as many questions as the first
NUM_QUESTIONS = (200, 500, 1000, 1500, 3000)


def run(home: Path, trials: int = TRIALS) -> None:
    """Draw pairs of runs of several sizes and differences, and count what the gate says."""
    rows = [
        f"| right by only one | questions | needed | equal passes | {LOSS:g} points worse is refused |",
        "|" + "---:|" * 5,
    ]
    for disagree in DISAGREE:
        for num in NUM_QUESTIONS:
            passed, needed = count_passed(num, disagree, 0.0, trials)
            lost, _ = count_passed(num, disagree, LOSS, trials) if 100 * disagree >= LOSS else (float("nan"), 0)
            refused = "–" if np.isnan(lost) else f"{100 - lost:.1f}"
            rows.append(f"| {100 * disagree:.0f} % | {num:,} | {needed:,} | {passed:.1f} | {refused} |")
    note = (
        f"Percent of {trials} trials, with the default margins. F1 goes with Hits@1, and differs in a tenth of "
        "the rest; slices by three numbers of hops, three of answers and nine groups of relations. "
        "Needed: as the gate says from what it sees."
    )
    write_section("The gate", "\n".join([*rows, "", note]), "python -m benchmarks gate")


def count_passed(num: int, disagree: float, loss: float, trials: int) -> tuple[float, int]:
    """Return in what share of trials, in percent, a challenger passes that is worse by ``loss``; and what is needed."""
    passed, needed = 0, 0
    for seed in range(trials):
        rows, asked = judge_challenger(
            *draw_runs(num, disagree, loss, seed),
            relations=draw_relations(num, seed),
            margin=SETTINGS.margin,
            slice_margin=SETTINGS.slice_margin,
            min_slice=SETTINGS.min_slice,
        )
        passed += not any(row.fault for row in rows)
        needed += asked
    return 100 * passed / trials, round(needed / trials)


def draw_relations(num: int, seed: int) -> dict[str, str]:
    """Return a relation group for each question of ``draw_runs``; few are common."""
    shares = 1 / np.arange(1, RELATIONS + 1)
    drawn = np.random.default_rng([seed, num]).choice(RELATIONS, size=num, p=shares / shares.sum())
    return {f"q{place}": f"r{group}" for place, group in enumerate(drawn)}


def draw_runs(num: int, disagree: float, loss: float, seed: int) -> tuple[EvaluatedRun, EvaluatedRun]:
    """Return a challenger and a champion that differ on a share of questions; ``loss`` in points of Hits@1."""
    random = np.random.default_rng([seed, num, round(1000 * disagree), round(10 * loss)])
    kind = random.random(num)  # right by the challenger alone, the champion alone, both or neither
    only_ours = kind < disagree / 2 - loss / 200
    only_theirs = (kind < disagree) & ~only_ours
    both = (kind >= disagree) & (kind < RIGHT + disagree / 2)
    f1 = random.choice([100.0, 100.0, 80.0, 50.0], size=num)
    partly = random.choice([0.0, 0.0, 40.0], size=num)  # F1 where the first answer is wrong
    moved = random.random(num) < 0.1  # another set of answers behind the same first one
    hops, answers = random.choice([1, 2, 3], size=num).tolist(), random.choice([1, 3, 7], size=num).tolist()
    asked = {f"q{place}": Asked("", (), frozenset(), None, None) for place in range(num)}
    runs = []
    for right, again in ((only_ours | both, True), (only_theirs | both, False)):
        wrong = np.where(moved & again, np.roll(partly, 1), partly)
        own = np.where(right, np.where(moved & again, np.roll(f1, 1), f1), wrong)
        values = {"hits1": 100.0 * right, "f1": own}
        scores = QuestionScores(tuple(asked), tuple(hops), tuple(answers), values)
        runs.append(EvaluatedRun("run", Path(), Source("graph", "explorer"), asked, scores, right))
    return runs[0], runs[1]
