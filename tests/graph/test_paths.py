"""Walking: against an independent, slow oracle of dictionaries and lists, on random multigraphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.graph.csr import expand_ranges, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.paths import find_steps, follow_path

Triples = list[tuple[int, int, int]]
GraphOf = Callable[..., KnowledgeGraph]
NUM_RELATIONS = 3


# Some entities below the largest have no triple, as answers that lie in none have.
multigraphs = st.lists(
    st.tuples(st.integers(0, 10), st.integers(0, NUM_RELATIONS - 1), st.integers(0, 10)), min_size=1, max_size=29
).map(lambda triples: [*triples, (0, NUM_RELATIONS - 1, 0)])  # every relation is used


def slow_neighbors(triples: Triples, entity: int, relation: int) -> list[int]:
    if relation == 2 * NUM_RELATIONS:
        return [entity]
    forward = [tail for head, name, tail in triples if head == entity and name == relation]
    return forward + [head for head, name, tail in triples if tail == entity and name + NUM_RELATIONS == relation]


def slow_follow(triples: Triples, topics: list[int], path: list[int], reenter: bool) -> list[int]:
    here = set(topics)
    for relation in path:
        entered = {end for start in here for end in slow_neighbors(triples, start, relation)}
        stays = relation == 2 * NUM_RELATIONS
        here = entered if reenter or stays else entered - set(topics)
    return sorted(here)


@st.composite
def walks(draw: st.DrawFn) -> tuple[Triples, list[int], list[int], bool]:
    triples = draw(multigraphs)
    last = max(entity for head, _, tail in triples for entity in (head, tail))
    topics = draw(st.lists(st.integers(0, last), max_size=3))
    path = draw(st.lists(st.integers(0, 2 * NUM_RELATIONS), max_size=4))
    return triples, topics, path, draw(st.booleans())


@given(multigraphs)
def test_neighbors_agree_with_the_triples(graph_of: GraphOf, triples: Triples) -> None:
    graph = graph_of(triples)
    assert graph.num_relations == NUM_RELATIONS
    for entity in range(graph.num_entities):
        for relation in range(2 * NUM_RELATIONS + 1):
            assert graph.neighbors(entity, relation).tolist() == sorted(set(slow_neighbors(triples, entity, relation)))


@given(walks())
def test_following_a_path_agrees_with_the_triples(
    graph_of: GraphOf, walk: tuple[Triples, list[int], list[int], bool]
) -> None:
    triples, topics, path, reenter = walk
    reached = follow_path(graph_of(triples), topics, tuple(path), reenter_topic=reenter)
    assert reached.tolist() == slow_follow(triples, topics, path, reenter)


@given(walks())
def test_steps_are_stored_triples_that_lead_from_a_topic_to_the_answer(
    graph_of: GraphOf, walk: tuple[Triples, list[int], list[int], bool]
) -> None:
    triples, topics, path, reenter = walk
    graph = graph_of(triples)
    ends = set(slow_follow(triples, topics, path, reenter))
    for answer in range(graph.num_entities):
        steps = find_steps(graph, topics, tuple(path), answer, reenter_topic=reenter)
        assert (steps is not None) == (answer in ends)
        if steps is None:
            continue
        assert [step.relation + NUM_RELATIONS * step.reverse for step in steps] == [
            r for r in path if r != graph.identity
        ]
        assert all((step.head, step.relation, step.tail) in triples for step in steps)
        stops = [step.tail if step.reverse else step.head for step in steps] + [answer]
        arrived = [step.head if step.reverse else step.tail for step in steps]
        assert arrived == stops[1:]
        assert stops[0] in topics
        assert reenter or not set(arrived) & set(topics)


def test_ties_go_to_the_smallest_entity(graph_of: GraphOf) -> None:
    diamond = graph_of([(0, 0, 3), (0, 0, 2), (2, 1, 1), (3, 1, 1)])
    steps = find_steps(diamond, [0], (0, 1), 1)
    assert steps is not None
    assert [(step.head, step.tail) for step in steps] == [(0, 2), (2, 1)]


def test_the_topic_is_not_entered_again_unless_allowed(graph_of: GraphOf) -> None:
    films_of_a_director = graph_of([(0, 0, 3), (1, 0, 3), (2, 0, 3)])
    assert follow_path(films_of_a_director, [1], (0, 1)).tolist() == [0, 2]
    assert follow_path(films_of_a_director, [1], (0, 1), reenter_topic=True).tolist() == [0, 1, 2]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=7))
def test_ranges_are_joined(ranges: list[tuple[int, int]]) -> None:
    starts, counts = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    wanted = [index for start, count in ranges for index in range(start, start + count)]
    assert expand_ranges(starts, starts + counts).tolist() == wanted


@given(st.lists(st.integers(-9, 9), max_size=17))
def test_distinct_values_come_sorted(values: list[int]) -> None:
    assert sorted_distinct(np.array(values, dtype=np.int64)).tolist() == sorted(set(values))
