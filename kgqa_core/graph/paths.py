"""Relation paths by label, and back: how plans are written (see ``kgqa_core.planners.types``).

A step is a relation's label, walked forward; "^" before it means backward. A label that itself begins with "^" or "\\"
is written with "\\" before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kgqa_core.graph.csr import Ints, expand_ranges, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Question, ReasoningPath, RelationPath, Step

BACKWARD, ESCAPE = "^", "\\"


def write_step(label: str, backward: bool = False) -> str:
    """Return the step that walks the relation ``label``."""
    escaped = ESCAPE + label if label.startswith((BACKWARD, ESCAPE)) else label
    return BACKWARD + escaped if backward else escaped


def read_step(step: str) -> tuple[str, bool]:
    """Return (label, is it walked backward?) of a step; total: any text is some step."""
    backward = step.startswith(BACKWARD)
    return (step[1:] if backward else step).removeprefix(ESCAPE), backward


def flip_step(step: str) -> str:
    """Return the step that undoes ``step``."""
    label, backward = read_step(step)
    return write_step(label, not backward)


def unsigned(path: Iterable[str]) -> tuple[str, ...]:
    """Return the plain labels of a path, as files without directions hold it."""
    return tuple(read_step(step)[0] for step in path)


def to_labels(graph: KnowledgeGraph, path: RelationPath) -> tuple[str, ...]:
    """Return the steps of a relation path by label; identity steps (stay) leave none."""
    labels, num = graph.relation_labels, graph.num_relations
    return tuple(write_step(labels[step % num], step >= num) for step in path if step != graph.identity)


def to_relations(graph: KnowledgeGraph, path: Sequence[str]) -> RelationPath | None:
    """Return the relation ids of a path by label, or None where the graph does not have one of its relations."""
    ids = graph.relation_ids
    found = []
    for label, backward in map(read_step, path):
        relation = ids.get(label)
        if relation is None:
            return None
        found.append(relation + graph.num_relations * backward)
    return tuple(found)


# ------ Walking the graph: by a relation path, and to one concrete reasoning path.


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


# ------ What a relation path should reach.


def golds_of(question: Question, *, reenter_topic: bool = False) -> frozenset[int]:
    """Return the entities that a path should reach: the answers, else the claim where that is known to be right.

    With ``reenter_topic=False`` topics are left out only where other golds remain, since no path can reach them.
    """
    golds = frozenset(question.answers)
    if not golds and question.verdict and question.claim is not None:
        golds = frozenset({question.claim})
    reachable = golds if reenter_topic else golds - frozenset(question.topics)
    return golds if reachable else frozenset()
