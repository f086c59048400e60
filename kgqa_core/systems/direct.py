"""direct (the IO baseline): the question alone, in one call. What it gets right the model knows without any graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.instructions.answers import Answers
from kgqa_core.instructions.reason import ChainOfThoughtCase, ChainOfThoughtInstruction, DirectCase, DirectInstruction
from kgqa_core.instructions.render import Prompts
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.systems.answering import answer_by_name
from kgqa_core.systems.types import Ask, Steps
from kgqa_core.systems.walk import Walk
from kgqa_core.types import Question


@dataclass(frozen=True, slots=True)
class Direct:
    """The question, and nothing else. Implements ``System``."""

    walk: Walk
    prompts: Prompts
    name: str = "direct"
    needs_topic: bool = False
    on_rows: bool = False

    def prepare(self, questions: Sequence[Question]) -> Sequence[None]:
        """Return nothing for each question: there is nothing to prepare."""
        return [None] * len(questions)

    def steps(self, question: Question, prepared: None) -> Steps:
        """Ask once."""
        (reply,) = yield [Ask(DirectInstruction(self.prompts), DirectCase(question.text))]
        return answer_by_name(self.walk, question, reply.result, ())


# ------ cot (chain of thought): the question alone, thought through before it is answered, in one call.


@dataclass(frozen=True, slots=True)
class ChainOfThought:
    """The question, and room to think. Implements ``System``."""

    walk: Walk
    prompts: Prompts
    name: str = "cot"
    needs_topic: bool = False
    on_rows: bool = False

    def prepare(self, questions: Sequence[Question]) -> Sequence[None]:
        """Return nothing for each question: there is nothing to prepare."""
        return [None] * len(questions)

    def steps(self, question: Question, prepared: None) -> Steps:
        """Ask once."""
        (reply,) = yield [Ask(ChainOfThoughtInstruction(self.prompts), ChainOfThoughtCase(question.text))]
        thought = reply.result
        answers: Answers | ParseFailure = thought if isinstance(thought, ParseFailure) else thought.answers
        return answer_by_name(self.walk, question, answers, ())
