"""Relation paths by label, and back: how plans are written (see ``kgqa_core.planners.types``).

A step is a relation's label, walked forward; "^" before it means backward. A label that itself begins with "^" or "\\"
is written with "\\" before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import RelationPath

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
