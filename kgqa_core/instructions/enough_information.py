"""enough_information: do these paths answer the question? (Think-on-Graph's stopping rule)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kgqa_core.instructions.escapes import escape
from kgqa_core.instructions.plan_text import failure
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.render import ScoredPath, fill_prompt, render_lines, render_paths
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.constraints import Choices
from kgqa_core.lm.types import Constraint, Prompt

YES, NO = "yes", "no"

_VERDICT = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_INSUFFICIENT = re.compile(r"\b(?:not (?:enough|sufficient)|insufficient)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EnoughCase:
    """A question with the evidence found so far."""

    question: str
    question_id: str = ""
    topics: tuple[str, ...] = ()  # names
    paths: tuple[ScoredPath, ...] = ()
    enough: bool | None = None  # taught: does the evidence reach an answer?


@dataclass(frozen=True, slots=True)
class EnoughInstruction:
    """The instruction ``enough_information``."""

    prompts: Prompts

    @property
    def name(self) -> str:
        """Return ``enough_information``."""
        return "enough_information"

    def render(self, case: EnoughCase) -> Prompt:
        """Return the prompt."""
        values = {
            "question": case.question,
            "topics": render_lines(map(escape, case.topics)),
            "paths": render_paths(case.paths),
        }
        constraint = self.constraint(case)
        return fill_prompt(self.prompts, self.name, values, question_id=case.question_id, constraint=constraint)

    def target(self, case: EnoughCase) -> str | None:
        """Return yes or no."""
        return None if case.enough is None else YES if case.enough else NO

    def parse(self, text: str, case: EnoughCase) -> bool | ParseFailure:
        """Return the first verdict of a text."""
        if verdict := _VERDICT.search(text):
            return verdict[1].lower() == YES
        return False if _INSUFFICIENT.search(text) else failure("neither yes nor no", text)

    def constraint(self, case: EnoughCase) -> Constraint | None:
        """Return the two verdicts."""
        return Choices((YES, NO))
