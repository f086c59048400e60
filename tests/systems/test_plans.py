"""Where plans come from: the model, a planner, chance; and hard negatives, of plans and of candidates."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kgqa_core.systems.plans import (
    FixedCandidates,
    FixedPlans,
    PlanSource,
    RandomPlans,
    find_hard_negatives,
    random_plan,
    seed_of,
    with_hard_negatives,
)

from kgqa_core.graph.follow import execute_plans, follow_path
from kgqa_core.graph.kg import to_relations
from kgqa_core.graph.search_graph import is_evidence
from kgqa_core.instructions.plan import PathConstraints, Plan, PlanAsker, PlanInstruction, PlanQuestion
from kgqa_core.instructions.render import read_prompts
from kgqa_core.lm.types import Generation
from kgqa_core.planners.generator import PlanAsker
from kgqa_core.planners.types import Plan, PlanQuestion
from kgqa_core.systems.types import Reply
from kgqa_core.types import Prediction
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
    plans = PlanSource(PlanAsker(PlanInstruction(read_prompts()), space))
    question = forty.question("born")
    assert plans.prepare([question, question], 3) == [None, None]  # there is nothing before the call
    ask = plans.ask(question, 3)
    assert (ask.case.question, ask.case.question_id) == (question.masked, "born")
    assert (ask.decoding.method, ask.decoding.num_beams, ask.decoding.num_returns) == ("beam", 3, 3)
    assert PlanSource(plans.asker, mask_topics=False).ask(question, 3).case.question == question.text


def test_its_texts_are_plans_best_first_without_those_that_do_not_exist(forty: Forty, space: PathConstraints) -> None:
    plans = PlanSource(PlanAsker(PlanInstruction(read_prompts()), space))
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
    masked = PlanSource(Echo()).prepare(asked, 2)  # type: ignore[arg-type]
    assert masked == [[Plan((one.id, one.masked), -1.0)] * 2 for one in asked]
    plain = PlanSource(Echo(), mask_topics=False).prepare(asked, 1)  # type: ignore[arg-type]
    assert plain == [[Plan((one.id, one.text), -1.0)] for one in asked]
    with pytest.raises(NotImplementedError):
        PlanSource(Echo()).ask(asked[0], 1)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError):
        PlanSource(Echo()).read(Reply(None, None), 1)  # type: ignore[arg-type]


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
    assert planner.plan([PlanQuestion("lone", "who?", ())]) == [[]]  # no way leads away from nowhere
    short = RandomPlans(forty.graph, PathConstraints(forty.graph, max_hops=1)).plan(asked, num_plans=2)
    assert {len(plan.path) for plans in short for plan in plans} == {1}


def test_seeds_follow_from_what_is_drawn_for_whom() -> None:
    assert seed_of("plans", "q1", 0) == seed_of("plans", "q1", 0)
    assert len({seed_of(*parts) for parts in (("a", "b"), ("ab",), ("b", "a"), ("a", "b", 0))}) == 4


# A pool


def test_a_pool_is_taken_whole_in_its_order_and_of_equal_weight(forty: Forty) -> None:
    pool = [("year",), ("starred",), ("genre",), ("directed_by",)]
    first, second = PlanSource(FixedPlans({"directed": pool})).prepare(
        [forty.question("directed"), forty.question("starred")], 2
    )
    assert first is not None
    assert [plan.path for plan in first] == pool
    assert math.fsum(math.exp(plan.log_prob) for plan in first) == pytest.approx(1)
    assert second == []  # a question that no pool is of


# Hard negatives: the gold plan, and others that exist, lead somewhere and find no gold


def test_wrong_plans_lead_somewhere_but_to_no_gold(forty: Forty, space: PathConstraints) -> None:
    for question in forty.questions[:9]:
        pool = with_hard_negatives(forty.graph, space, question, forty.plans[question.id])
        assert len(pool) == len(set(pool)) == 3 and forty.plans[question.id][0] in pool
        for plan in set(pool) - {forty.plans[question.id][0]}:
            path = to_relations(forty.graph, plan)
            assert path is not None
            reached = set(follow_path(forty.graph, question.topics, path).tolist())
            assert reached and reached.isdisjoint(question.answers)


def test_plans_that_begin_as_the_gold_plan_does_are_taken_first(forty: Forty, space: PathConstraints) -> None:
    """From the director of Salt Road one may also go to his films; ^directed_by and ^starred share its first step."""
    pool = with_hard_negatives(forty.graph, space, forty.question("born"), forty.plans["born"])
    assert set(pool) == {("directed_by", "born_in"), ("directed_by", "^directed_by"), ("directed_by", "^starred")}


def test_the_order_follows_from_the_seed_alone(forty: Forty, space: PathConstraints) -> None:
    def pool(seed: int) -> tuple[tuple[str, ...], ...]:
        return with_hard_negatives(forty.graph, space, forty.question("years"), forty.plans["years"], seed=seed)

    assert pool(0) == pool(0)
    places = {pool(seed).index(forty.plans["years"][0]) for seed in range(20)}
    assert places == {0, 1, 2}  # the gold plan's place tells nothing


def test_a_question_may_have_no_gold_plan_and_a_plan_no_wrong_one_beside_it(forty: Forty) -> None:
    short = PathConstraints(forty.graph, max_hops=1)
    asked = [forty.question(id) for id in ("directed", "painted", "born", "no topic")]
    found = find_hard_negatives(forty.graph, short, asked, {**forty.plans, "born": (("made_up",),)})
    assert set(found) == {"directed", "painted"}
    assert found["painted"] == (("painted_by",),)  # nothing else leaves Blue Dunes


# Candidates: one of each plan, none better than another


def candidates(forty: Forty, id: str, *plans: str) -> Prediction:
    pool: dict[str, Sequence[tuple[str, ...]]] = {id: [tuple(plan.split()) for plan in plans]}
    (found,) = FixedCandidates(forty.search, pool).answer([forty.question(id)])
    return found


def test_each_plan_gives_its_first_end_with_the_path_to_it_all_as_probable(forty: Forty) -> None:
    found = candidates(forty, "directed", "starred", "directed_by", "year")
    assert forty.labels(found.candidates) == ["Mara Quill", "Ida Moon", "1989"]  # ends of a plan by id
    assert found.scores == (1 / 3,) * 3
    assert (found.answers, found.covered, found.abstained) == ((), True, False)
    for entity, path in zip(found.candidates, found.paths, strict=True):
        assert is_evidence(forty.graph, path, entity)


def test_an_end_that_a_plan_before_it_has_is_passed_over(forty: Forty) -> None:
    """Both plans lead to Port Amber; the second to Westerby, too, third plans and others to nothing new."""
    found = candidates(forty, "born", "directed_by born_in", "starred born_in", "directed_by born_in")
    assert forty.labels(found.candidates) == ["Port Amber", "Westerby"]
    assert found.scores == (0.5, 0.5)


def test_plans_that_lead_nowhere_give_nothing_and_those_elsewhere_cover_no_gold(forty: Forty) -> None:
    found = candidates(forty, "directed", "painted_by", "no_such_relation")
    assert found == Prediction("directed", (), (), (), abstained=True)
    (unknown,) = FixedCandidates(forty.search, {}).answer([forty.question("born")])
    assert unknown.abstained
    assert not candidates(forty, "directed", "year", "genre").covered
