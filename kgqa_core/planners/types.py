"""Plans: relation paths by label, and what a planner is.

A step is a relation's label, walked forward; "^" before it means backward (as in SPARQL property paths). A label that
itself begins with "^" or "\\" is written with "\\" before it. Files without directions (unsigned) hold plain labels.
"""

from __future__ import annotations

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
