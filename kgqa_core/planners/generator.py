"""A language model as a planner (RoG §4.3), asked by beam search for paths that exist; and its mixture with another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Protocol

import numpy as np

from kgqa_core.instructions.plan import (
    PathConstraints,
    Plan,
    PlanAsker,
    PlanInstruction,
    Planner,
    PlanQuestion,
    RelationConstraint,
    render_plan,
)
from kgqa_core.instructions.render import Prompts
from kgqa_core.lm.types import LanguageModel, Searches
from kgqa_core.types import LabelPath


class GeneratorPlanner:
    """Any language model with the instruction ``plan``. Implements ``Planner``."""

    name = "generator"

    def __init__(
        self,
        model: LanguageModel,
        prompts: Prompts,
        *,
        space: PathConstraints | RelationConstraint | None,
        searches: Searches = "bound",
    ) -> None:
        """Plan with ``model``; see ``PlanAsker``. A model that cannot follow ``space`` is held to it afterwards."""
        self._model = model
        self._asker = PlanAsker(PlanInstruction(prompts), space, searches=searches)

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return up to ``num_plans`` distinct plans per question, best first; none where none exists."""
        asker = self._asker
        cases = [asker.case(question) for question in questions]
        prompts = [asker.instruction.render(case) for case in cases]
        texts = self._model.generate(prompts, asker.decoding(num_plans))
        return [asker.read(case, given)[:num_plans] for case, given in zip(cases, texts, strict=True)]

    def weigh(self, questions: Sequence[PlanQuestion], paths: Sequence[Sequence[LabelPath]]) -> list[list[float]]:
        """Return the log-probability of each question's ``paths`` as whole answers, whether they exist or not."""
        asker = self._asker
        prompts = [asker.instruction.render(asker.case(question)) for question in questions]
        return self._model.score(prompts, [[render_plan(path) for path in own] for own in paths])


# ------ The mixture of two planners: their log-probabilities of each other's plans, weighted.


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

    def __init__(self, dense: Weigher, generator: Weigher, *, weight: float = GENERATOR_WEIGHT) -> None:
        self._dense, self._generator, self._weight = dense, generator, weight

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        """Return up to ``num_plans`` distinct plans per question, best first; log-probabilities sum to 1 over all."""
        most = max(num_plans, NUM_EACH)
        given = [one.plan(questions, num_plans=most) for one in (self._dense, self._generator)]
        paths = [list(dict.fromkeys(plan.path for plan in chain(*own))) for own in zip(*given, strict=True)]
        weighed = [one.weigh(questions, paths) for one in (self._dense, self._generator)]
        found = []
        for own, dense, generated in zip(paths, *weighed, strict=True):
            scores = (1 - self._weight) * np.array(dense) + self._weight * np.array(generated)
            total = float(np.logaddexp.reduce(scores)) if np.isfinite(scores).any() else 0.0
            ranked = sorted(zip(own, scores.tolist(), strict=True), key=lambda one: -one[1])
            found.append([Plan(path, score - total) for path, score in ranked[:num_plans]])
        return found
