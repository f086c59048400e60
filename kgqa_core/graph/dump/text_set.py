"""The texts of one part, each once, compiled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
U8 = npt.NDArray[np.uint8]

FIRST_CAPACITY = 1 << 16  # of the hash table; doubled when half full


class CompiledTextSet:
    """A hash table of (code, check), open addressing; code 0, which no text has, marks an empty slot."""

    def __init__(self) -> None:
        self._codes = np.zeros(FIRST_CAPACITY, np.int64)
        self._checks = np.empty(FIRST_CAPACITY, np.uint64)
        self._used = 0

    def add(self, codes: I64, checks: U64, ends: I64, data: U8) -> tuple[I64, I64, U8]:
        """Return code, end and bytes of the texts that were not added before."""
        while 2 * (self._used + len(codes)) > len(self._codes):
            self._codes, self._checks = _grow(self._codes, self._checks)
        kept, kept_ends, kept_data = _add(self._codes, self._checks, codes, checks, ends, data)
        self._used += len(kept)
        return kept, kept_ends, kept_data


@njit(cache=True, nogil=True)
def _slot(table: I64, table_checks: U64, code: int, check: int) -> np.int64:
    """Return the slot of a text, or the empty one where it belongs (linear probing). Codes are well-mixed already."""
    mask = len(table) - 1
    slot = np.int64(code & mask)
    while table[slot] != 0 and (table[slot] != code or table_checks[slot] != check):
        slot = (slot + 1) & mask
    return slot


@njit(cache=True, nogil=True)
def _grow(table: I64, table_checks: U64) -> tuple[I64, U64]:
    more = np.zeros(2 * len(table), np.int64)
    more_checks = np.empty(2 * len(table), np.uint64)
    for old in range(len(table)):
        if table[old] != 0:
            slot = _slot(more, more_checks, table[old], table_checks[old])
            more[slot], more_checks[slot] = table[old], table_checks[old]
    return more, more_checks


@njit(cache=True, nogil=True)
def _add(table: I64, table_checks: U64, codes: I64, checks: U64, ends: I64, data: U8) -> tuple[I64, I64, U8]:
    kept, kept_ends = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
    kept_data = np.empty(len(data), np.uint8)
    count, filled, start = 0, 0, 0
    for row in range(len(codes)):
        slot = _slot(table, table_checks, codes[row], checks[row])
        if table[slot] == 0:
            table[slot], table_checks[slot] = codes[row], checks[row]
            for at in range(start, ends[row]):
                kept_data[filled + at - start] = data[at]
            filled += ends[row] - start
            kept[count], kept_ends[count] = codes[row], filled
            count += 1
        start = ends[row]
    return kept[:count].copy(), kept_ends[:count].copy(), kept_data[:filled].copy()
