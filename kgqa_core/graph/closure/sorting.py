"""Sorting the edges of a bucket, compiled: counted into their owners, then a small sort of keys for each owner."""

from __future__ import annotations

import numpy as np
from numba import njit

from kgqa_core.graph.closure.tables import I32, I64

GAPS = (701, 301, 132, 57, 23, 10, 4, 1)  # of Shell's sort (Ciura 2001): an insertion sort where there are few keys
LARGE = 1024  # keys from which a radix sort is quicker
DIGIT_BITS = 11


@njit(cache=True, nogil=True)
def sort_by_owner(owners: I32, keys: I64, low: int, high: int) -> tuple[I64, I64]:
    """Return where each owner from ``low`` to ``high`` - 1 starts, [owners + 1], and the keys, ascending in each."""
    start = np.zeros(high - low + 1, np.int64)
    for owner in owners:
        start[owner - low + 1] += 1
    largest = 0
    for at in range(1, len(start)):
        largest = max(largest, start[at])
        start[at] += start[at - 1]
    place = start[:-1].copy()
    ordered = np.empty(len(keys), np.int64)
    for at in range(len(owners)):
        owner = owners[at] - low
        ordered[place[owner]] = keys[at]
        place[owner] += 1
    scratch = np.empty(largest if largest > LARGE else 0, np.int64)
    for owner in range(high - low):
        sort_slice(ordered[start[owner] : start[owner + 1]], scratch)
    return start, ordered


@njit(cache=True, nogil=True)
def sort_slice(keys: I64, scratch: I64) -> None:
    """Sort keys (not negative) in place; ``scratch`` is as long, where there are more than LARGE."""
    if len(keys) > LARGE:
        _radix_sort(keys, scratch[: len(keys)])
        return
    for gap in GAPS:
        for at in range(gap, len(keys)):
            moved, place = keys[at], at
            while place >= gap and keys[place - gap] > moved:
                keys[place] = keys[place - gap]
                place -= gap
            keys[place] = moved


@njit(cache=True, nogil=True)
def _radix_sort(keys: I64, scratch: I64) -> None:
    """Sort by digits from the lowest; a digit that all keys share costs one look."""
    mask = (1 << DIGIT_BITS) - 1
    counts = np.empty(mask + 1, np.int64)
    source, target, swapped = keys, scratch, False
    for shift in range(0, 63, DIGIT_BITS):
        counts[:] = 0
        for key in source:
            counts[(key >> shift) & mask] += 1
        if counts[(source[0] >> shift) & mask] == len(source):
            continue
        total = 0
        for digit in range(mask + 1):
            total, counts[digit] = total + counts[digit], total
        for key in source:
            digit = (key >> shift) & mask
            target[counts[digit]] = key
            counts[digit] += 1
        source, target, swapped = target, source, not swapped
    if swapped:
        keys[:] = scratch
