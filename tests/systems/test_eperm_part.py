"""The part of a graph that EPERM's retriever leaves, against the plain reading: a set of edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgqa_core.graph.csr import shared_sorted
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.systems.eperm import Part
from tests.forty_triples import Forty

Starts = Mapping[int, Sequence[int]]
Edges = set[tuple[int, int, int]]  # (from, relation 0..2R-1, to), both ways


def edges_of(graph: KnowledgeGraph, starts: Starts | None) -> Edges:
    """List every edge of the part, one by one, as it may be walked from either end."""
    kept: Edges = set()
    for here in range(graph.num_entities):
        for relation in range(2 * graph.num_relations):
            for there in graph.neighbors(here, relation).tolist():
                if starts is None or here in starts.get(relation, ()):
                    inverse = (relation + graph.num_relations) % (2 * graph.num_relations)
                    kept |= {(here, relation, there), (there, inverse, here)}
    return kept


def sorted_ids(values: Sequence[int]) -> np.ndarray:
    return np.array(sorted(set(values)), dtype=np.int64)


entity_sets = st.lists(st.integers(0, 22), max_size=12)
relations = st.integers(0, 27)


@given(starts=st.none() | st.dictionaries(relations, entity_sets, max_size=8), frontier=entity_sets, relation=relations)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_step_and_the_step_back_are_those_of_the_edges(
    forty: Forty, starts: Starts | None, frontier: list[int], relation: int
) -> None:
    graph = forty.graph
    assert (graph.num_entities, graph.num_relations) == (23, 14)
    edges = edges_of(graph, starts)
    part = Part(graph, None if starts is None else {one: sorted_ids(at) for one, at in starts.items()})
    layer = sorted_ids(frontier)
    reached = part.reach(layer, relation).tolist()
    assert reached == sorted({there for here, one, there in edges if here in frontier and one == relation})
    assert part.reach(layer, relation, layer).tolist() == [one for one in reached if one not in frontier]
    for here in range(graph.num_entities):
        near = shared_sorted(graph.neighbors(here, (relation + 14) % 28), layer)
        before = part.keep(near, here, relation).tolist()
        assert before == sorted(one for one in set(frontier) if (one, relation, here) in edges)
