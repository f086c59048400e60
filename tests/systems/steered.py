"""A system that does to each question what a function says, and a model that keeps what came together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kgqa_core.instructions.reason import DirectInstruction, ReasonCase
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.types import GREEDY, Decoding, Generation, Prompt
from kgqa_core.systems.answering import answer_with
from kgqa_core.systems.types import Ask, Steps
from kgqa_core.types import Question

PROMPTS = read_prompts()
ONE, TWO, THREE = "directed", "starred", "painted"  # questions with a topic


@dataclass
class Batches:
    """Says the same to every prompt, and keeps what came together."""

    text: str = "Ida Moon"
    name: str = "batches"
    context: int = 32_768
    together: list[list[Prompt]] = field(default_factory=list)
    decodings: list[Decoding | None] = field(default_factory=list)

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        return [len(prompt.text.split()) for prompt in prompts]

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        self.together.append(list(prompts))
        self.decodings.append(decoding)
        return [[Generation(self.text, -1.0, 2)] * decoding.num_returns for _ in prompts]

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        self.together.append(list(prompts))
        self.decodings.append(None)
        return [[-1.0 - place for place in range(len(own))] for own in options]

    def asked(self) -> list[list[str]]:
        """Return the questions of each batch."""
        return [[prompt.question_id for prompt in batch] for batch in self.together]


@dataclass
class Steered:
    """Does to each question what a function says."""

    plot: Callable[[Question], Steps]
    prepared: Callable[[Sequence[Question]], Sequence[Any]] = lambda questions: [None] * len(questions)
    needs_topic: bool = True
    on_rows: bool = False
    got: dict[str, Any] = field(default_factory=dict)  # what was prepared, by question

    def prepare(self, questions: Sequence[Question]) -> Sequence[Any]:
        return self.prepared(questions)

    def steps(self, question: Question, prepared: Any) -> Steps:
        self.got[question.id] = prepared
        return self.plot(question)


def direct(text: str = "", **more: Any) -> Ask[Any]:
    return Ask(DirectInstruction(PROMPTS), ReasonCase(text), **more)


def asks_in_turns(*rounds: int) -> Callable[[Question], Steps]:
    """Return a plot that asks so many calls in each round, and answers nothing."""

    def plot(question: Question) -> Steps:
        for number, num in enumerate(rounds):
            replies = yield [direct(f"{number}.{place} {question.text}") for place in range(num)]
            assert [reply.case.question for reply in replies] == [f"{number}.{at} {question.text}" for at in range(num)]
        return answer_with(question)

    return plot
