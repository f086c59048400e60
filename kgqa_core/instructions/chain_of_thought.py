"""chain_of_thought: from a question to its answers by thinking aloud, without any graph (the CoT baseline)."""

from __future__ import annotations

from dataclasses import dataclass

from kgqa_core.instructions.explained import Explained, parse_explained
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.render import fill_prompt
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import Constraint, Prompt


@dataclass(frozen=True, slots=True)
class ChainOfThoughtCase:
    """A question alone."""

    question: str
    question_id: str = ""


@dataclass(frozen=True, slots=True)
class ChainOfThoughtInstruction:
    """The instruction ``chain_of_thought``."""

    prompts: Prompts

    @property
    def name(self) -> str:
        """Return ``chain_of_thought``."""
        return "chain_of_thought"

    def render(self, case: ChainOfThoughtCase) -> Prompt:
        """Return the prompt."""
        return fill_prompt(self.prompts, self.name, {"question": case.question}, question_id=case.question_id)

    def target(self, case: ChainOfThoughtCase) -> str | None:
        """Return None: no graph says how to think."""
        return None

    def parse(self, text: str, case: ChainOfThoughtCase) -> Explained | ParseFailure:
        """Return the thoughts and the answers of a text."""
        return parse_explained(text)

    def constraint(self, case: ChainOfThoughtCase) -> Constraint | None:
        """Return None: thoughts are free text."""
        return None
