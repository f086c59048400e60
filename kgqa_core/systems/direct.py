"""direct and cot: the question alone, in one call. What they get right the model knows without any graph.

direct is the IO baseline; cot (chain of thought) thinks the question through before it answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.config_systems import SystemType
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.answers import Explained
from kgqa_core.instructions.reason import ChainOfThoughtInstruction, DirectCase, DirectInstruction
from kgqa_core.instructions.render import Prompts
from kgqa_core.systems.answering import answer_by_name
from kgqa_core.systems.types import Ask, Parts, Steps
from kgqa_core.types import Question


@dataclass(frozen=True, slots=True)
class Direct:
    """The question, and nothing else. Implements ``System``."""

    search: SearchGraph
    prompts: Prompts
    thinks: bool = False  # aloud, before it answers
    needs_topic: bool = False
    on_rows: bool = False

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return "cot" if self.thinks else "direct"

    def prepare(self, questions: Sequence[Question]) -> Sequence[None]:
        """Return nothing for each question: there is nothing to prepare."""
        return [None] * len(questions)

    def steps(self, question: Question, prepared: None) -> Steps:
        """Ask once."""
        if self.thinks:
            (reply,) = yield [Ask(ChainOfThoughtInstruction(self.prompts), DirectCase(question.text))]
        else:
            (reply,) = yield [Ask(DirectInstruction(self.prompts), DirectCase(question.text))]
        said = reply.result.answers if isinstance(reply.result, Explained) else reply.result
        return answer_by_name(self.search, question, said, ())


def open_direct(parts: Parts) -> Direct:
    """Open direct."""
    return Direct(parts.search, parts.prompts)


def open_cot(parts: Parts) -> Direct:
    """Open cot."""
    return Direct(parts.search, parts.prompts, thinks=True)


DIRECT = SystemType(open_direct)
COT = SystemType(open_cot)
