"""Plans over networkx, as they are published: one question at a time, every walk by its entities.

``simple``: an undirected graph with one relation per pair of entities, so parallel relations and directions are lost.
``multi``: the same searches over all triples in both directions, which must find what the kernels find.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise, product
from typing import Any

import networkx as nx

from kgqa_core.types import RelationPath

Triple = tuple[int, int, int]


def simple_graph(triples: Iterable[Triple]) -> nx.Graph:
    """Return the undirected graph; of parallel relations the last stays."""
    graph = nx.Graph()
    for head, relation, tail in triples:
        graph.add_edge(head, tail, relation=relation)
    return graph


def multi_graph(triples: Iterable[Triple], num_relations: int) -> nx.MultiDiGraph:
    """Return all triples in both directions; keys are relation ids."""
    graph = nx.MultiDiGraph()
    for head, relation, tail in triples:
        graph.add_edge(head, tail, key=relation)
        graph.add_edge(tail, head, key=relation + num_relations)
    return graph


def search_simple(graph: nx.Graph, topics: Sequence[int], golds: Collection[int]) -> set[RelationPath]:
    """Return the relations along all shortest entity paths of each pair, without direction."""
    found = set()
    for walk in _walks(graph, topics, golds):
        found.add(tuple(graph[here][there]["relation"] for here, there in pairwise(walk)))
    return found


def search_multi(graph: nx.MultiDiGraph, topics: Sequence[int], golds: Collection[int]) -> set[RelationPath]:
    """Return all shortest relation paths of each pair."""
    found: set[RelationPath] = set()
    for walk in _walks(graph, topics, golds):
        found.update(product(*(graph[here][there] for here, there in pairwise(walk))))
    return found


def _walks(graph: Any, topics: Sequence[int], golds: Collection[int]) -> Iterable[list[int]]:
    for topic, gold in product(topics, golds):
        if topic != gold and topic in graph and gold in graph and nx.has_path(graph, topic, gold):
            yield from nx.all_shortest_paths(graph, topic, gold)


def follow_simple(graph: nx.Graph, topic: int, plan: Sequence[int]) -> list[list[int]]:
    """Return every walk along the plan's relations, whatever their direction (RoG Algorithm 1)."""
    return _follow(
        topic,
        plan,
        lambda here, relation: (
            [there for there in graph.neighbors(here) if graph[here][there]["relation"] == relation]
            if here in graph
            else []
        ),
    )


def follow_multi(graph: nx.MultiDiGraph, topic: int, plan: Sequence[int]) -> list[list[int]]:
    """Return every walk along the plan's steps that does not come back to the topic."""
    return _follow(
        topic,
        plan,
        lambda here, relation: (
            [there for there in graph.successors(here) if there != topic and graph.has_edge(here, there, key=relation)]
            if here in graph
            else []
        ),
    )


def _follow(topic: int, plan: Sequence[int], step: Any) -> list[list[int]]:
    walks, queue = [], deque([[topic]])
    while queue:
        walk = queue.popleft()
        if len(walk) > len(plan):
            walks.append(walk)
            continue
        for there in step(walk[-1], plan[len(walk) - 1]):
            queue.append([*walk, there])
    return walks
