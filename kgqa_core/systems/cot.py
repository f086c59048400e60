"""cot (chain of thought): the question alone, thought through before it is answered, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.instructions.answers import Answers
from kgqa_core.instructions.chain_of_thought import ChainOfThoughtCase, ChainOfThoughtInstruction
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.systems.answering import answer_by_name
from kgqa_core.systems.types import Ask, Steps
from kgqa_core.systems.walk import Walk
from kgqa_core.types import Question


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
