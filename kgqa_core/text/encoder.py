"""What the pipeline asks of a text encoder, and nothing more."""

from __future__ import annotations

from collections.abc import Sequence
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
