"""What an instruction is, how its prompt is made to fit a context, and what its examples are at rest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from kgqa_core.instructions.render import PLACEHOLDER, Prompts
from kgqa_core.lm.types import Constraint, Prompt


@dataclass(frozen=True, slots=True)
class Case:
    """What every instruction is asked about: a question, and what subclasses have beside it."""

    question: str  # its text, as the prompt shows it
    question_id: str = field(default="", kw_only=True)  # whose budget the call is on


AnyCase = TypeVar("AnyCase", bound=Case, contravariant=True)
Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """A text that holds no result; counted by reason, and whoever asked abstains."""

    reason: str  # a short, fixed phrase


@dataclass(frozen=True)
class Instruction(Generic[AnyCase, Result]):
    """One thing that we ask of a language model.

    By default the prompt file bears the instruction's name, the graph supervises no target, any text may be answered,
    and a prompt shows all of its case.
    """

    name: ClassVar[str]  # that mixtures, prompt files and accounts use
    part: ClassVar[str] = ""  # field of a case whose items, each with a score, may be left out: see ``fit_prompt``
    prompts: Prompts  # of the run

    @property
    def file(self) -> str:
        """Return the name of the prompt file."""
        return self.name

    def values(self, case: AnyCase) -> Mapping[str, str]:
        """Return the text for each placeholder of the prompt file but ``{question}``."""
        return {}

    def parse(self, text: str, case: AnyCase) -> Result | ParseFailure:
        """Return the typed result of any text whatsoever; never raises."""
        raise NotImplementedError

    def target(self, case: AnyCase) -> str | None:
        """Return the answer that the graph supervises; None where it cannot give one."""
        return None

    def constraint(self, case: AnyCase) -> Constraint | None:
        """Return what may be answered, where that is known."""
        return None

    def render(self, case: AnyCase) -> Prompt:
        """Return the prompt, with the constraint where the answer space is known."""
        template, values = self.prompts[self.file], {"question": case.question, **self.values(case)}
        turns = (template.text, template.system)
        text, system = (PLACEHOLDER.sub(lambda found: values[found[1]], turn) for turn in turns)
        return Prompt(text, system, self.constraint(case), case.question_id, self.name, (self, case))


def fit_prompt(
    instruction: Instruction[Any, Any], case: Any, count_tokens: Callable[[Sequence[Prompt]], list[int]], *, limit: int
) -> tuple[Prompt, Any]:
    """Return the prompt that shows as many items (``instruction.part``) of a case as fit into ``limit`` tokens.

    With it comes the case with those items: the answer is read by that one. The lowest score is left out first, of
    equals the last; the order stays. A prompt that is too long without any item is returned all the same.
    """
    prompt = instruction.render(case)
    items = getattr(case, instruction.part) if instruction.part else ()
    if not items or count_tokens([prompt])[0] <= limit:  # most prompts fit as they are
        return prompt, case
    ranked = sorted(range(len(items)), key=lambda place: (-items[place].score, place))

    def cut(num: int) -> Any:
        return replace(case, **{instruction.part: tuple(items[place] for place in sorted(ranked[:num]))})

    def is_too_long(num: int) -> bool:
        return count_tokens([instruction.render(cut(num))])[0] > limit

    fitted = cut(bisect_left(range(1, len(items)), True, key=is_too_long))
    return instruction.render(fitted), fitted


@dataclass(frozen=True, slots=True)
class Example:
    """One row of instruction data (schemas.INSTRUCTIONS): a rendered prompt with its target."""

    instruction: str
    question_id: str
    split: str
    system: str
    prompt: str
    target: str
    weight: float  # of this example's loss: RoG's planning examples weigh 1/|Z*| (Eq. 4), EPERM's 1 (Eq. 6)
