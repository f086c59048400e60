"""explain: from a question and reasoning paths to its answers and why (RoG A.10)."""

from __future__ import annotations

from dataclasses import dataclass

from kgqa_core.instructions.explained import Explained, parse_explained, write_explained
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.render import ScoredPath, fill_prompt, render_paths
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import Constraint, Prompt


@dataclass(frozen=True, slots=True)
class ExplainCase:
    """A question with reasoning paths, and the explanation that is taught."""

    question: str
    question_id: str = ""
    paths: tuple[ScoredPath, ...] = ()
    shown: tuple[str, ...] = ()  # names of the entities that the paths end at
    explanation: str | None = None  # taught: from a teacher or a template of the paths
    answers: tuple[str, ...] = ()  # taught with it


@dataclass(frozen=True, slots=True)
class ExplainInstruction:
    """The instruction ``explain``."""

    prompts: Prompts

    @property
    def name(self) -> str:
        """Return ``explain``."""
        return "explain"

    def render(self, case: ExplainCase) -> Prompt:
        """Return the prompt."""
        values = {"question": case.question, "paths": render_paths(case.paths)}
        return fill_prompt(self.prompts, self.name, values, question_id=case.question_id)

    def target(self, case: ExplainCase) -> str | None:
        """Return the explanation and the answers that are taught."""
        return None if case.explanation is None else write_explained(case.explanation, case.answers)

    def parse(self, text: str, case: ExplainCase) -> Explained | ParseFailure:
        """Return the explanation and the answers of a text."""
        return parse_explained(text, case.shown)

    def constraint(self, case: ExplainCase) -> Constraint | None:
        """Return None: an explanation is free text."""
        return None
