"""A language model as a planner: only plans that exist, each once, best first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.instructions.plan import (
    GeneratorPlanner,
    PathConstraints,
    Plan,
    PlanAsker,
    PlanInstruction,
    PlanQuestion,
    RelationConstraint,
)
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.calls import is_allowed
from kgqa_core.lm.local import open_local
from kgqa_core.lm.types import GREEDY, Decoding, Generation, LanguageModel, Prompt
from tests.lm.tiny_models import make_llama
from tests.loading import graph_of_text

FILMS = "Heat|directed_by|Mann\nHeat|starred_actors|Pacino\nAli|directed_by|Mann\nAli|starred_actors|Smith\n"
PROMPTS = PlanInstruction(read_prompts())


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeGraph:
    folder = tmp_path_factory.mktemp("films")
    return graph_of_text(folder, FILMS, format="wikimovies")


class Says:
    """Always gives the same texts, as an endpoint does that follows no constraint."""

    name, context = "says", 100

    def __init__(self, *texts: Generation) -> None:
        self.texts, self.asked = texts, list[Prompt]()

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        return [1 for _ in prompts]

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        self.asked += prompts
        assert decoding.num_beams == decoding.num_returns
        return [list(self.texts) for _ in prompts]

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        self.asked += prompts
        return [[-float(len(text)) for text in own] for own in options]


def planner_of(model: LanguageModel, *, space: PathConstraints | RelationConstraint | None) -> GeneratorPlanner:
    return GeneratorPlanner(model, PlanAsker(PROMPTS, space))


def about(films: KnowledgeGraph, name: str) -> PlanQuestion:
    return PlanQuestion("q", "who else is in it", films.ids_of_name(name))


def test_a_plan_that_does_not_exist_is_no_plan(films: KnowledgeGraph) -> None:
    model = Says(
        Generation("<PATH>^directed_by</PATH>", -0.1),  # films have directors, they direct none
        Generation("<PATH>directed_by</PATH>", -0.2),
        Generation("a nice film", -0.3),
        Generation("", problem="timeout"),
        Generation("<PATH>made_up</PATH>", -0.4),
    )
    planner = planner_of(model, space=PathConstraints(films))
    assert planner.plan([about(films, "Heat")]) == [[Plan(("directed_by",), -0.2)]]
    free = planner_of(model, space=None).plan([about(films, "Heat")], num_plans=2)
    assert [plan.path for plan in free[0]] == [("^directed_by",), ("directed_by",)]
    known = planner_of(model, space=RelationConstraint(films.relation_names))
    assert known.plan([about(films, "Heat")]) == [[Plan(("directed_by",), -0.2)]]


def test_equal_plans_are_one_with_the_probability_of_all(films: KnowledgeGraph) -> None:
    texts = [("directed_by", 0.3), ("starred_actors", 0.4), ("directed_by", 0.2)]
    model = Says(*(Generation(f"<PATH>{label}</PATH>", math.log(chance)) for label, chance in texts))
    ((first, second),) = planner_of(model, space=None).plan([about(films, "Heat")])
    assert first.path == ("directed_by",) and math.exp(first.log_prob) == pytest.approx(0.5)
    assert second.path == ("starred_actors",) and math.exp(second.log_prob) == pytest.approx(0.4)


def test_the_prompt_holds_the_question_its_account_and_the_plans_around_its_topics(films: KnowledgeGraph) -> None:
    model = Says()
    assert planner_of(model, space=PathConstraints(films)).plan([about(films, "Mann")]) == [[]]
    (prompt,) = model.asked
    assert "who else is in it" in prompt.text and prompt.question_id == "q" and prompt.instruction == "plan"
    assert prompt.constraint is not None and is_allowed(prompt.constraint, "<PATH>^directed_by</PATH>")


def test_given_paths_are_weighed_as_they_would_be_written(films: KnowledgeGraph) -> None:
    planner = planner_of(Says(), space=PathConstraints(films))
    assert planner.weigh([about(films, "Heat")], [[("a",), ("a", "^b")]]) == [[-14.0, -21.0]]


def test_a_model_with_random_weights_writes_plans_that_exist_and_nothing_else(
    films: KnowledgeGraph, tmp_path: Path
) -> None:
    space = PathConstraints(films, max_hops=3)
    planner = planner_of(open_local(make_llama(tmp_path / "llama", max_position_embeddings=997)), space=space)
    questions = [about(films, name) for name in ("Heat", "Mann", "Smith")] + [PlanQuestion("q", "of nothing")]
    *plans, none = planner.plan(questions, num_plans=4)
    assert all(plans) and none == []
    follow = {question.topics: space.around(question.topics) for question in questions}
    for question, own in zip(questions, plans, strict=False):
        assert len({plan.path for plan in own}) == len(own)
        assert all(is_allowed(follow[question.topics], f"<PATH>{'<SEP>'.join(plan.path)}</PATH>") for plan in own)
        assert [plan.log_prob for plan in own] == sorted((plan.log_prob for plan in own), reverse=True)
