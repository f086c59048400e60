"""Following relation paths, compiled: all paths of a question in one go, each common beginning walked once.

A step code is a relation id (0..2R-1); where paths are unsigned, 0..R-1, walked both ways.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kgqa_core.graph.csr import Ints

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Csr = tuple[Ints, Ints, Ints, Ints]

FIRST_CAPACITY = 1 << 12  # entities
FEW = 16  # groups of one entity up to which a search from the first on is quicker


@njit(cache=True, nogil=True)
def find_group(csr: Csr, entity: int, relation: int) -> np.int64:
    """Return the entity's group of a relation, or -1."""
    group_ptr, group_relation = csr[0], csr[1]
    low, high = np.int64(group_ptr[entity]), np.int64(group_ptr[entity + 1])
    end = high
    while high - low > FEW:
        middle = (low + high) >> 1
        if group_relation[middle] < relation:
            low = middle + 1
        else:
            high = middle
    while low < high and group_relation[low] < relation:
        low += 1
    return low if low < end and group_relation[low] == relation else np.int64(-1)


@njit(cache=True, nogil=True)
def mark(marks: U8, entities: Ints, value: bool) -> None:
    """Set or clear the bits of entities."""
    for entity in entities:
        if value:
            marks[entity >> 3] |= 1 << (entity & 7)
        else:
            marks[entity >> 3] &= ~(1 << (entity & 7))


@njit(cache=True, nogil=True)
def follow_step(csr: Csr, here: I32, step: int, two_ways: int, marks: U8, reached: I32) -> int:
    """Write the distinct entities one step away into ``reached``, in order of meeting; return how many.

    Args:
        csr: the graph.
        here: entities to leave.
        step: step code.
        two_ways: R where the step is walked both ways, else 0.
        marks: one bit per entity, set for those that may not be entered; the same afterwards.
        reached: room for one more than there are entities.
    """
    edge_ptr, edge_tail = csr[2], csr[3]
    num = 0
    for relation in range(step, step + two_ways + 1, max(1, two_ways)):
        for entity in here:
            group = find_group(csr, entity, relation)
            if group < 0:
                continue
            for edge in range(edge_ptr[group], edge_ptr[group + 1]):
                tail = edge_tail[edge]
                seen, bit = marks[tail >> 3], tail & 7
                marks[tail >> 3] = seen | (1 << bit)
                reached[num] = tail  # written over by the next where it was seen before: no branch to guess
                num += ((seen >> bit) & 1) ^ 1
    mark(marks, reached[:num], False)
    return num


@njit(cache=True, nogil=True)
def count_reached(
    csr: Csr, topics: I32, steps: I32, lengths: I64, golds: I32, tables: tuple[U8, U8, I32], bars: bool
) -> tuple[I64, I64]:
    """Follow one question's paths and count what each reaches.

    Args:
        csr: the graph.
        topics: distinct.
        steps: [P, L] step codes of the paths, in lexicographic order.
        lengths: [P].
        golds: distinct.
        tables: bits of entities (0) [N/8 + 1], twice, and room for sets of entities [L + 1, N + 1].
        bars: may no step arrive at a topic?

    Returns:
        Entities reached [P], and golds among them [P].
    """
    marks, is_gold, sets = tables
    num_reached, num_right = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.int64)
    sizes = np.zeros(len(sets), np.int64)
    mark(is_gold, golds, True)
    sizes[0] = _start(topics, bars, marks, sets)
    known = 0  # steps whose sets are those of the path before
    for path in range(len(steps)):
        known = _follow(csr, steps, lengths, path, known, 0, marks, sets, sizes)
        num_reached[path] = sizes[known]
        for at in range(sizes[known]):
            entity = sets[known, at]
            num_right[path] += (is_gold[entity >> 3] >> (entity & 7)) & 1
    mark(is_gold, golds, False)
    mark(marks, topics, False)
    return num_reached, num_right


@njit(cache=True, nogil=True)
def _start(topics: I32, bars: bool, marks: U8, sets: I32) -> int:
    """Make the topics the first set, barred where no step may arrive at them."""
    for at in range(len(topics)):
        sets[0, at] = topics[at]
    if bars:
        mark(marks, topics, True)
    return len(topics)


@njit(cache=True, nogil=True)
def _follow(
    csr: Csr, steps: I32, lengths: I64, path: int, known: int, two_ways: int, marks: U8, sets: I32, sizes: I64
) -> int:
    """Fill ``sets`` and ``sizes`` along one path, of whose predecessor ``known`` steps are there; return its length."""
    shared, length = 0, lengths[path]
    while shared < min(known, length) and steps[path, shared] == steps[path - 1, shared]:
        shared += 1
    for at in range(shared, length):
        sizes[at + 1] = follow_step(csr, sets[at, : sizes[at]], steps[path, at], two_ways, marks, sets[at + 1])
    return int(length)


@njit(cache=True, nogil=True)
def _with_room(values: I32, size: int) -> I32:
    """Return ``values``, or a larger copy where they are fewer than ``size``."""
    if size <= len(values):
        return values
    bigger = np.empty(max(size, 2 * len(values)), np.int32)
    for at in range(len(values)):  # a slice assigned takes seconds to compile
        bigger[at] = values[at]
    return bigger


@njit(cache=True, nogil=True)
def follow_all(
    csr: Csr,
    topics: tuple[I64, I32],
    plans: tuple[I64, I32, I64],
    tables: tuple[U8, I32],
    rules: tuple[bool, int, int],
) -> tuple[I64, I64, I32]:
    """Follow the plans of all questions.

    Args:
        csr: the graph.
        topics: pointer [Q+1] and distinct topics per question.
        plans: pointer [Q+1]; step codes [P, L], in lexicographic order per question; lengths [P], 0 is not followed.
        tables: bits of entities (0) [N/8 + 1], and room for sets of entities [L + 1, N + 1].
        rules: may no step arrive at a topic? R where steps are walked both ways, else 0; most entities kept per plan.

    Returns:
        Entities reached [P], kept_ptr [P+1], and the entities kept, those of the smallest ids, ascending.
    """
    topic_ptr, topic = topics
    plan_ptr, steps, lengths = plans
    marks, sets = tables
    bars, two_ways, most = rules
    num_reached, kept_ptr = np.zeros(len(steps), np.int64), np.zeros(len(steps) + 1, np.int64)
    kept, num_kept = np.empty(FIRST_CAPACITY, np.int32), 0
    sizes = np.zeros(len(sets), np.int64)
    for question in range(len(plan_ptr) - 1):
        start = topic[topic_ptr[question] : topic_ptr[question + 1]]
        sizes[0] = _start(start, bars, marks, sets)
        known = 0  # steps whose sets are those of the plan before
        for plan in range(plan_ptr[question], plan_ptr[question + 1]):
            known = _follow(csr, steps, lengths, plan, known, two_ways, marks, sets, sizes)
            if known:
                found = sets[known, : sizes[known]]
                found.sort()
                num_reached[plan], size = len(found), min(most, len(found))
                kept = _with_room(kept, num_kept + size)
                for at in range(size):
                    kept[num_kept + at] = found[at]
                num_kept += size
            kept_ptr[plan + 1] = num_kept
        mark(marks, start, False)
    return num_reached, kept_ptr, kept[:num_kept].copy()
