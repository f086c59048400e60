"""A language model as a planner (RoG §4.3), asked by beam search for paths that exist."""

from __future__ import annotations

from collections.abc import Sequence

from kgqa_core.instructions.plan import (
    PathConstraints,
    Plan,
    PlanAsker,
    PlanInstruction,
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
