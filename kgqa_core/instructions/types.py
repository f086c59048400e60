"""What an instruction is, and what its examples look like at rest (schemas.INSTRUCTIONS)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from kgqa_core.lm.types import Constraint, Prompt

Case = TypeVar("Case", contravariant=True)
Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """A text that holds no result; counted by reason, and whoever asked abstains."""

    reason: str  # a short, fixed phrase
    text: str  # what the model said, cut


class Instruction(Protocol[Case, Result]):
    """One thing that we ask of a language model."""

    @property
    def name(self) -> str:
        """Return the name that mixtures, prompt files and accounts use."""
        ...

    def render(self, case: Case) -> Prompt:
        """Return the prompt, with the constraint where the answer space is known."""
        ...

    def target(self, case: Case) -> str | None:
        """Return the answer that the graph supervises; None where it cannot give one."""
        ...

    def parse(self, text: str, case: Case) -> Result | ParseFailure:
        """Return the typed result of any text whatsoever; never raises."""
        ...

    def constraint(self, case: Case) -> Constraint | None:
        """Return what may be answered, where that is known."""
        ...


@dataclass(frozen=True, slots=True)
class Example:
    """One row of instruction data: a rendered prompt with its target."""

    instruction: str
    question_id: str
    split: str
    system: str
    prompt: str
    target: str
    weight: float  # of this example's loss: RoG's planning examples weigh 1/|Z*| (Eq. 4), EPERM's 1 (Eq. 6)
