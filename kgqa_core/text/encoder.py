"""What the pipeline asks of a text encoder, and one that needs no model."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np


class Encoder(Protocol):
    """Turns texts into vectors.

    Making an encoder and reading ``name`` and ``dim`` must be cheap and import neither torch nor transformers: weights
    are loaded by the first call of ``encode``, so that a run whose texts are all cached never loads them.
    ``name`` stands for the *content* of the model (it includes the SHA-256 of the weights, the pooling and the
    version of our code): two encoders with one name give the same vectors, and the cache relies on it.
    """

    @property
    def name(self) -> str:
        """Return the identity of the encoder, weights included."""
        ...

    @property
    def dim(self) -> int:
        """Return the width D of the vectors."""
        ...

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [len(texts), D], row i for ``texts[i]``; deterministic; an empty list gives [0, D]."""
        ...


# ------ A deterministic encoder without a model: hashed words and character trigrams.


VERSION = 1
_WORD = re.compile(r"\w+|[^\w\s]")


class HashEncoder:
    """Feature hashing with signs (words and character 3-grams), rows L2-normalised.

    It knows no meaning: paraphrases are near each other only as far as they share words or parts of words.
    """

    def __init__(self, dim: int = 256) -> None:
        """Make an encoder of width ``dim``, at least 1."""
        if dim < 1:
            raise ValueError(f"dim is {dim}; a hash encoder needs at least 1")
        self._dim = dim

    @property
    def name(self) -> str:
        """Return the identity: kind, version and width (there are no weights)."""
        return f"hash-v{VERSION}-d{self._dim}"

    @property
    def dim(self) -> int:
        """Return the width D of the vectors."""
        return self._dim

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [len(texts), D] with unit rows; the empty text has a row of its own too."""
        vectors = np.zeros((len(texts), self._dim), dtype=np.float32)
        for row, text in enumerate(texts):
            for feature in _extract_features(text):
                digest = int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=8).digest(), "little")
                vectors[row, (digest >> 1) % self._dim] += 1.0 if digest & 1 else -1.0
            if not vectors[row].any():  # opposite signs can cancel everything in a narrow encoder
                vectors[row, 0] = 1.0
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def _extract_features(text: str) -> Iterator[str]:
    """Yield the words and character trigrams of ``text``, each kind with its own prefix."""
    words = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    padded = f" {' '.join(words)} "
    for word in words:
        yield f"w:{word}"
    for start in range(len(padded) - 2):
        yield f"c:{padded[start : start + 3]}"
