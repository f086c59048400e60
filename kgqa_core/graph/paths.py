"""Walking the graph: by a relation path, and to one concrete reasoning path.

The topic may not be re-entered by default: see ``reenter_topic``. Other entities may repeat.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
