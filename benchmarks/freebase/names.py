"""Names put together from words of eleven languages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.freebase.vocabulary import LANGUAGES, NUM_WORDS, Ints, draw_words


class Phrases:
    """The words of all languages, and names made of them."""

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng([seed, 33])
        self._words = pa.concat_arrays([draw_words(language, generator) for language in ("en", *LANGUAGES)])

    def labels(self, language: Ints, words: Ints, missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        """Return names (n,) of words (n, 3), -1 for none; null where ``missing``."""
        rows = np.where(words < 0, -1, words + NUM_WORDS * language[:, None])
        columns = [self._words.take(pa.array(column, mask=column < 0)) for column in rows.T]
        joined = pc.binary_join_element_wise(*columns, " ", null_handling="skip")
        return joined if missing is None else pc.if_else(pa.array(missing), pa.scalar(None, pa.string()), joined)

    def english(self, words: Ints, separator: str) -> pa.Array:
        """Return three English words each for numbers (n, 3), any size."""
        columns = [self._words.take(pa.array(column % NUM_WORDS)) for column in words.T]
        return pc.binary_join_element_wise(*columns, separator)
