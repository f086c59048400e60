"""Following many relation paths from one question's topics: what a common beginning reaches is found once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from kgqa_core.graph.follow_kernels import count_reached
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import RelationPath


class Follower:
    """Follows paths in one graph, with tables that are made once: 4 (max_steps + 1) bytes per entity at most.

    As ``paths.follow_path``: from all topics together, and no step arrives at one unless ``reenter_topic``.
    """

    def __init__(self, graph: KnowledgeGraph, *, max_steps: int, reenter_topic: bool = False) -> None:
        """Keep the arrays of ``graph``."""
        self.csr = graph.arrays
        self.reenter_topic = reenter_topic
        self._max_steps = max_steps
        num = graph.num_entities
        self._tables = (
            np.zeros(num // 8 + 1, dtype=np.uint8),
            np.zeros(num // 8 + 1, dtype=np.uint8),
            np.empty((max_steps + 1, num + 1), dtype=np.int32),  # pages never written to take no memory
        )

    def count(
        self, topics: Sequence[int], paths: Sequence[RelationPath], golds: Collection[int]
    ) -> tuple[list[int], list[int]]:
        """Return how many entities each path reaches, and how many of them are golds."""
        order = sorted(range(len(paths)), key=lambda at: paths[at])
        steps = np.zeros((len(paths), self._max_steps), dtype=np.int32)
        for row, at in enumerate(order):
            steps[row, : len(paths[at])] = paths[at]
        lengths = np.array([len(paths[at]) for at in order], dtype=np.int64)
        start, wanted = (np.array(sorted(set(ids)), dtype=np.int32) for ids in (topics, golds))
        barred = not self.reenter_topic
        reached, right = count_reached(self.csr, start, steps, lengths, wanted, self._tables, barred)
        back = np.argsort(np.array(order, dtype=np.int64))
        return reached[back].tolist(), right[back].tolist()
