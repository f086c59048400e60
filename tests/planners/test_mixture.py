"""The mixture of two planners."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from kgqa_core.planners.generator import open_mixture
from kgqa_core.planners.types import LabelPath, Plan, PlanQuestion

ASKED = [PlanQuestion("q", "who")]


class Fixed:
    """A planner of fixed probabilities, whatever is asked."""

    name = "fixed"

    def __init__(self, **probabilities: float) -> None:
        self._logs = {(step,): math.log(probability) for step, probability in probabilities.items()}

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        best = sorted(self._logs.items(), key=lambda one: -one[1])
        return [[Plan(path, log) for path, log in best[:num_plans]] for _ in questions]

    def weigh(self, questions: Sequence[PlanQuestion], paths: Sequence[Sequence[LabelPath]]) -> list[list[float]]:
        return [[self._logs.get(path, math.log(0.01)) for path in own] for own in paths]


def test_plans_of_both_are_ordered_by_the_weighted_mean_of_their_logs() -> None:
    mixture = open_mixture(Fixed(a=0.5, b=0.4), Fixed(b=0.6, c=0.3), weight=0.5)
    (plans,) = mixture.plan(ASKED)
    raw = {"b": math.sqrt(0.4 * 0.6), "a": math.sqrt(0.5 * 0.01), "c": math.sqrt(0.01 * 0.3)}
    assert [plan.path[0] for plan in plans] == list(raw)
    total = sum(raw.values())
    assert [plan.log_prob for plan in plans] == pytest.approx([math.log(value / total) for value in raw.values()])


@pytest.mark.parametrize(("weight", "first"), [(0.0, "a"), (1.0, "b")])
def test_at_either_end_one_planner_decides(weight: float, first: str) -> None:
    (plans,) = open_mixture(Fixed(a=0.5, b=0.4), Fixed(b=0.6, c=0.3), weight=weight).plan(ASKED, num_plans=1)
    assert [plan.path for plan in plans] == [(first,)]


def test_where_neither_has_a_plan_there_is_none() -> None:
    assert open_mixture(Fixed(), Fixed()).plan(ASKED) == [[]]
    assert open_mixture(Fixed(), Fixed()).plan([]) == []
