"""Strings in byte order, compiled: compared and sorted as (bytes, offsets), never as Python objects.

String i is ``data[offsets[i]:offsets[i+1]]``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

SMALL = 16  # strings up to which insertion sort is quickest
LARGE = 4096  # strings from which the radix sort takes larger digits


@njit(cache=True, nogil=True)
def compare(data: U8, offsets: I64, one: int, other: int, skip: int = 0) -> int:
    """Return -1, 0 or 1 as string ``one`` is below, equal to or above ``other``, from byte ``skip`` on."""
    start, end = offsets[one] + skip, offsets[one + 1]
    start_other, end_other = offsets[other] + skip, offsets[other + 1]
    while start < end and start_other < end_other:
        if data[start] != data[start_other]:
            return -1 if data[start] < data[start_other] else 1
        start += 1
        start_other += 1
    if start < end:
        return 1
    return -1 if start_other < end_other else 0


@njit(cache=True, nogil=True)
def _words(data: U8, offsets: I64, rows: I32, depth: int) -> U64:
    """Return 8 bytes of each row from ``depth`` on as a number that sorts like them; zeros stand after the end."""
    words = np.empty(len(rows), np.uint64)
    for number in range(len(rows)):
        start, end = offsets[rows[number]] + depth, offsets[rows[number] + 1]
        word = np.uint64(0)
        for at in range(start, min(start + 8, end)):
            word |= np.uint64(data[at]) << np.uint64(8 * (7 - (at - start)))
        words[number] = word
    return words


@njit(cache=True, nogil=True)
def sort_strings(data: U8, offsets: I64) -> I32:
    """Return the rows [N] in byte order of their strings, equal strings in order of rows.

    Rows are sorted by 8 bytes at a time, a radix sort where they are many; of what is equal, the next 8 bytes decide.
    Strings that end are put before those that go on: only so is "a" below "a\\0", whose padded bytes are equal.
    """
    rows = np.arange(len(offsets) - 1).astype(np.int32)
    waiting = np.empty((1024, 3), np.int64)  # ranges to be sorted, from a depth
    waiting[0], num_waiting = (0, len(rows), 0), 1
    while num_waiting:
        num_waiting -= 1
        low, high, depth = waiting[num_waiting]
        if high - low <= SMALL:
            _insertion_sort(data, offsets, rows[low:high], max(depth - 8, 0))
            continue
        if depth:
            low += _ended_first(offsets, rows[low:high], depth)
        part = rows[low:high]
        words = _words(data, offsets, part, depth)
        _sort_by_words(words, part)
        first = 0
        while first < len(part):
            last = first + 1
            while last < len(part) and words[last] == words[first]:
                last += 1
            if last - first > 1:
                if num_waiting == len(waiting):
                    waiting = _longer(waiting)
                waiting[num_waiting] = low + first, low + last, depth + 8
                num_waiting += 1
            first = last
    return rows


@njit(cache=True, nogil=True)
def _longer(waiting: I64) -> I64:
    longer = np.empty((2 * len(waiting), 3), np.int64)
    longer[: len(waiting)] = waiting
    return longer


@njit(cache=True, nogil=True)
def _insertion_sort(data: U8, offsets: I64, rows: I32, skip: int) -> None:
    for at in range(1, len(rows)):
        moved, place = rows[at], at
        while place > 0 and compare(data, offsets, rows[place - 1], moved, skip) > 0:
            rows[place] = rows[place - 1]
            place -= 1
        rows[place] = moved


@njit(cache=True, nogil=True)
def _ended_first(offsets: I64, rows: I32, depth: int) -> int:
    """Put the strings of at most ``depth`` bytes first, the shorter before the longer; return how many they are."""
    count = 0
    lengths = np.empty(len(rows), np.uint64)
    for at in range(len(rows)):
        length = offsets[rows[at] + 1] - offsets[rows[at]]
        lengths[at] = min(length, depth + 1)
        count += length <= depth
    if count:
        _sort_by_words(lengths, rows)
    return int(count)


@njit(cache=True, nogil=True)
def _sort_by_words(words: U64, rows: I32) -> None:
    """Sort both by ``words``, digit by digit from the lowest, stable; a digit that all share costs one look."""
    bits = 11 if len(rows) > LARGE else 8
    mask = np.uint64((1 << bits) - 1)
    more_words, more_rows = np.empty_like(words), np.empty_like(rows)
    counts = np.empty(1 << bits, np.int64)
    source, source_rows, target, target_rows, swapped = words, rows, more_words, more_rows, False
    for low_bit in range(0, 64, bits):
        shift = np.uint64(low_bit)
        counts[:] = 0
        for word in source:
            counts[(word >> shift) & mask] += 1
        if counts[(source[0] >> shift) & mask] == len(source):
            continue
        total = 0
        for digit in range(len(counts)):
            total, counts[digit] = total + counts[digit], total
        for at in range(len(source)):
            place = np.int64((source[at] >> shift) & mask)
            target[counts[place]], target_rows[counts[place]] = source[at], source_rows[at]
            counts[place] += 1
        source, target, source_rows, target_rows, swapped = target, source, target_rows, source_rows, not swapped
    if swapped:
        words[:], rows[:] = source, source_rows


@njit(cache=True, nogil=True)
def num_repeated(data: U8, offsets: I64, order: I32) -> int:
    """Return how many distinct strings occur more than once; ``order`` sorts them."""
    count = 0
    repeats = False
    for at in range(1, len(order)):
        same = compare(data, offsets, order[at - 1], order[at]) == 0
        count += same and not repeats
        repeats = same
    return count
