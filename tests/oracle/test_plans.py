"""Plans that no model makes: random ones; and hard negatives, as plans and as candidates."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgqa_core.graph.follow import execute_plans, follow_layers
from kgqa_core.graph.kg import to_relations
from kgqa_core.graph.search_graph import SearchGraph, is_evidence
from kgqa_core.instructions.examples import wrong_plans
from kgqa_core.instructions.plan import PathConstraints, PlanQuestion
from kgqa_core.oracle.plans import FixedPlans, RandomPlans, find_hard_negatives, propose_ends, random_plan
from kgqa_core.systems.answering import PlanSource
from kgqa_core.types import Prediction, Question
from tests.forty_triples import Forty


@pytest.fixture(scope="module")
def space(forty: Forty) -> PathConstraints:
    return PathConstraints(forty.graph, max_hops=3)


def reach(forty: Forty, topics: tuple[int, ...], *plans: tuple[str, ...]) -> list[int]:
    """Return how many entities each plan reaches."""
    (found,) = execute_plans(forty.graph, [topics], [list(plans)])
    return [len(entities) for entities in found]


# Chance


@given(
    topics=st.lists(st.integers(0, 22), min_size=1, max_size=2, unique=True).map(sorted).map(tuple),
    seed=st.integers(0, 99),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_random_plans_exist_around_the_topics(
    forty: Forty, space: PathConstraints, topics: tuple[int, ...], seed: int
) -> None:
    plan = random_plan(space, topics, random.Random(seed))
    exists = any(len(part) for part in space.around(topics).next_relations(()))
    assert (plan is not None) == exists
    if plan is not None:
        assert 1 <= len(plan) <= 3
        assert reach(forty, topics, plan)[0] > 0


def test_random_plans_are_drawn_per_question_whatever_is_drawn_before(forty: Forty, space: PathConstraints) -> None:
    asked = [PlanQuestion(one.id, one.text, one.topics) for one in forty.questions if one.topics]
    planner = RandomPlans(space, seed=5)
    together = planner.plan(asked, num_plans=3)
    assert [planner.plan([one], num_plans=3)[0] for one in reversed(asked)] == together[::-1]
    assert RandomPlans(space, seed=6).plan(asked, num_plans=3) != together
    for one, plans in zip(asked, together, strict=True):
        paths = [plan.path for plan in plans]
        assert 1 <= len(set(paths)) == len(paths) <= 3
        assert min(reach(forty, one.topics, *paths)) > 0
        assert {plan.log_prob for plan in plans} == {-math.log(3)}
    assert {len(plan.path) for plans in together for plan in plans} == {1, 2, 3}
    assert planner.plan([PlanQuestion("lone", "who?", ())]) == [[]]  # no way leads away from nowhere
    short = RandomPlans(PathConstraints(forty.graph, max_hops=1)).plan(asked, num_plans=2)
    assert {len(plan.path) for plans in short for plan in plans} == {1}


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
        pool = find_hard_negatives(space, [question], forty.plans)[question.id]
        assert len(pool) == len(set(pool)) == 3 and forty.plans[question.id][0] in pool
        for plan in set(pool) - {forty.plans[question.id][0]}:
            path = to_relations(forty.graph, plan)
            assert path is not None
            reached = set(follow_layers(forty.graph, question.topics, path)[-1].tolist())
            assert reached and reached.isdisjoint(question.answers)


def test_plans_that_begin_as_the_gold_plan_does_are_taken_first(forty: Forty, space: PathConstraints) -> None:
    """From the director of Salt Road one may also go to his films; ^directed_by and ^starred share its first step."""
    pool = find_hard_negatives(space, [forty.question("born")], forty.plans)["born"]
    assert set(pool) == {("directed_by", "born_in"), ("directed_by", "^directed_by"), ("directed_by", "^starred")}


def test_plans_that_are_a_step_too_long_or_too_short_are_mixed_in_where_they_are_wanted(
    forty: Forty, space: PathConstraints
) -> None:
    """Of "born", whose plan has two steps, the shorter one and those that go on; both kinds come early."""
    question, right = forty.question("born"), to_relations(forty.graph, forty.plans["born"][0])
    assert right is not None
    firsts = set()
    for seed in range(40):
        wrong = [*wrong_plans(forty.graph, space, question, [right], random.Random(seed), off_by_one=True)]
        assert sorted(wrong) == sorted(wrong_plans(forty.graph, space, question, [right], random.Random(seed)))
        firsts.add((len(wrong[0]), wrong[0][:1] == right[:1]))
    assert firsts == {(1, True), (2, True), (3, True)}


def test_the_order_follows_from_the_seed_alone(forty: Forty, space: PathConstraints) -> None:
    def pool(seed: int) -> tuple[tuple[str, ...], ...]:
        return find_hard_negatives(space, [forty.question("years")], forty.plans, seed=seed)["years"]

    assert pool(0) == pool(0)
    places = {pool(seed).index(forty.plans["years"][0]) for seed in range(20)}
    assert places == {0, 1, 2}  # the gold plan's place tells nothing


def test_a_question_may_have_no_gold_plan_and_a_plan_no_wrong_one_beside_it(forty: Forty) -> None:
    short = PathConstraints(forty.graph, max_hops=1)
    asked = [forty.question(id) for id in ("directed", "painted", "born", "no topic")]
    found = find_hard_negatives(short, asked, {**forty.plans, "born": (("made_up",),)})
    assert set(found) == {"directed", "painted"}
    assert found["painted"] == (("painted_by",),)  # nothing else leaves Blue Dunes


# Candidates: one of each plan, none better than another


def candidates(forty: Forty, id: str, *plans: str) -> Prediction:
    pool: dict[str, Sequence[tuple[str, ...]]] = {id: [tuple(plan.split()) for plan in plans]}
    (found,) = propose_ends(forty.search, pool, [forty.question(id)])
    return found


def test_each_plan_gives_its_first_end_with_the_path_to_it_all_as_probable(forty: Forty) -> None:
    found = candidates(forty, "directed", "starred", "directed_by", "year")
    assert forty.labels(found.candidates) == ["Mara Quill", "Ida Moon", "1989"]  # ends of a plan by id
    assert found.scores == (1 / 3,) * 3
    assert (found.answers, found.covered) == ((), True)
    for entity, path in zip(found.candidates, found.paths, strict=True):
        assert is_evidence(forty.graph, path, entity)


def test_an_end_that_a_plan_before_it_has_is_passed_over(forty: Forty) -> None:
    """Both plans lead to Port Amber; the second to Westerby, too, third plans and others to nothing new."""
    found = candidates(forty, "born", "directed_by born_in", "starred born_in", "directed_by born_in")
    assert forty.labels(found.candidates) == ["Port Amber", "Westerby"]
    assert found.scores == (0.5, 0.5)


def test_where_questions_have_subgraphs_candidates_are_entities_all_the_same(
    rows: tuple[SearchGraph, list[Question]],
) -> None:
    search, questions = rows
    pool: dict[str, Sequence[tuple[str, ...]]] = {"q1": [("sibling", "sibling")], "q2": [("likes",)]}
    asked = [one for one in questions if one.id in pool]
    for found, name in zip(propose_ends(search, pool, asked), ("Bob", "m.rock"), strict=True):
        assert (list(map(search.entities.name_of, found.candidates)), found.covered) == ([name], True)
        assert is_evidence(search.entities, found.paths[0], found.candidates[0])


def test_plans_that_lead_nowhere_give_nothing_and_those_elsewhere_cover_no_gold(forty: Forty) -> None:
    found = candidates(forty, "directed", "painted_by", "no_such_relation")
    assert found == Prediction("directed", (), (), ())
    (unknown,) = propose_ends(forty.search, {}, [forty.question("born")])
    assert not unknown.candidates
    assert not candidates(forty, "directed", "year", "genre").covered
