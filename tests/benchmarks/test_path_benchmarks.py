"""The benchmarks of plans: networkx over all triples finds what the kernels find, so the comparison is a fair one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("networkx")

from benchmarks.networkx_paths import (
    follow_multi,
    follow_simple,
    multi_graph,
    search_multi,
    search_simple,
    simple_graph,
)
from benchmarks.path_cases import cut_subgraphs, triples_of
from kgqa_core.graph.follow import follow_layers
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.shortest import PathFinder
from kgqa_core.types import Question
from tests.explorer.worlds import make_graph

LAST, NUM_RELATIONS = 7, 2
Triple = tuple[int, int, int]
multigraphs = st.sets(
    st.tuples(st.integers(0, LAST), st.integers(0, NUM_RELATIONS - 1), st.integers(0, LAST)), max_size=19
).map(lambda triples: sorted({*triples, (LAST, NUM_RELATIONS - 1, LAST)}))


def graph_of(triples: list[Triple]) -> KnowledgeGraph:
    return make_graph(triples, num_entities=LAST + 1, num_relations=NUM_RELATIONS)


@pytest.mark.slow
@given(multigraphs, st.integers(0, LAST), st.sets(st.integers(0, LAST)))
def test_the_multigraph_and_the_kernels_find_the_same_paths(triples: list[Triple], topic: int, golds: set[int]) -> None:
    found = PathFinder(graph_of(triples), max_hops=LAST + 1).find([topic], golds)
    assert search_multi(multi_graph(triples, NUM_RELATIONS), [topic], golds) == set(found.paths)


@given(multigraphs, st.integers(0, LAST), st.lists(st.integers(0, 2 * NUM_RELATIONS - 1), min_size=1, max_size=3))
def test_walks_end_where_sets_of_entities_do(triples: list[Triple], topic: int, plan: list[int]) -> None:
    walks = follow_multi(multi_graph(triples, NUM_RELATIONS), topic, plan)
    reached = follow_layers(graph_of(triples), [topic], tuple(plan))[-1].tolist()
    assert sorted({walk[-1] for walk in walks}) == reached


def test_a_simple_graph_loses_parallel_relations() -> None:
    graph = simple_graph([(0, 0, 1), (0, 1, 1)])
    assert search_simple(graph, [0], [1]) == {(1,)}
    assert follow_simple(graph, 0, [0]) == [] and follow_simple(graph, 0, [1]) == [[0, 1]]


@given(multigraphs)
def test_a_subgraph_per_question_lies_beside_the_others(triples: list[Triple]) -> None:
    graph = graph_of(triples)
    assert sorted(triples_of(graph)) == triples
    asked = [Question(str(topic), "", "", (topic,), (LAST,), "train") for topic in (0, LAST)]
    cut = cut_subgraphs(graph, asked, hops=LAST)
    whole, rows = PathFinder(graph, max_hops=LAST), PathFinder(cut.graph, max_hops=LAST)
    for one, placed in zip(asked, cut.questions, strict=True):
        assert rows.find(placed.topics, placed.answers) == whole.find(one.topics, one.answers)
