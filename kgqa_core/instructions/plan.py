"""plan: from a question to the relation paths that lead from its topics to answers (RoG §4.3, EPERM's generator)."""

from __future__ import annotations

from dataclasses import dataclass

from kgqa_core.instructions.escapes import escape
from kgqa_core.instructions.plan_text import parse_plans, render_plan
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.render import fill_prompt, render_lines
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import Constraint, Prompt
from kgqa_core.types import LabelPath


@dataclass(frozen=True, slots=True)
class PlanCase:
    """A question to plan for; the planner sees the question only (EPERM Eq. 6)."""

    question: str  # as it is read: with a placeholder where it names a topic, unless the run says otherwise
    question_id: str = ""
    path: LabelPath | None = None  # the one that is taught
    paths_allowed: Constraint | None = None  # those that exist around the topics, or a trie of relations
    relations: tuple[str, ...] = ()  # labels to show, for prompts with {relations}
    num_plans: int = 1  # asked for, in prompts with {num_plans}


@dataclass(frozen=True, slots=True)
class PlanInstruction:
    """The instruction ``plan``."""

    prompts: Prompts

    @property
    def name(self) -> str:
        """Return ``plan``."""
        return "plan"

    def render(self, case: PlanCase) -> Prompt:
        """Return the prompt."""
        values = {
            "question": case.question,
            "relations": render_lines(map(escape, case.relations)),
            "num_plans": str(case.num_plans),
        }
        constraint = self.constraint(case)
        return fill_prompt(self.prompts, self.name, values, question_id=case.question_id, constraint=constraint)

    def target(self, case: PlanCase) -> str | None:
        """Return the plan that is taught."""
        return None if case.path is None else render_plan(case.path)

    def parse(self, text: str, case: PlanCase) -> tuple[LabelPath, ...] | ParseFailure:
        """Return the distinct plans of a text, in their order."""
        return parse_plans(text)

    def constraint(self, case: PlanCase) -> Constraint | None:
        """Return the paths that exist, where the case brings them."""
        return case.paths_allowed
