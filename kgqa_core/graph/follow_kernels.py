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
Bools = npt.NDArray[np.bool_]
Csr = tuple[Ints, Ints, Ints, Ints]

BARRED = np.iinfo(np.int64).max
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
def follow_step(csr: Csr, here: I32, step: int, two_ways: int, stamp: I64, mark: int, reached: I32) -> int:
    """Write the distinct entities one step away into ``reached``, in order of meeting; return how many.

    Args:
        csr: the graph.
        here: entities to leave.
        step: step code.
        two_ways: R where the step is walked both ways, else 0.
        stamp: [N] below ``mark`` of all that may be entered; ``mark`` of those reached afterwards.
        mark: see ``stamp``.
        reached: room for the result.
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
                if stamp[tail] < mark:
                    stamp[tail] = mark
                    reached[num] = tail
                    num += 1
    return num


@njit(cache=True, nogil=True)
def count_reached(
    csr: Csr, topics: I64, steps: I32, lengths: I64, golds: I64, tables: tuple[I64, Bools, I32], bars: bool, mark: int
) -> tuple[I64, I64, int]:
    """Follow one question's paths and count what each reaches.

    Args:
        csr: the graph.
        topics: distinct.
        steps: [P, L] step codes of the paths, in lexicographic order.
        lengths: [P].
        golds: distinct.
        tables: stamps [N], golds (False) [N], and room for sets of entities [L + 1, N].
        bars: may no step arrive at a topic?
        mark: all stamps are below it.

    Returns:
        Entities reached [P], golds among them [P], and the next mark.
    """
    stamp, is_gold, sets = tables
    num_reached, num_right = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.int64)
    sizes = np.zeros(len(sets), np.int64)
    for gold in golds:
        is_gold[gold] = True
    for at in range(len(topics)):
        sets[0, at] = topics[at]
        if bars:
            stamp[topics[at]] = BARRED
    sizes[0] = len(topics)
    for path in range(len(steps)):
        shared = 0
        if path:
            while (
                shared < lengths[path - 1] and shared < lengths[path] and steps[path, shared] == steps[path - 1, shared]
            ):
                shared += 1
        for at in range(shared, lengths[path]):
            here = sets[at, : sizes[at]]
            sizes[at + 1] = follow_step(csr, here, steps[path, at], 0, stamp, mark, sets[at + 1])
            mark += 1
        last = lengths[path]
        num_reached[path] = sizes[last]
        for at in range(sizes[last]):
            num_right[path] += is_gold[sets[last, at]]
    for gold in golds:
        is_gold[gold] = False
    if bars:
        for topic in topics:
            stamp[topic] = 0
    return num_reached, num_right, mark


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
    topics: tuple[I64, I64],
    plans: tuple[I64, I32, I64],
    tables: tuple[I64, I32],
    rules: tuple[bool, int, int],
) -> tuple[I64, I64, I32]:
    """Follow the plans of all questions.

    Args:
        csr: the graph.
        topics: pointer [Q+1] and distinct topics per question.
        plans: pointer [Q+1]; step codes [P, L], in lexicographic order per question; lengths [P], 0 is not followed.
        tables: stamps (0) [N], and room for sets of entities [L + 1, N].
        rules: may no step arrive at a topic? R where steps are walked both ways, else 0; most entities kept per plan.

    Returns:
        Entities reached [P], kept_ptr [P+1], and the entities kept, those of the smallest ids, ascending.
    """
    topic_ptr, topic = topics
    plan_ptr, steps, lengths = plans
    stamp, sets = tables
    bars, two_ways, most = rules
    num_reached, kept_ptr = np.zeros(len(steps), np.int64), np.zeros(len(steps) + 1, np.int64)
    kept, num_kept, mark = np.empty(FIRST_CAPACITY, np.int32), 0, 1
    sizes = np.zeros(len(sets), np.int64)
    for question in range(len(plan_ptr) - 1):
        start = topic[topic_ptr[question] : topic_ptr[question + 1]]
        sizes[0] = len(start)
        for at in range(len(start)):
            sets[0, at] = start[at]
            if bars:
                stamp[start[at]] = BARRED
        known = 0  # steps whose sets are those of the plan before
        for plan in range(plan_ptr[question], plan_ptr[question + 1]):
            shared = 0
            while shared < min(known, lengths[plan]) and steps[plan, shared] == steps[plan - 1, shared]:
                shared += 1
            for at in range(shared, lengths[plan]):
                here = sets[at, : sizes[at]]
                sizes[at + 1] = follow_step(csr, here, steps[plan, at], two_ways, stamp, mark, sets[at + 1])
                mark += 1
            known = lengths[plan]
            if known:
                found = sets[known, : sizes[known]]
                found.sort()
                num_reached[plan], size = len(found), min(most, len(found))
                kept = _with_room(kept, num_kept + size)
                for at in range(size):
                    kept[num_kept + at] = found[at]
                num_kept += size
            kept_ptr[plan + 1] = num_kept
        if bars:
            for entity in start:
                stamp[entity] = 0
    return num_reached, kept_ptr, kept[:num_kept].copy()
