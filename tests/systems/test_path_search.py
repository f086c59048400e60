"""The search for the path that serves questions best, against following every path there is."""

from collections.abc import Callable
from itertools import product
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.graph.follow import follow_path
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.systems.controls import follow_topics, pick_evenly, score_paths
from kgqa_core.types import Question, RelationPath

Ask = Callable[..., Question]
Ids = Callable[..., tuple[int, ...]]

BY_DIRECTOR = "films by the director of [topic]"
CASES = [
    (BY_DIRECTOR, "Ash", "Birch"),
    (BY_DIRECTOR, "Dogwood", "Birch Cedar"),
    (BY_DIRECTOR, "Cedar", "Birch Dogwood"),
]


Edges = dict[tuple[int, int], set[int]]


@pytest.fixture(scope="module")
def edges(graph: KnowledgeGraph) -> Edges:
    """Return what each (entity, relation) reaches."""
    pairs = product(range(graph.num_entities), range(graph.identity))
    return {pair: set(graph.neighbors(*pair).tolist()) for pair in pairs}


def walk(edges: Edges, topics: tuple[int, ...], path: RelationPath, *, reenter: bool) -> set[int]:
    """Follow a path entity by entity; several topics: what they share, else what any reaches."""
    reached = []
    for topic in topics:
        here = {topic}
        for relation in path:
            here = {tail for entity in here for tail in edges[entity, relation]}
            here -= set() if reenter else set(topics)
        reached.append(here)
    return set.intersection(*reached) or set.union(*reached)


def every_path(edges: Edges, questions: list[Question], max_hops: int, *, reenter: bool) -> dict[RelationPath, float]:
    """Return the mean F1 of every path that there could be."""
    relations = range(1 + max(relation for _, relation in edges))
    paths = [path for hops in range(1, max_hops + 1) for path in product(relations, repeat=hops)]

    def f1(path: RelationPath, question: Question) -> float:
        reached, golds = walk(edges, question.topics, path, reenter=reenter), set(question.answers)
        return 2 * len(reached & golds) / (len(reached) + len(golds))

    return {path: fmean(f1(path, question) for question in questions) for path in paths}


@settings(max_examples=60, deadline=None)
@given(data=st.data(), reenter=st.booleans(), num_topics=st.integers(1, 2))
def test_head_is_the_best_of_all_paths_then_shortest_then_smallest(
    graph: KnowledgeGraph, edges: Edges, data: st.DataObject, reenter: bool, num_topics: int
) -> None:
    entity = st.integers(0, graph.num_entities - 1)
    questions = []
    for number in range(data.draw(st.integers(1, 3))):
        topics = tuple(sorted(data.draw(st.sets(entity, min_size=num_topics, max_size=num_topics))))
        golds = data.draw(st.sets(entity.filter(lambda e, topics=topics: e not in topics), min_size=1, max_size=3))
        questions.append(Question(str(number), "", "", topics, tuple(sorted(golds)), "train"))
    found = score_paths(graph, questions, max_hops=2, reenter_topic=reenter, execute=1_000)
    means = every_path(edges, questions, 2, reenter=reenter)
    best = min(means, key=lambda path: (-round(means[path], 9), len(path), path))
    if means[best] == 0:
        assert found == []
    else:
        assert (found[0].path, found[0].f1) == (best, pytest.approx(means[best]))
        assert all(scored.f1 == pytest.approx(means[scored.path]) for scored in found)


def test_the_path_behind_a_wording_is_found(graph: KnowledgeGraph, ask: Ask, path_of: Ids) -> None:
    (best, *_) = score_paths(graph, [ask(*case) for case in CASES], max_hops=3)
    assert (best.path, best.f1, best.num_questions) == (path_of("directed_by", "~directed_by"), 1.0, 3)


