"""Strings looked up by binary search in memory-mapped files: one lookup reads a few dozen bytes, never all names."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgqa_core.graph.csr import Ints, open_array


@dataclass(frozen=True, slots=True, eq=False)
class StringTable:
    """UTF-8 strings 0..n-1 in one byte array; string i is ``data[offsets[i]:offsets[i+1]]``."""

    data: Ints  # uint8
    offsets: Ints  # int64 [n+1]

    def __len__(self) -> int:
        """Return the number of strings."""
        return len(self.offsets) - 1

    def raw(self, index: int) -> bytes:
        """Return string ``index`` as UTF-8."""
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def __getitem__(self, index: int) -> str:
        """Return string ``index``."""
        return self.raw(index).decode("utf-8")


def key_of(text: str) -> bytes:
    """Return the UTF-8 of any text; a lone surrogate (from a command line, say) gives bytes that match nothing."""
    return text.encode("utf-8", "surrogatepass")


def write_strings(strings: pa.Array, folder: Path, stem: str) -> None:
    """Write a string array as ``<stem>_data.npy`` and ``<stem>_offsets.npy``."""
    large = strings.cast(pa.large_string())
    lengths = pc.binary_length(large).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    _, where, values = large.buffers()
    start = int(np.frombuffer(where, dtype=np.int64)[large.offset])
    data = np.frombuffer(values, dtype=np.uint8)[start : start + int(offsets[-1])]
    np.save(folder / f"{stem}_data.npy", data, allow_pickle=False)
    np.save(folder / f"{stem}_offsets.npy", offsets, allow_pickle=False)


def open_strings(folder: Path, stem: str) -> StringTable:
    """Memory-map what ``write_strings`` wrote."""
    return StringTable(open_array(folder / f"{stem}_data.npy"), open_array(folder / f"{stem}_offsets.npy"))


class SortedIndex:
    """Rows in byte order of ``key``: found by binary search."""

    def __init__(self, key: Callable[[int], bytes], num_rows: int) -> None:
        """Keep ``key`` (row -> its key, ascending) and the number of rows."""
        self.key = key
        self.num_rows = num_rows
        self.first = lru_cache(maxsize=2**16)(self._first)  # texts share most of their words

    def _first(self, wanted: bytes) -> int:
        """Return the first row whose key is not below ``wanted``."""
        return bisect_left(range(self.num_rows), wanted, key=self.key)

    def rows(self, wanted: bytes) -> range:
        """Return the rows whose key equals ``wanted``."""
        start = end = self.first(wanted)
        while end < self.num_rows and self.key(end) == wanted:
            end += 1
        return range(start, end)

    def starts_with(self, row: int, prefix: bytes) -> bool:
        """Does the key of ``row`` (one past the last included) start with ``prefix``?"""
        return row < self.num_rows and self.key(row).startswith(prefix)
