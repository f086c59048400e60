"""The part of a graph that EPERM's retriever keeps: the edges that its beam of relations walked (§3, Eq. 2).

It is told by where each relation was taken from, not edge by edge, so a hub costs no more than any other entity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kgqa_core.graph.csr import Ints, shared_sorted, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.paths import reach
from kgqa_core.instructions.evidence import enter_from
from kgqa_core.types import RelationPath

NOTHING: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Edges of a graph; each may be walked from both its ends, whichever the retriever came from."""

    graph: KnowledgeGraph
    starts: Mapping[int, Ints] | None  # relation (0..2R-1) -> where it was taken, ascending; None: the whole graph

    def reach(self, frontier: Ints, relation: int) -> Ints:
        """Return the entities (ascending, distinct) one step of ``relation`` away from any of ``frontier``."""
        if self.starts is None:
            return reach(self.graph, frontier, relation)
        taken = shared_sorted(frontier, self._starts(relation))
        onward = reach(self.graph, taken, relation)
        other_way = self._starts(self._inverse(relation))
        if not len(other_way):
            return onward
        back = shared_sorted(reach(self.graph, frontier, relation), other_way)
        return sorted_distinct(np.concatenate([onward, back]))

    def layers(self, topics: Ints, path: RelationPath, *, barred: Ints) -> list[Ints]:
        """Return the entities (ascending) after 0..len(path) steps; no step arrives at one of ``barred``."""
        found = [topics]
        for relation in path:
            found.append(without(self.reach(found[-1], relation), barred))
        return found

    def whole(self, layers: Sequence[Ints], path: RelationPath) -> list[Ints]:
        """Return of ``layers`` the entities from which the rest of ``path`` leads on: none at all, where it ends."""
        found = list(layers)
        for place in range(len(path) - 1, -1, -1):
            back = self.reach(found[place + 1], self._inverse(path[place]))
            found[place] = shared_sorted(back, found[place])
        return found

    def before(self, here: int, relation: int, layer: Ints) -> Ints:
        """Return the entities of ``layer``, ascending, from which a step of ``relation`` leads to ``here``."""
        found = enter_from(self.graph, here, relation, layer)
        if self.starts is None or len(shared_sorted(np.array([here]), self._starts(self._inverse(relation)))):
            return found
        return shared_sorted(found, self._starts(relation))

    def _starts(self, relation: int) -> Ints:
        return (self.starts or {}).get(relation, NOTHING)

    def _inverse(self, relation: int) -> int:
        return (relation + self.graph.num_relations) % self.graph.identity


def without(entities: Ints, barred: Ints) -> Ints:
    """Return ``entities`` without those in ``barred``, of which there are few."""
    for one in barred:  # cheaper than numpy's isin
        entities = entities[entities != one]
    return entities