def test_three_steps_past_a_hub(graph: KnowledgeGraph, ask: Ask, path_of: Ids) -> None:
    questions = [ask("years", "Ash", "2001"), ask("years", "Cedar", "2001 2003")]
    best = score_paths(graph, questions, max_hops=3)[0]
    assert best.path == path_of("directed_by", "~directed_by", "release_year")


def test_a_perfect_short_path_ends_the_search(graph: KnowledgeGraph, ask: Ask, path_of: Ids) -> None:
    found = score_paths(graph, [ask("year", "Ash", "1999"), ask("year", "Elm", "2001")], max_hops=3)
    assert {len(scored.path) for scored in found} == {1}
    assert found[0].path == path_of("release_year")


def test_with_reentry_another_path_is_best(graph: KnowledgeGraph, ask: Ask, path_of: Ids) -> None:
    co_directed = path_of("directed_by", "~directed_by")
    question = ask("", "Ash", "Ash Birch")
    (best, *_) = score_paths(graph, [question], max_hops=2, reenter_topic=True)
    assert (best.path, best.f1) == (co_directed, 1)
    assert score_paths(graph, [question], max_hops=2)[0].f1 == pytest.approx(2 / 3)


def test_a_right_claim_serves_as_gold_where_no_answers_are_known(graph: KnowledgeGraph, ask: Ask, path_of: Ids) -> None:
    questions = [ask("is it", "Ash", claim="Dan", verdict=True), ask("is it", "Elm", claim="Dan", verdict=False)]
    (best, *_) = score_paths(graph, questions, max_hops=1)
    assert (best.path, best.num_questions) == (path_of("directed_by"), 1)


def test_nothing_is_found_for_golds_out_of_reach_or_unknown(graph: KnowledgeGraph, ask: Ask) -> None:
    assert score_paths(graph, [ask("", "Gus", "Dan")], max_hops=2) == []
    assert score_paths(graph, [ask("", "Gus", "Gus"), ask("", "Gus"), ask("", "", "Gus")], max_hops=2) == []
    assert score_paths(graph, [], max_hops=2) == []
    # Dan directed Ash, but he and Eve share Birch: that gold is lost
    assert score_paths(graph, [ask("", "Dan Eve", "Ash")], max_hops=1) == []


def test_two_topics_give_what_they_share_else_what_any_reaches(graph: KnowledgeGraph, ids: Ids, path_of: Ids) -> None:
    directed = path_of("~directed_by")
    assert follow_topics(graph, ids("Dan", "Eve"), directed).tolist() == list(ids("Birch"))
    assert follow_topics(graph, ids("Dan", "Flo"), directed).tolist() == list(ids("Ash", "Birch", "Elm"))
    assert follow_topics(graph, (), directed).tolist() == []


def test_no_step_arrives_at_the_other_topic(graph: KnowledgeGraph, ids: Ids, path_of: Ids) -> None:
    """Dan plays in Dogwood, which Eve directed: with Eve a topic too, nobody reaches her."""
    path = path_of("~starred_actors", "directed_by")
    assert follow_topics(graph, ids("Dan", "Eve"), path).tolist() == []
    assert follow_topics(graph, ids("Dan", "Eve"), path, reenter_topic=True).tolist() == list(ids("Eve"))


@pytest.mark.parametrize("reenter", [False, True])
def test_one_topic_is_followed_as_the_graph_room_does(graph: KnowledgeGraph, reenter: bool) -> None:
    for topic in range(graph.num_entities):
        for path in product(range(graph.identity + 1), repeat=2):
            expected = follow_path(graph, [topic], path, reenter_topic=reenter)
            np.testing.assert_array_equal(follow_topics(graph, [topic], path, reenter_topic=reenter), expected)


def test_questions_are_picked_evenly() -> None:
    questions = [Question(str(number), "", "", (0,), (1,), "train") for number in range(11)]
    assert [question.id for question in pick_evenly(questions, 3)] == ["0", "3", "7"]
    assert pick_evenly(questions, 11) == questions
