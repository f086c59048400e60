"""Homonyms told apart by an encoder: how like the question's words are to the relations around each entity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.text.encoder import Encoder

SCALE = 20.0  # of a cosine: 0.05 is then a margin of 1


class EncodedSurroundings:
    """A ``linking_text.Context``; every text is encoded once."""

    def __init__(self, encoder: Encoder, graph: KnowledgeGraph) -> None:
        """Keep the encoder and the graph whose relations are read."""
        self.encoder = encoder
        self.graph = graph
        self._known: dict[str, np.ndarray] = {}

    def score(self, words: Sequence[str], around: Sequence[frozenset[int]]) -> list[float]:
        """Return SCALE x the cosine of the question's other words and the texts of each entity's relations."""
        texts = [", ".join(self.graph.relation_text(relation) for relation in sorted(own)) for own in around]
        asked, *others = self._encode([" ".join(words), *texts])
        return [SCALE * float(asked @ other) for other in others]

    def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        new = sorted(set(texts).difference(self._known))
        for text, vector in zip(new, self.encoder.encode(new), strict=True):
            self._known[text] = vector / max(float(np.linalg.norm(vector)), 1e-12)
        return [self._known[text] for text in texts]
