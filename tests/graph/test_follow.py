"""Following paths: against an independent, slow oracle of dictionaries and lists, on random multigraphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import InputError
from kgqa_core.graph.csr import expand_ranges, shared_sorted, sorted_distinct
from kgqa_core.graph.follow import Follower, end_of, execute_plans, follow_layers, reasoning_paths
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import ReasoningPath, Step

Triples = list[tuple[int, int, int]]
GraphOf = Callable[..., KnowledgeGraph]
NUM_RELATIONS, LAST = 3, 10
LABELS = ["a", "^b", "c"]  # the second needs an escape
STEPS = ["a", "\\^b", "c", "^a", "^\\^b", "^c"]  # of the relation ids

# Some entities below the largest have no triple, as answers that lie in none have.
multigraphs = st.lists(
    st.tuples(st.integers(0, LAST), st.integers(0, NUM_RELATIONS - 1), st.integers(0, LAST)), min_size=1, max_size=29
).map(lambda triples: [*triples, (LAST, NUM_RELATIONS - 1, LAST)])  # every relation is used
topics_drawn = st.lists(st.integers(0, LAST), max_size=3)
paths_drawn = st.lists(st.integers(0, 2 * NUM_RELATIONS - 1), max_size=4).map(tuple)


def slow_neighbors(triples: Triples, entity: int, relation: int) -> list[int]:
    if relation == 2 * NUM_RELATIONS:
        return [entity]
    forward = [tail for head, name, tail in triples if head == entity and name == relation]
    return forward + [head for head, name, tail in triples if tail == entity and name + NUM_RELATIONS == relation]


def slow_follow(triples: Triples, topics: list[int], path: tuple[int, ...], barred: list[int]) -> list[int]:
    here = set(topics)
    for relation in path:
        here = {end for start in here for end in slow_neighbors(triples, start, relation)} - set(barred)
    return sorted(here)


def slow_ways(triples: Triples, topics: list[int], path: tuple[int, ...], barred: list[int]) -> set[ReasoningPath]:
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


@given(multigraphs)
def test_neighbors_agree_with_the_triples(graph_of: GraphOf, triples: Triples) -> None:
    graph = graph_of(triples)
    for entity in range(graph.num_entities):
        for relation in range(2 * NUM_RELATIONS + 1):
            assert graph.neighbors(entity, relation).tolist() == sorted(set(slow_neighbors(triples, entity, relation)))


@given(multigraphs, topics_drawn, st.lists(paths_drawn, max_size=5), st.sets(st.integers(0, LAST)), st.booleans())
def test_what_paths_reach_agrees_with_the_triples_alone_and_together(
    graph_of: GraphOf, triples: Triples, topics: list[int], paths: list, golds: set[int], reenter: bool
) -> None:
    graph = graph_of(triples)
    alone = [slow_follow(triples, topics, path, [] if reenter else topics) for path in paths]
    assert [follow_layers(graph, topics, path, reenter_topic=reenter)[-1].tolist() for path in paths] == alone
    for path in paths:
        elsewhere = follow_layers(graph, [0], path, topics=topics)[-1]
        assert elsewhere.tolist() == slow_follow(triples, [0], path, topics)
    follower = Follower(graph, max_steps=4, reenter_topic=reenter)
    for _ in range(2):  # the tables are clean again
        reached, right = follower.count(topics, paths, golds)
        assert (reached, right) == (list(map(len, alone)), [len(golds.intersection(found)) for found in alone])


@given(multigraphs, st.lists(st.tuples(topics_drawn, st.lists(st.none() | paths_drawn, max_size=4)), max_size=4))
def test_plans_of_all_questions_reach_what_each_reaches_alone(graph_of: GraphOf, triples: Triples, asked: list) -> None:
    graph = graph_of(triples)
    graph.__dict__["relation_names"] = LABELS  # read from disk otherwise
    plans = [[("a", "unknown") if path is None else [STEPS[step] for step in path] for path in own] for _, own in asked]
    found = execute_plans(graph, [topics for topics, _ in asked], plans)
    assert [[entities.tolist() for entities in own] for own in found] == [
        [slow_follow(triples, topics, path, topics) if path else [] for path in own] for topics, own in asked
    ]


@given(multigraphs, topics_drawn, paths_drawn, st.booleans())
def test_every_way_is_listed_once_and_each_end_has_its_first_before_any_has_a_second(
    graph_of: GraphOf, triples: Triples, topics: list[int], path: tuple[int, ...], reenter: bool
) -> None:
    graph = graph_of(triples)
    barred = [] if reenter else topics
    found = list(reasoning_paths(graph, topics, path, reenter_topic=reenter))
    if not path:
        assert found == [()] * len(set(topics))
        return
    assert len(found) == len(set(found)) and set(found) == slow_ways(triples, topics, path, barred)
    ends = slow_follow(triples, topics, path, barred)
    assert [end_of(way) for way in found[: len(ends)]] == ends
    for end in range(graph.num_entities):
        own = list(reasoning_paths(graph, topics, path, ends=[end], reenter_topic=reenter))
        assert own == [way for way in found if end_of(way) == end]


def test_ties_go_to_the_smallest_entity(graph_of: GraphOf) -> None:
    diamond = graph_of([(0, 0, 3), (0, 0, 2), (2, 1, 1), (3, 1, 1)])
    ways = reasoning_paths(diamond, [0], (0, 1))
    assert [[(step.head, step.tail) for step in way] for way in ways] == [[(0, 2), (2, 1)], [(0, 3), (3, 1)]]


def test_what_cannot_be_executed(films: KnowledgeGraph) -> None:
    assert execute_plans(films, [], []) == []
    assert execute_plans(films, [[0]], [[]]) == [[]]
    with pytest.raises(InputError, match="entity ids go from 0 to 6"):
        execute_plans(films, [[7]], [[("born_in",)]])
    with pytest.raises(InputError, match="give both for each"):
        execute_plans(films, [[0]], [])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=7))
def test_ranges_are_joined(ranges: list[tuple[int, int]]) -> None:
    starts, counts = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    wanted = [index for start, count in ranges for index in range(start, start + count)]
    assert expand_ranges(starts, starts + counts).tolist() == wanted


@given(st.lists(st.integers(0, 40)), st.sets(st.integers(0, 40)), st.sampled_from([np.int32, np.int64]))
def test_distinct_values_come_sorted_and_what_two_share_too(one: list[int], other: set[int], kind: type) -> None:
    distinct = sorted_distinct(np.array(one, dtype=np.int64))
    assert distinct.tolist() == sorted(set(one))
    assert shared_sorted(distinct, np.array(sorted(other), dtype=kind)).tolist() == sorted(other.intersection(one))
