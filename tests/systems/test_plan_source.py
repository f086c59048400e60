"""Where plans come from: the model that answers, a planner, chance, a pool."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgqa_core.graph.execute import execute_plans
from kgqa_core.instructions.path_constraint import PathConstraints
from kgqa_core.instructions.plan import PlanInstruction
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.types import Generation
from kgqa_core.planners.generator import PlanAsker
from kgqa_core.planners.types import Plan, PlanQuestion
from kgqa_core.systems.plans import GivenPlans, HardNegativePlans, LmPlans, RandomPlans, random_plan, seed_of
from kgqa_core.systems.types import Reply
from tests.forty_triples import Forty


@pytest.fixture(scope="module")
def space(forty: Forty) -> PathConstraints:
    return PathConstraints(forty.graph, max_hops=3)


def reach(forty: Forty, topics: tuple[int, ...], *plans: tuple[str, ...]) -> list[int]:
    """Return how many entities each plan reaches."""
    (found,) = execute_plans(forty.graph, [topics], [list(plans)])
    return [len(entities) for entities in found]


# The model that answers


def test_a_model_is_asked_for_a_beam_of_as_many_plans_as_are_wanted(forty: Forty, space: PathConstraints) -> None:
    plans = LmPlans(PlanAsker(PlanInstruction(read_prompts()), space))
    question = forty.question("born")
    assert plans.prepare([question, question], 3) == [None, None]  # there is nothing before the call
    ask = plans.ask(question, 3)
    assert (ask.case.question, ask.case.question_id) == (question.masked, "born")
    assert (ask.decoding.method, ask.decoding.num_beams, ask.decoding.num_returns) == ("beam", 3, 3)
    assert LmPlans(plans.asker, mask_topics=False).ask(question, 3).case.question == question.text


def test_its_texts_are_plans_best_first_without_those_that_do_not_exist(forty: Forty, space: PathConstraints) -> None:
    plans = LmPlans(PlanAsker(PlanInstruction(read_prompts()), space))
    ask = plans.ask(forty.question("born"), 2)
    texts = [
        Generation("<PATH>year</PATH>", -3.0),
        Generation("<PATH>directed_by<SEP>born_in</PATH>", -0.5),
        Generation("<PATH>painted_by</PATH>", -0.1),  # nobody painted the film
        Generation("no plan at all", -0.2),
        Generation("<PATH>starred</PATH>", -2.0),
        Generation("", problem="timeout"),
    ]
    read = plans.read(Reply(None, ask.case, tuple(texts)), 2)
    assert read == [Plan(("directed_by", "born_in"), -0.5), Plan(("starred",), -2.0)]


# A planner


def test_a_planner_is_asked_beforehand_for_all_questions(forty: Forty) -> None:
    class Echo:
        name = "echo"

        def plan(self, questions: list[PlanQuestion], *, num_plans: int = 3) -> list[list[Plan]]:
            return [[Plan((one.id, one.text), -1.0)] * num_plans for one in questions]

    asked = [forty.question("directed"), forty.question("starred")]
    masked = GivenPlans(Echo()).prepare(asked, 2)  # type: ignore[arg-type]
    assert masked == [[Plan((one.id, one.masked), -1.0)] * 2 for one in asked]
    plain = GivenPlans(Echo(), mask_topics=False).prepare(asked, 1)  # type: ignore[arg-type]
    assert plain == [[Plan((one.id, one.text), -1.0)] for one in asked]
    with pytest.raises(NotImplementedError):
        GivenPlans(Echo()).ask(asked[0], 1)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError):
        GivenPlans(Echo()).read(Reply(None, None), 1)  # type: ignore[arg-type]


# Chance


@given(
    topics=st.lists(st.integers(0, 22), min_size=1, max_size=2, unique=True).map(sorted).map(tuple),
    seed=st.integers(0, 99),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_random_plans_exist_around_the_topics(
    forty: Forty, space: PathConstraints, topics: tuple[int, ...], seed: int
) -> None:
    plan = random_plan(forty.graph, space, topics, random.Random(seed))
    exists = any(len(part) for part in space.around(topics).next_relations(()))
    assert (plan is not None) == exists
    if plan is not None:
        assert 1 <= len(plan) <= 3
        assert reach(forty, topics, plan)[0] > 0


def test_random_plans_are_drawn_per_question_whatever_is_drawn_before(forty: Forty, space: PathConstraints) -> None:
    asked = [PlanQuestion(one.id, one.text, one.topics) for one in forty.questions if one.topics]
    planner = RandomPlans(forty.graph, space, seed=5)
    together = planner.plan(asked, num_plans=3)
    assert [planner.plan([one], num_plans=3)[0] for one in reversed(asked)] == together[::-1]
    assert RandomPlans(forty.graph, space, seed=6).plan(asked, num_plans=3) != together
    for one, plans in zip(asked, together, strict=True):
        paths = [plan.path for plan in plans]
        assert 1 <= len(set(paths)) == len(paths) <= 3
        assert min(reach(forty, one.topics, *paths)) > 0
        assert {plan.log_prob for plan in plans} == {-math.log(3)}
    assert {len(plan.path) for plans in together for plan in plans} == {1, 2, 3}


def test_no_random_plan_leads_away_from_nowhere(forty: Forty, space: PathConstraints) -> None:
    assert RandomPlans(forty.graph, space).plan([PlanQuestion("lone", "who?", ())]) == [[]]


def test_seeds_follow_from_what_is_drawn_for_whom() -> None:
    assert seed_of("plans", "q1", 0) == seed_of("plans", "q1", 0)
    assert len({seed_of(*parts) for parts in (("a", "b"), ("ab",), ("b", "a"), ("a", "b", 0))}) == 4


# A pool


def test_a_pool_is_taken_whole_in_its_order_and_of_equal_weight(forty: Forty) -> None:
    pool = [("year",), ("starred",), ("genre",), ("directed_by",)]
    first, second = GivenPlans(HardNegativePlans({"directed": pool})).prepare(
        [forty.question("directed"), forty.question("starred")], 2
    )
    assert first is not None
    assert [plan.path for plan in first] == pool
    assert math.fsum(math.exp(plan.log_prob) for plan in first) == pytest.approx(1)
    assert second == []  # a question that no pool is of


def test_random_plans_are_no_longer_than_allowed(forty: Forty) -> None:
    question = forty.question("starred")
    (plans,) = GivenPlans(RandomPlans(forty.graph, PathConstraints(forty.graph, max_hops=1))).prepare([question], 2)
    assert plans is not None
    assert {len(plan.path) for plan in plans} == {1}
