"""Hard pools: the gold plan, and others that exist, lead somewhere and find no gold."""

from __future__ import annotations

import pytest

from kgqa_core.graph.follow import follow_path
from kgqa_core.graph.kg import to_relations
from kgqa_core.instructions.path_constraint import PathConstraints
from kgqa_core.systems.plans import find_hard_negatives, with_hard_negatives
from tests.forty_triples import Forty


@pytest.fixture(scope="module")
def space(forty: Forty) -> PathConstraints:
    """The plans of the forty triples."""
    return PathConstraints(forty.graph)


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
