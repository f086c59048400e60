"""The mixture of two planners: their log-probabilities of each other's plans, weighted (a product of experts)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from kgqa_core.planners.types import LabelPath, Plan, Planner, PlanQuestion

GENERATOR_WEIGHT = 0.3  # of the generator's log-probability; the dense planner has the rest
NUM_EACH = 6  # plans of each that are weighed


class Weigher(Planner, Protocol):
    """A planner that can tell how probable any path is."""

    def weigh(self, questions: Sequence[PlanQuestion], paths: Sequence[Sequence[LabelPath]]) -> list[list[float]]:
        """Return the log-probability of each question's ``paths``."""
        ...


class MixturePlanner:
    """Implements ``Planner``: the plans of both, ordered by the weighted mean of both log-probabilities."""

    name = "mixture"

    def __init__(self, dense: Weigher, generator: Weigher, *, weight: float, num_each: int) -> None:
        """Mix; ``weight`` (0..1) is the generator's, ``num_each`` how many plans of each are weighed."""
        self._dense, self._generator = dense, generator
        self._weight, self._num_each = weight, num_each

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return up to ``num_plans`` distinct plans per question, best first; log-probabilities sum to 1 over all."""
        most = max(num_plans, self._num_each)
        given = [one.plan(questions, num_plans=most) for one in (self._dense, self._generator)]
        paths = [
            list(dict.fromkeys(plan.path for plan in (*first, *second))) for first, second in zip(*given, strict=True)
        ]
        weighed = [one.weigh(questions, paths) for one in (self._dense, self._generator)]
        found = []
        for own, dense, generated in zip(paths, *weighed, strict=True):
            scores = [
                (1 - self._weight) * first + self._weight * second
                for first, second in zip(dense, generated, strict=True)
            ]
            total = _log_sum(scores)
            ranked = sorted(zip(own, scores, strict=True), key=lambda one: -one[1])
            found.append([Plan(path, score - total) for path, score in ranked[:num_plans]])
        return found


def open_mixture(
    dense: Weigher, generator: Weigher, *, weight: float = GENERATOR_WEIGHT, num_each: int = NUM_EACH
) -> MixturePlanner:
    """Return the mixture of two planners that can tell how probable any path is."""
    return MixturePlanner(dense, generator, weight=weight, num_each=num_each)


def _log_sum(scores: Sequence[float]) -> float:
    high = max(scores, default=0.0)
    if math.isinf(high):
        return 0.0
    return high + math.log(sum(math.exp(score - high) for score in scores)) if scores else 0.0
