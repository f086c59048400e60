"""Explanations to learn from: a template along the paths, or a teacher that must find the right answers itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kgqa_core.instructions.asking import ask_teacher, by_question, explain_paths
from kgqa_core.instructions.reason import ExplainCase, ExplainInstruction
from kgqa_core.instructions.render import ScoredPath
from kgqa_core.lm.types import GREEDY, Decoding, Generation, Prompt
from kgqa_core.types import Step


@dataclass(frozen=True)
class Fake:
    """A teacher that says what it was given to say."""

    texts: tuple[Generation, ...]
    name: str = "fake"
    context: int = 1000

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        return [1 for _ in prompts]

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        return [[text] for text in self.texts[: len(prompts)]]

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        return [[0.0 for _ in of_one] for of_one in options]


def test_a_template_says_which_way_each_relation_is_read(world: Any) -> None:
    made_by = world.graph.relation_labels.index("made_by")
    dawn, moon, dusk = (world.id_of(name) for name in ("Dawn", "Ida Moon", "Dusk"))
    path = (Step(dawn, made_by, moon), Step(dusk, made_by, moon, reverse=True))
    assert explain_paths(world.graph, [path]) == (
        'From Dawn, "made by" leads to Ida Moon, and from there "made by", read backward, leads to Dusk.'
    )
    assert explain_paths(world.graph, []) == ""


def test_a_teacher_is_believed_where_it_finds_the_right_answers(world: Any) -> None:
    asked = ["q1", "q2", "q3", "q4", "q5"]
    cases = [ExplainCase("who?", id, paths=(ScoredPath("a → b → C"),), answers=("C",)) for id in asked]
    teacher = Fake(
        (
            Generation("It leads there.\nAnswers:\n- c"),
            Generation("It leads elsewhere.\nAnswers:\nD"),
            Generation("Answers:\nC"),
            Generation("", problem="timeout"),
            Generation(""),
        )
    )
    taught = ask_teacher(teacher, ExplainInstruction(world.prompts), cases)
    assert by_question(taught.cases) == {"q1": "It leads there."}
    assert taught.refused == {"other answers": 1, "no explanation": 1, "timeout": 1, "empty text": 1}
