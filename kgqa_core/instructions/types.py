"""What an instruction is, and what its examples look like at rest (schemas.INSTRUCTIONS)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from kgqa_core.instructions.render import Prompts
from kgqa_core.lm.types import Constraint, Prompt


class Question(Protocol):
    """What every case has."""

    @property
    def question(self) -> str:
        """Return the question's text, as the prompt shows it."""
        ...

    @property
    def question_id(self) -> str:
        """Return whose budget the call is on."""
        ...


Case = TypeVar("Case", bound=Question, contravariant=True)
Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """A text that holds no result; counted by reason, and whoever asked abstains."""

    reason: str  # a short, fixed phrase
    text: str  # what the model said, cut


class Instruction(Protocol[Case, Result]):
    """One thing that we ask of a language model.

    Implementations are frozen dataclasses that inherit the defaults below: the prompt file bears the instruction's
    name, the graph supervises no target, and any text may be answered.
    """

    name: ClassVar[str]  # that mixtures, prompt files and accounts use

    @property
    def prompts(self) -> Prompts:
        """Return the prompts of the run."""
        ...

    @property
    def file(self) -> str:
        """Return the name of the prompt file."""
        return self.name

    def values(self, case: Case) -> Mapping[str, str]:
        """Return the text for each placeholder of the prompt file but ``{question}``."""
        return {}

    def parse(self, text: str, case: Case) -> Result | ParseFailure:
        """Return the typed result of any text whatsoever; never raises."""
        ...

    def target(self, case: Case) -> str | None:
        """Return the answer that the graph supervises; None where it cannot give one."""
        return None

    def constraint(self, case: Case) -> Constraint | None:
        """Return what may be answered, where that is known."""
        return None

    def render(self, case: Case) -> Prompt:
        """Return the prompt, with the constraint where the answer space is known."""
        text, system = self.prompts.fill(self.file, {"question": case.question, **self.values(case)})
        return Prompt(text, system, self.constraint(case), case.question_id, self.name, (self, case))


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
