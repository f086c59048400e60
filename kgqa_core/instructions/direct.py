"""direct: from a question to its answers, without any graph (the IO baseline; tuned: RoG's Table 16)."""

from __future__ import annotations

from dataclasses import dataclass

from kgqa_core.instructions.answers import Answers, parse_answers, write_answers
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.render import fill_prompt
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import Constraint, Prompt


@dataclass(frozen=True, slots=True)
class DirectCase:
    """A question alone."""

    question: str
    question_id: str = ""
    answers: tuple[str, ...] | None = None  # names that are taught


@dataclass(frozen=True, slots=True)
class DirectInstruction:
    """The instruction ``direct``."""

    prompts: Prompts

    @property
    def name(self) -> str:
        """Return ``direct``."""
        return "direct"

    def render(self, case: DirectCase) -> Prompt:
        """Return the prompt."""
        return fill_prompt(self.prompts, self.name, {"question": case.question}, question_id=case.question_id)

    def target(self, case: DirectCase) -> str | None:
        """Return the answers that are taught."""
        return None if case.answers is None else write_answers(case.answers)

    def parse(self, text: str, case: DirectCase) -> Answers | ParseFailure:
        """Return the distinct answers of a text, or that it abstains."""
        return parse_answers(text)

    def constraint(self, case: DirectCase) -> Constraint | None:
        """Return None: the answer space is everything."""
        return None
