"""Strings looked up by binary search in memory-mapped files: one lookup reads a few dozen bytes, never all names."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kgqa_core.graph.csr import open_array, read_only, write_array_header

StringBuffers = tuple[NDArray[np.uint8], NDArray[np.int64]]  # bytes and offsets, as in a StringTable


@dataclass(frozen=True, slots=True, eq=False)
class StringTable:
    """UTF-8 strings 0..n-1 in one byte array; string i is ``data[offsets[i]:offsets[i+1]]``."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]  # [n+1]

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
    data, offsets = string_buffers(strings.cast(pa.large_string()))
    np.save(folder / f"{stem}_data.npy", data, allow_pickle=False)
    np.save(folder / f"{stem}_offsets.npy", offsets, allow_pickle=False)


def string_buffers(strings: pa.LargeStringArray) -> StringBuffers:
    """Return the bytes (uint8) and the offsets (int64 [n+1], from 0) of an array without nulls, read-only."""
    _, where, values = strings.buffers()
    if not len(strings) or values is None:
        return read_only(np.zeros(0, np.uint8)), read_only(np.zeros(len(strings) + 1, np.int64))
    offsets = np.frombuffer(where, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    data = np.frombuffer(values, np.uint8)[offsets[0] : offsets[-1]]
    return read_only(data), read_only(offsets - offsets[0] if offsets[0] else offsets)


def fold(names: pa.Array) -> pa.Array:
    """Return ``str.casefold`` of each name, as large strings; only names that are not ASCII pass through Python."""
    folded = pc.ascii_lower(names.cast(pa.large_string()))
    other = pc.invert(pc.string_is_ascii(names))
    mended = pa.array([name.casefold() for name in names.filter(other).to_pylist()], pa.large_string())
    return pc.replace_with_mask(folded, other, mended)


def join_strings(pieces: Sequence[pa.ChunkedArray], folder: Path, stem: str) -> None:
    """Write string arrays one after the other, as ``write_strings`` writes one."""
    ends = [np.zeros(1, np.int64)]
    with (folder / f"{stem}_data.npy").open("wb") as stream:
        arrays = [chunk.cast(pa.large_string()) for piece in pieces for chunk in piece.chunks]
        num_bytes = sum(pc.sum(pc.binary_length(array)).as_py() or 0 for array in arrays)
        write_array_header(stream, np.dtype(np.uint8), num_bytes)
        for array in arrays:
            data, offsets = string_buffers(array)
            stream.write(data.data)
            ends.append(offsets[1:] + ends[-1][-1])
    np.save(folder / f"{stem}_offsets.npy", np.concatenate(ends), allow_pickle=False)


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
