"""How tests follow a system on forty triples: one question answered, and what its prompts showed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.config_base import CONF
from kgqa_core.instructions.plan import Plan, PlanQuestion
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.types import LanguageModel
from kgqa_core.systems.types import Answered, System
from kgqa_core.types import Question
from tests.forty_triples import Forty
from tests.scripted import ScriptedModel
from tests.systems.asking import answer_all

LINES = read_prompts(CONF / "papers" / "prompts")
"""Prompts that show each path on a line of its own, as the papers do: then a test sees what is between, too."""


@dataclass(frozen=True)
class Proposed:
    """Proposes the same plans for every question. Implements ``Planner``."""

    plans: Sequence[Plan]

    def plan(self, questions: Sequence[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
        return [list(self.plans[:num_plans]) for _ in questions]


def answer_one(forty: Forty, system: System, question: Question | str, model: LanguageModel | None) -> Answered:
    """Answer one question, given whole or by its id; a script must have been said to its end."""
    asked = forty.question(question) if isinstance(question, str) else question
    (answered,) = answer_all(system, [asked], forty.search, model)
    assert answered.error == ""
    if isinstance(model, ScriptedModel):
        model.check_done()
    return answered


def answers(forty: Forty, answered: Answered) -> list[str]:
    """Return the labels of what was answered."""
    return forty.labels(answered.answer.prediction.answers)


def lines_under(prompt: str, heading: str, until: str = "\n") -> list[str]:
    """Return a prompt's lines between its last such heading and the next line that begins so, or is empty."""
    return prompt.rsplit(f"{heading}\n", 1)[1].split(f"\n{until}")[0].split("\n")
