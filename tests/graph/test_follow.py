"""Following paths: against an independent, slow oracle of dictionaries and lists, on random multigraphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.graph.csr import expand_ranges, shared_sorted, sorted_distinct
from kgqa_core.graph.follow import end_of, follow_path, reasoning_paths
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import ReasoningPath, Step

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


def slow_follow(triples: Triples, topics: list[int], path: list[int], barred: list[int]) -> list[int]:
    here = set(topics)
    for relation in path:
        here = {end for start in here for end in slow_neighbors(triples, start, relation)} - set(barred)
    return sorted(here)


def slow_ways(triples: Triples, topics: list[int], path: list[int], barred: list[int]) -> set[ReasoningPath]:
    """Extend every way by every triple that fits."""
    ways: set[tuple[int, ReasoningPath]] = {(topic, ()) for topic in topics}
    for relation in path:
        further = set()
        for here, way in ways:
            for head, own, tail in triples:
                if (head, own) == (here, relation):
                    further.add((tail, (*way, Step(head, own, tail))))
                if (tail, own + NUM_RELATIONS) == (here, relation):
                    further.add((head, (*way, Step(head, own, tail, reverse=True))))
        ways = {(end, way) for end, way in further if end not in barred}
    return {way for _, way in ways}


@st.composite
def walks(draw: st.DrawFn) -> tuple[Triples, list[int], list[int], bool]:
    triples = draw(multigraphs)
    last = max(entity for head, _, tail in triples for entity in (head, tail))
    topics = draw(st.lists(st.integers(0, last), max_size=3))
    path = draw(st.lists(st.integers(0, 2 * NUM_RELATIONS - 1), max_size=4))
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
    graph = graph_of(triples)
    reached = follow_path(graph, topics, tuple(path), reenter_topic=reenter)
    assert reached.tolist() == slow_follow(triples, topics, path, [] if reenter else topics)
    elsewhere = follow_path(graph, [0], tuple(path), topics=topics)
    assert elsewhere.tolist() == slow_follow(triples, [0], path, topics)


@given(walks())
def test_every_way_is_listed_once_and_each_end_has_its_first_before_any_has_a_second(
    graph_of: GraphOf, walk: tuple[Triples, list[int], list[int], bool]
) -> None:
    triples, topics, path, reenter = walk
    graph = graph_of(triples)
    barred = [] if reenter else topics
    found = list(reasoning_paths(graph, topics, tuple(path), reenter_topic=reenter))
    if not path:
        assert found == [()] * len(set(topics))
        return
    assert len(found) == len(set(found)) and set(found) == slow_ways(triples, topics, path, barred)
    ends = slow_follow(triples, topics, path, barred)
    assert [end_of(way) for way in found[: len(ends)]] == ends
    for end in range(graph.num_entities):
        own = list(reasoning_paths(graph, topics, tuple(path), ends=[end], reenter_topic=reenter))
        assert own == [way for way in found if end_of(way) == end]


def test_ties_go_to_the_smallest_entity(graph_of: GraphOf) -> None:
    diamond = graph_of([(0, 0, 3), (0, 0, 2), (2, 1, 1), (3, 1, 1)])
    first, second = reasoning_paths(diamond, [0], (0, 1))
    assert [[(step.head, step.tail) for step in way] for way in (first, second)] == [
        [(0, 2), (2, 1)],
        [(0, 3), (3, 1)],
    ]


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


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)), st.sampled_from([np.int32, np.int64]))
def test_what_sorted_sets_share(one: set[int], other: set[int], kind: type) -> None:
    shared = shared_sorted(np.array(sorted(one), dtype=np.int64), np.array(sorted(other), dtype=kind))
    assert shared.tolist() == sorted(one & other)
