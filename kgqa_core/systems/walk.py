"""What systems walk on, and the check that a path really stands in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kgqa_core.graph.csr import Ints
from kgqa_core.graph.kg import KnowledgeGraph, write_step
from kgqa_core.graph.subgraphs import Subgraphs
from kgqa_core.instructions.render import Names, RowNames
from kgqa_core.types import Question, ReasoningPath, Step


@dataclass(frozen=True, slots=True)
class Walk:
    """A run's graph, or the graph of rows in which each question has its own subgraph."""

    graph: KnowledgeGraph  # that is walked
    entities: KnowledgeGraph  # that names are looked up in; the same but for subgraphs
    subgraphs: Subgraphs | None
    max_hops: int  # L: steps from a topic
    reenter_topic: bool

    @property
    def names(self) -> Names:
        """Return what entities and relations of ``graph`` are called."""
        return self.graph if self.subgraphs is None else RowNames(self.entities, self.subgraphs)

    def to_entities(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the entities that some ids of ``graph`` stand for."""
        return tuple(ids) if self.subgraphs is None else tuple(self.subgraphs.entity[list(ids)].tolist())

    def step_label(self, relation: int) -> str:
        """Return a forward or reverse relation id as a step by label: "^" before one that is walked backward."""
        backward = relation >= self.graph.num_relations
        return write_step(self.graph.relation_labels[relation % self.graph.num_relations], backward)

    def step(self, start: int, relation: int, end: int) -> Step:
        """Return the stored triple that leads from ``start`` to ``end`` along a forward or reverse relation id."""
        if relation < self.graph.num_relations:
            return Step(start, relation, end)
        return Step(end, relation - self.graph.num_relations, start, reverse=True)

    def relations_of(self, entity: int) -> list[int]:
        """Return the forward and reverse relation ids that go on from an entity, ascending."""
        graph = self.graph
        return [int(one) for one in graph.group_relation[graph.group_ptr[entity] : graph.group_ptr[entity + 1]]]


def ends_of(step: Step) -> tuple[int, int]:
    """Return where a step starts and where it ends, as it was walked."""
    return (step.tail, step.head) if step.reverse else (step.head, step.tail)


def is_evidence(graph: KnowledgeGraph, path: ReasoningPath, answer: int) -> bool:
    """Say whether a path stands in the graph, edge by edge, hangs together and ends in ``answer``."""
    if not path:
        return False
    here = ends_of(path[0])[0]
    for step in path:
        start, end = ends_of(step)
        if start != here or not _is_edge(graph, step):
            return False
        here = end
    return here == answer


def starts_at_topic(question: Question, path: ReasoningPath) -> bool:
    """Say whether a path starts where the question does."""
    return bool(path) and ends_of(path[0])[0] in question.topics


def _is_edge(graph: KnowledgeGraph, step: Step) -> bool:
    inside = 0 <= step.head < graph.num_entities and 0 <= step.tail < graph.num_entities
    if not inside or not 0 <= step.relation < graph.num_relations:
        return False
    # bisect beside numpy: of a few numbers, a call of searchsorted takes several times longer.
    first, last = int(graph.group_ptr[step.head]), int(graph.group_ptr[step.head + 1])
    group = bisect_left(graph.group_relation, step.relation, first, last)
    if group == last or graph.group_relation[group] != step.relation:
        return False
    start, end = int(graph.edge_ptr[group]), int(graph.edge_ptr[group + 1])
    place = bisect_left(graph.edge_tail, step.tail, start, end)
    return place < end and bool(graph.edge_tail[place] == step.tail)


# ------ Which entities of what a system walks on bear a name.


def entities_named(walk: Walk, question_id: str, name: str, *, any_case: bool = False) -> Ints:
    """Return the entities of ``walk.graph`` with this name, ascending.

    With ``any_case`` its case does not count, and an alias will do where it is nobody's name.
    Where each question has its own subgraph these are rows of the question's own, and what is outside is not found.
    """
    graph = walk.entities
    found = graph.ids_of_folded_name(name) or graph.ids_of_alias(name) if any_case else graph.ids_of_name(name)
    if walk.subgraphs is None:
        return np.array(found, dtype=np.int64)
    return walk.subgraphs.rows_of(question_id, found)
