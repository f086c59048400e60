"""All shortest relation paths from a question's topics to its golds (RoG's Z*, §4.2), as in a multigraph.

Every edge can be walked in both directions, and parallel edges make paths of their own.

Three compiled passes over the CSR, per topic (``shortest_kernels``):

1. breadth-first search from the topic until all golds are met. A step looks from the golds' side where fewer edges lie
   there, so that the last step from a frontier that holds a hub is not walked;
2. back from the golds, over the edges of shortest walks alone. They are few, and written down;
3. forward over those edges by relation *prefix*. What a prefix reaches is one set of entities: walks, of which there
   are millions near hubs, are never enumerated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from kgqa_core.errors import InputError
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.shortest_kernels import EMPTY, find_paths
from kgqa_core.types import RelationPath

MOST_HOPS = 100  # hops are kept in a byte per entity


@dataclass(frozen=True, slots=True)
class FoundPaths:
    """The shortest relation paths of one question."""

    paths: tuple[RelationPath, ...]  # distinct; shorter ones first, then by relation ids
    capped: bool  # were there more than may be kept?


class PathFinder:
    """Finds shortest relation paths in one graph, with tables that are made once: 10 bytes per entity."""

    def __init__(
        self, graph: KnowledgeGraph, *, max_hops: int, reenter_topic: bool = False, max_paths: int = 1000
    ) -> None:
        """Keep the arrays of ``graph``.

        Args:
            graph: also a graph of rows (``Subgraphs.graph``), for questions of rows.
            max_hops: longest path looked for.
            reenter_topic: may a step arrive at a topic? Then a gold that is the topic has the shortest closed walks.
            max_paths: kept per question; those of the smallest relation ids.

        Raises:
            InputError: a number that is out of range.
        """
        for name, value, most in (("max_hops", max_hops, MOST_HOPS), ("max_paths", max_paths, 2**31)):
            if not 1 <= value <= most:
                raise InputError(f"{name} is {value}; it must be from 1 to {most}")
        self.csr = graph.arrays
        self.reenter_topic = reenter_topic
        self._limits = (max_hops, max_paths)
        self._tables = (
            np.full(graph.num_entities, EMPTY, dtype=np.int8),
            np.zeros(graph.num_entities, dtype=np.bool_),
            np.full(graph.num_entities, EMPTY, dtype=np.int32),
            np.empty(graph.num_entities + 1, dtype=np.int32),
            np.full(graph.identity, EMPTY, dtype=np.int64),
        )

    def find(self, topics: Sequence[int], golds: Collection[int]) -> FoundPaths:
        """Return the shortest paths of every pair of a topic and a gold, together; topics are no golds where barred."""
        barred = set() if self.reenter_topic else set(topics)
        wanted = np.array(sorted(set(golds) - barred), dtype=np.int64)
        bars = np.array(sorted(barred), dtype=np.int64)
        found: set[RelationPath] = set()
        capped = False
        for topic in sorted(set(topics)) if len(wanted) else ():
            rows, cut = find_paths(self.csr, topic, bars, wanted, self._limits, self._tables)
            found.update(tuple(step for step in row if step != EMPTY) for row in rows.tolist())
            capped |= cut
        paths = sorted(found, key=lambda path: (len(path), path))
        most = self._limits[1]
        return FoundPaths(tuple(paths[:most]), capped or len(paths) > most)
