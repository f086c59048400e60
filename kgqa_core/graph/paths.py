"""Walking the graph: by a relation path, to one concrete reasoning path, and shortest hop counts.

The topic may not be re-entered by default: see ``reenter_topic``. Other entities may repeat.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kgqa_core.graph.csr import Ints, expand_ranges, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import ReasoningPath, RelationPath, Step


def reach(graph: KnowledgeGraph, frontier: Ints, relation: int) -> Ints:
    """Return the entities (ascending, distinct) one step of ``relation`` (0..2R) away from any of ``frontier``."""
    if relation == graph.identity:
        return frontier
    groups = expand_ranges(graph.group_ptr[frontier], graph.group_ptr[frontier + 1])
    groups = groups[graph.group_relation[groups] == relation]
    return sorted_distinct(graph.edge_tail[expand_ranges(graph.edge_ptr[groups], graph.edge_ptr[groups + 1])])


def _layers(graph: KnowledgeGraph, topics: Sequence[int], path: RelationPath, reenter_topic: bool) -> list[Ints]:
    """Return the entities after 0..len(path) steps."""
    start: Ints = sorted_distinct(np.asarray(topics, dtype=np.int64))
    layers = [start]
    for relation in path:
        reached = reach(graph, layers[-1], relation)
        # staying where one is (identity) enters nothing
        masked = not reenter_topic and relation != graph.identity
        layers.append(reached[~np.isin(reached, start)] if masked else reached)
    return layers


def follow_path(
    graph: KnowledgeGraph, topics: Sequence[int], path: RelationPath, *, reenter_topic: bool = False
) -> Ints:
    """Return the distinct entity ids, ascending, that ``path`` leads to from any of ``topics`` (the union).

    With ``reenter_topic=False`` no step may arrive at a topic entity.
    """
    return _layers(graph, topics, path, reenter_topic)[-1]


def find_steps(
    graph: KnowledgeGraph, topics: Sequence[int], path: RelationPath, answer: int, *, reenter_topic: bool = False
) -> ReasoningPath | None:
    """Return one concrete path to ``answer`` along ``path``, or None; ties go to the smallest entity id.

    Steps are stored triples, topic first; identity relations leave none.
    """
    layers = _layers(graph, topics, path, reenter_topic)
    if answer not in layers[-1]:
        return None
    steps: list[Step] = []
    here = answer
    for relation, before in zip(reversed(path), reversed(layers[:-1]), strict=True):
        if relation == graph.identity:
            continue
        reverse = relation >= graph.num_relations
        forward = relation - graph.num_relations if reverse else relation
        back = forward if reverse else forward + graph.num_relations
        previous = int(np.intersect1d(graph.neighbors(here, back), before)[0])
        head, tail = (here, previous) if reverse else (previous, here)
        steps.append(Step(head=head, relation=forward, tail=tail, reverse=reverse))
        here = previous
    return tuple(reversed(steps))


LANES = 64  # searches that share one sweep: one bit of a uint64 each


def hops_to_answers(
    graph: KnowledgeGraph,
    topics: Sequence[int],
    answers: Sequence[int],
    *,
    max_hops: int,
    reenter_topic: bool = False,
) -> NDArray[np.int64]:
    """Return the shortest hop count (1..max_hops, any relations, both directions) to each answer, -1 unreachable.

    A path has at least one step: an answer that is itself a topic is reached only with ``reenter_topic``.
    """
    return hops_to_many(graph, [(topics, answers)], max_hops=max_hops, reenter_topic=reenter_topic)[0]


def hops_to_many(
    graph: KnowledgeGraph,
    searches: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    max_hops: int,
    reenter_topic: bool = False,
) -> list[NDArray[np.int64]]:
    """``hops_to_answers`` for many (topics, answers) at once, 64 breadth-first searches per sweep of the edges."""
    found: list[NDArray[np.int64]] = []
    for first in range(0, len(searches), LANES):
        found += _sweep(graph, searches[first : first + LANES], max_hops, reenter_topic)
    return found


def _sweep(
    graph: KnowledgeGraph,
    searches: Sequence[tuple[Sequence[int], Sequence[int]]],
    max_hops: int,
    reenter_topic: bool,
) -> list[NDArray[np.int64]]:
    """Search up to 64 topic sets at once; bit i of an entity's word: search i has been there."""
    topics = np.zeros(graph.num_entities, dtype=np.uint64)
    for lane, (starts, _) in enumerate(searches):
        topics[list(starts)] |= np.uint64(1 << lane)
    answers = [np.asarray(ends, dtype=np.int64) for _, ends in searches]
    hops = [np.full(len(ends), -1, dtype=np.int64) for ends in answers]
    first = np.asarray(graph.edge_ptr[graph.group_ptr])
    connected = np.flatnonzero(first[1:] > first[:-1])  # reduceat knows no empty ranges
    edge_start = first[connected]
    seen = np.zeros_like(topics)
    frontier = topics
    for hop in range(1, max_hops + 1):
        reached = np.zeros_like(topics)
        reached[connected] = np.bitwise_or.reduceat(frontier[graph.edge_tail], edge_start)
        frontier = reached & ~seen if reenter_topic else reached & ~seen & ~topics
        seen |= frontier
        for lane, ends in enumerate(answers):
            hops[lane][(frontier[ends] >> np.uint64(lane)) & np.uint64(1) == 1] = hop
    return hops
