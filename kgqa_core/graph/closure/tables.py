"""Look-up of int64 codes by open addressing, compiled: a set of codes, and the numbers of codes.

A look-up in a table larger than the cache costs one read from memory (a set) or two (numbers): some 20-100 ns. That is
what a pass over a dump costs, next to decoding its Parquet; heads come in runs, so theirs are looked up once per run.
Both tables are plain arrays, which tasks memory-map.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kgqa_core.errors import InputError

I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

FREE = 0  # no code is 0: MIDs are above it, other labels below
NONE = -1
GOLDEN = 0x9E3779B97F4A7C15  # multiplicative hashing (Knuth 6.4): the upper bits of the product choose the slot


@njit(cache=True, nogil=True)
def _shift(capacity: int) -> np.uint64:
    """Return how far a product is shifted to leave a slot of a table of ``capacity`` (a power of two)."""
    bits = 0
    while (1 << bits) < capacity:
        bits += 1
    return np.uint64(64 - bits)


@njit(cache=True, nogil=True)
def _slot(code: int, shift: np.uint64) -> np.int64:
    return np.int64((np.uint64(code) * np.uint64(GOLDEN)) >> shift)


def capacity_for(count: int) -> int:
    """Return the size of a table that ``count`` codes fill to a half at most."""
    return 1 << max(4, (2 * count - 1).bit_length() if count else 4)


def set_of(codes: I64) -> I64:
    """Return the set of ``codes`` as a table."""
    table = np.zeros(capacity_for(len(codes)), np.int64)
    add_new(table, codes)
    return table


@njit(cache=True, nogil=True)
def contains(table: I64, shift: np.uint64, code: int) -> bool:
    """Is ``code`` in the set?"""
    slot = _slot(code, shift)
    while table[slot] != FREE:
        if table[slot] == code:
            return True
        slot = (slot + 1) & (len(table) - 1)
    return False


@njit(cache=True, nogil=True)
def add_new(table: I64, codes: I64) -> I64:
    """Add ``codes`` to the set; return those that were not in it, in their order."""
    shift = _shift(len(table))
    added = np.empty(len(codes), np.int64)
    count = 0
    for code in codes:
        slot = _slot(code, shift)
        while table[slot] != FREE and table[slot] != code:
            slot = (slot + 1) & (len(table) - 1)
        if table[slot] == FREE:
            table[slot] = code
            added[count] = code
            count += 1
    return added[:count].copy()


class GrowingSet:
    """A set of codes that grows."""

    def __init__(self) -> None:
        self.table: I64 = set_of(np.empty(0, np.int64))
        self.count = 0

    def add(self, codes: I64) -> I64:
        """Add ``codes``; return those that are new, in their order."""
        if 2 * (self.count + len(codes)) > len(self.table):
            known = self.table[self.table != FREE]
            self.table = np.zeros(capacity_for(self.count + len(codes)), np.int64)
            add_new(self.table, known)
        new = add_new(self.table, codes)
        self.count += len(new)
        return new


@njit(cache=True, nogil=True)
def isin(table: I64, codes: I64) -> npt.NDArray[np.bool_]:
    """Say of each code whether it is in the set."""
    shift = _shift(len(table))
    found = np.empty(len(codes), np.bool_)
    for at in range(len(codes)):
        found[at] = found[at - 1] if at and codes[at] == codes[at - 1] else contains(table, shift, codes[at])
    return found


@njit(cache=True, nogil=True)
def other_ends(table: I64, heads: I64, tails: I64) -> I64:
    """Return the ends outside the set of the triples that have the other end in it, as often as they occur."""
    shift = _shift(len(table))
    found = np.empty(len(heads), np.int64)
    count = 0
    inside = False
    for at in range(len(heads)):
        if at == 0 or heads[at] != heads[at - 1]:
            inside = contains(table, shift, heads[at])
        if contains(table, shift, tails[at]) != inside:
            found[count] = tails[at] if inside else heads[at]
            count += 1
    return found[:count]


def number_table(codes: I64) -> I32:
    """Return the table that finds the position of a code in ``codes`` (distinct)."""
    if len(codes) >= 2**31 - 1:
        raise InputError(
            f"{len(codes)} entities are more than the {2**31 - 1} that an entity id has room for; ask for fewer hops"
        )
    table = np.full(capacity_for(len(codes)), NONE, np.int32)
    _fill_numbers(table, codes)
    return table


@njit(cache=True, nogil=True)
def _fill_numbers(table: I32, codes: I64) -> None:
    shift = _shift(len(table))
    for number in range(len(codes)):
        slot = _slot(codes[number], shift)
        while table[slot] != NONE:
            slot = (slot + 1) & (len(table) - 1)
        table[slot] = number


@njit(cache=True, nogil=True)
def _number(table: I32, codes: I64, shift: np.uint64, code: int) -> np.int32:
    slot = _slot(code, shift)
    while table[slot] != NONE and codes[table[slot]] != code:
        slot = (slot + 1) & (len(table) - 1)
    return np.int32(table[slot])


@njit(cache=True, nogil=True)
def numbers_of(table: I32, codes: I64, wanted: I64) -> I32:
    """Return the position in ``codes`` of each wanted code, NONE where it is not there."""
    shift = _shift(len(table))
    found = np.empty(len(wanted), np.int32)
    for at in range(len(wanted)):
        same = at > 0 and wanted[at] == wanted[at - 1]
        found[at] = found[at - 1] if same else _number(table, codes, shift, wanted[at])
    return found
