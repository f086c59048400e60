"""Reasoning paths: all walks along a plan, counted even where only some are listed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.graph.follow import execute_plans
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.paths import read_step
from kgqa_core.graph.reasoning_paths import iter_paths, share_out
from kgqa_core.types import ReasoningPath, Step

Triples = list[tuple[int, int, int]]
GraphOf = Callable[..., KnowledgeGraph]

LAST, LABELS = 7, ["a", "b"]
multigraphs = st.lists(
    st.tuples(st.integers(0, LAST), st.integers(0, 1), st.integers(0, LAST)), min_size=1, max_size=23, unique=True
).map(lambda triples: sorted({*triples, (LAST, 1, LAST)}))
plan_lists = st.lists(st.lists(st.sampled_from(["a", "^a", "b", "^b", "unknown"]), max_size=3), max_size=3)


def walk_plainly(
    triples: Triples, topics: list[int], plan: list[str], reenter: bool, directed: bool
) -> set[ReasoningPath]:
    """Extend every walk by every triple that fits."""
    walks: set[tuple[int, ReasoningPath]] = {(topic, ()) for topic in topics} if plan else set()
    for step in plan:
        label, backward = read_step(step)
        further = set()
        for here, walk in walks:
            for head, relation, tail in triples:
                if LABELS[relation : relation + 1] != [label]:
                    continue
                if head == here and (not directed or not backward):
                    further.add((tail, (*walk, Step(head, relation, tail))))
                if tail == here and ((not directed and head != tail) or (directed and backward)):
                    further.add((head, (*walk, Step(head, relation, tail, reverse=True))))
        walks = {(end, walk) for end, walk in further if reenter or end not in topics}
    return {walk for _, walk in walks}


def end_of(path: ReasoningPath) -> int:
    return path[-1].head if path[-1].reverse else path[-1].tail


@given(multigraphs, st.lists(st.integers(0, LAST), max_size=3), plan_lists, st.booleans(), st.booleans())
def test_every_walk_is_listed_once(
    graph_of: GraphOf, triples: Triples, topics: list[int], plans: list[list[str]], reenter: bool, directed: bool
) -> None:
    graph = graph_of(triples)
    graph.__dict__["relation_labels"] = LABELS  # read from disk otherwise
    asked = {"reenter_topic": reenter, "directed": directed}
    reached = execute_plans(graph, [topics], [plans], **asked)
    for cap in (1000, 3):
        found = list(iter_paths(graph, [topics], [plans], **asked, max_paths=cap))
        assert [(one.question, one.plan) for one in found] == [(0, number) for number in range(len(plans))]
        for one, plan in zip(found, plans, strict=True):
            expected = walk_plainly(triples, topics, plan, reenter, directed)
            ends = sorted({end_of(path) for path in one.paths})
            assert one.num_paths == len(expected) and set(one.paths) <= expected
            assert len(set(one.paths)) == len(one.paths) == min(cap, len(expected))
            assert ends == reached.reached(0, one.plan).tolist()[: len(ends)]
            assert len(ends) == min(len(one.paths), one.num_reached)  # each has its own before any has a second


@pytest.mark.parametrize(
    ("counts", "most", "given"),
    [([3, 1], 9, [3, 1]), ([9, 1, 9], 6, [3, 1, 2]), ([2, 2, 2], 2, [1, 1, 0]), ([1e15, 1], 4, [3, 1]), ([], 3, [])],
)
def test_what_is_listed_is_shared_out_evenly(counts, most, given):
    assert share_out(np.array(counts, dtype=float), most).tolist() == given


def test_paths_are_stored_triples_with_the_way_they_were_walked(films: KnowledgeGraph) -> None:
    hitchcock = films.ids_of_name("Alfred Hitchcock")
    (found,) = iter_paths(films, [hitchcock], [[("^directed_by", "release_year")]], max_paths=1)
    assert (found.num_paths, found.num_reached, len(found.paths)) == (2, 2, 1)
    names = [(films.name_of(step.head), films.name_of(step.tail), step.reverse) for step in found.paths[0]]
    assert names == [("Rear Window", "Alfred Hitchcock", True), ("Rear Window", "1954", False)]
