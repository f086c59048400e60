"""Comparing two sorted tables in one pass each, compiled: strings, triples, and a walk from what changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.integer[Any]]
Triples = tuple[I32, I32, I32]

GONE = -1


@njit(cache=True, nogil=True)
def _compare(a: Ints, a_start: int, a_end: int, b: Ints, b_start: int, b_end: int) -> np.int64:
    """Return below 0, 0 or above 0 as string a stands before b, is equal to it or stands after it, byte by byte."""
    size_a, size_b = a_end - a_start, b_end - b_start
    for place in range(min(size_a, size_b)):
        difference = np.int64(a[a_start + place]) - np.int64(b[b_start + place])
        if difference != 0:
            return difference
    return np.int64(size_a - size_b)


@njit(cache=True, nogil=True)
def match_sorted(old_data: Ints, old_offsets: Ints, new_data: Ints, new_offsets: Ints) -> I32:
    """Return the new place of each old string, or GONE; both tables in byte order and distinct (see ``strings``)."""
    num_old, num_new = len(old_offsets) - 1, len(new_offsets) - 1
    places = np.full(num_old, GONE, np.int32)
    old, new = 0, 0
    while old < num_old and new < num_new:
        order = _compare(
            old_data, old_offsets[old], old_offsets[old + 1], new_data, new_offsets[new], new_offsets[new + 1]
        )
        if order == 0:
            places[old] = new
        if order <= 0:
            old += 1
        if order >= 0:
            new += 1
    return places


@njit(cache=True, nogil=True)
def count_differing(old_data: Ints, old_offsets: Ints, new_data: Ints, new_offsets: Ints, places: I32) -> int:
    """Return how many strings differ from the one at their new place."""
    count = 0
    for old in range(len(places)):
        new = places[old]
        if new != GONE:
            starts, ends = old_offsets[old], old_offsets[old + 1]
            count += _compare(old_data, starts, ends, new_data, new_offsets[new], new_offsets[new + 1]) != 0
    return count


@njit(cache=True, nogil=True)
def merge_triples(
    old: Triples, new: Triples, only_old: npt.NDArray[np.int64], only_new: npt.NDArray[np.int64], ends: U8
) -> tuple[int, int]:
    """Compare two sorted pieces of triples (heads, relations, tails) until one of them is used up.

    Adds to the counts by relation of triples that only one of them holds, and marks these triples' ends in ``ends``:
    1 of an old triple, 2 of a new one. Returns how many triples of each were used.
    """
    old_head, old_relation, old_tail = old
    new_head, new_relation, new_tail = new
    i, j = 0, 0
    while i < len(old_head) and j < len(new_head):
        order = np.int64(old_head[i]) - new_head[j]
        if order == 0:
            order = np.int64(old_relation[i]) - new_relation[j]
        if order == 0:
            order = np.int64(old_tail[i]) - new_tail[j]
        if order < 0:
            only_old[old_relation[i]] += 1
            ends[old_head[i]] |= 1
            ends[old_tail[i]] |= 1
        elif order > 0:
            only_new[new_relation[j]] += 1
            ends[new_head[j]] |= 2
            ends[new_tail[j]] |= 2
        i += order <= 0
        j += order >= 0
    return i, j


@njit(cache=True, nogil=True)
def reach(group_ptr: Ints, edge_ptr: Ints, edge_tail: Ints, reached: npt.NDArray[np.bool_], hops: int) -> None:
    """Mark in ``reached`` [N] all that lies within ``hops`` steps, in any direction, of what is marked."""
    queue = np.empty(len(reached), np.int32)
    begin, end = 0, 0
    for entity in range(len(reached)):
        if reached[entity]:
            queue[end] = entity
            end += 1
    for _ in range(hops):
        last = end
        for place in range(begin, last):
            entity = queue[place]
            for edge in range(edge_ptr[group_ptr[entity]], edge_ptr[group_ptr[entity + 1]]):
                tail = edge_tail[edge]
                if not reached[tail]:
                    reached[tail] = True
                    queue[end] = tail
                    end += 1
        begin = last
