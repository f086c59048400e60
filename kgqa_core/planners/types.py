"""Plans: relation paths by label, and what a planner is.

A step is a relation's label, walked forward; "^" before it means backward (as in SPARQL property paths). A label that
itself begins with "^" or "\\" is written with "\\" before it. Files without directions (unsigned) hold plain labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kgqa_core.types import LabelPath as LabelPath


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """A question as a planner sees it."""

    id: str
    text: str  # as it is read: with a placeholder where it names a topic, unless the run says otherwise
    topics: tuple[int, ...] = ()  # entity ids of the graph; empty without one
    paths: tuple[LabelPath, ...] = ()  # those that count as right; supervision in training, the target when scored


@dataclass(frozen=True, slots=True)
class Plan:
    """One relation path that a planner proposes."""

    path: LabelPath
    log_prob: float  # natural log of the planner's probability of this path given the question


class Planner(Protocol):
    """Proposes relation paths."""

    @property
    def name(self) -> str:
        """Return the name of its row in tables: generator, dense, mixture."""
        ...

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return up to ``num_plans`` distinct plans per question, best first."""
        ...


# ------ Weights of plans and scores of reasoning paths, as EPERM's Fig. 4 shows them: those of a question sum to 1.


def weigh_plans(log_probs: Sequence[float]) -> list[float]:
    """Return the beam probabilities of one question's plans, normalised over them.

    Args:
        log_probs: natural logs; -inf is a plan that weighs nothing, and if all are, all weigh alike.
    """
    most = max(log_probs, default=-math.inf)
    if most == -math.inf:
        return [1 / len(log_probs) for _ in log_probs]
    return _share([math.exp(log_prob - most) for log_prob in log_probs])


def score_paths(weights: Sequence[float], entity_scores: Sequence[Sequence[float]]) -> list[float]:
    """Return the score of each of one question's reasoning paths: its plan's weight times its entities' scores.

    Args:
        weights: per path, of the plan that it follows.
        entity_scores: per path, 0..1 for each entity that was scored; none score 1.

    Where every product is 0 the entities tell nothing: then the plans' weights alone count.
    """
    products = [weight * math.prod(scores) for weight, scores in zip(weights, entity_scores, strict=True)]
    return _share(products) if any(products) else _share(weights)


def _share(values: Sequence[float]) -> list[float]:
    total = math.fsum(values)
    return [value / total if total else 1 / len(values) for value in values]
