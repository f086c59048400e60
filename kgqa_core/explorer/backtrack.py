"""Evidence paths by backtracking the strongest edges (EtD appendix B.3, Algorithm 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgqa_core.types import ReasoningPath, Step

if TYPE_CHECKING:  # who only renders paths needs no torch
    from kgqa_core.explorer.batch import Int
    from kgqa_core.explorer.explore import Exploration, StepTrace


def backtrack(found: Exploration, nodes: Int, *, num_relations: int) -> list[ReasoningPath]:
    """Trace each of the candidates ``nodes`` back to a topic, along the edge of highest attention in every step.

    Ties go to the smaller head entity, then the smaller relation; identity steps are dropped, so a topic itself has
    the empty path.

    Args:
        found: an exploration made with ``trace=True``.
        nodes: [n] candidates, as indices into ``found.entity``.
        num_relations: R.

    Returns:
        n paths, topic first; every step in the direction that the triple is stored.
    """
    current = np.asarray(nodes, dtype=np.int64)
    paths: list[list[Step]] = [[] for _ in current]
    tail_entity = found.entity
    for trace in reversed(found.traces):
        edge = _strongest_edges(trace, current, len(tail_entity))
        heads, relations = trace.head_entity[trace.head[edge]], trace.relation[edge]
        for path, head, relation, tail in zip(paths, heads, relations, tail_entity[current], strict=True):
            if relation < 2 * num_relations:
                path.append(as_stored(int(head), int(relation), int(tail), num_relations))
        current, tail_entity = trace.head[edge].astype(np.int64), trace.head_entity
    return [tuple(reversed(path)) for path in paths]


def as_stored(head: int, relation: int, tail: int, num_relations: int) -> Step:
    """Return the step of walking ``relation`` (0..2R-1) from ``head`` to ``tail``, as the stored triple."""
    if relation >= num_relations:
        return Step(tail, relation - num_relations, head, reverse=True)
    return Step(head, relation, tail)


def _strongest_edges(trace: StepTrace, targets: Int, num_nodes: int) -> Int:
    """Return for each target the index of the edge into it that has the highest attention."""
    wanted = np.zeros(num_nodes, dtype=bool)
    wanted[targets] = True
    edges = np.flatnonzero(wanted[trace.target])
    order = edges[
        np.lexsort(
            (trace.relation[edges], trace.head_entity[trace.head[edges]], -trace.attention[edges], trace.target[edges])
        )
    ]
    arrived = trace.target[order]
    is_first = np.ones(len(arrived), dtype=bool)
    is_first[1:] = arrived[1:] != arrived[:-1]
    best = np.empty(num_nodes, dtype=np.int64)
    best[arrived[is_first]] = order[is_first]
    return best[targets]
