"""Following relation paths, compiled: all paths of a question in one go, each common beginning walked once.

A step code is a relation id (0..2R-1); where paths are unsigned, 0..R-1, walked both ways.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
from numba import njit

from kgqa_core.errors import InputError
from kgqa_core.graph.csr import Ints, expand_ranges, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.paths import to_relations
from kgqa_core.types import RelationPath

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


# ------ Which relations lead on from a set of entities, compiled; some entities may not be entered.


LEADS, LEADS_ON = 1, 2  # to an entity that may be entered; to one that can be left again without entering a barred one


@njit(cache=True, nogil=True)
def is_among(value: int, ordered: I64) -> bool:
    """Say whether ``value`` is in ``ordered``, ascending and mostly of one or two."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) >> 1
        if ordered[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low < len(ordered) and ordered[low] == value


@njit(cache=True, nogil=True)
def find_dead_ends(csr: Csr, barred: I64) -> I64:
    """Return ``barred`` and the entities all of whose edges lead there, ascending; repeated where several edges do.

    Edges stand in the graph from both ends, so these are neighbours of ``barred``.
    """
    group_ptr, edge_ptr, edge_tail = csr[0], csr[2], csr[3]
    num = len(barred)
    for entity in barred:
        num += edge_ptr[group_ptr[entity + 1]] - edge_ptr[group_ptr[entity]]
    found = np.empty(num, dtype=np.int64)
    num = 0
    for entity in barred:
        found[num] = entity
        num += 1
        for edge in range(edge_ptr[group_ptr[entity]], edge_ptr[group_ptr[entity + 1]]):
            near = edge_tail[edge]
            leaves = False
            for back in range(edge_ptr[group_ptr[near]], edge_ptr[group_ptr[near + 1]]):
                if not is_among(edge_tail[back], barred):
                    leaves = True
                    break
            if not leaves:
                found[num] = near
                num += 1
    return np.sort(found[:num])


@njit(cache=True, nogil=True)
def find_leading(csr: Csr, here: I64, barred: I64, dead_ends: I64, num_steps: int) -> U8:
    """Return [2R]: LEADS and LEADS_ON, of each relation from any of ``here``."""
    group_ptr, group_relation, edge_ptr, edge_tail = csr
    found = np.zeros(num_steps, dtype=np.uint8)
    for entity in here:
        for group in range(group_ptr[entity], group_ptr[entity + 1]):
            relation = group_relation[group]
            for edge in range(edge_ptr[group], edge_ptr[group + 1]):
                if found[relation] == LEADS | LEADS_ON:
                    break
                if not is_among(edge_tail[edge], barred):
                    found[relation] |= LEADS
                if not is_among(edge_tail[edge], dead_ends):
                    found[relation] |= LEADS_ON
    return found


@njit(cache=True, nogil=True)
def leave_by(csr: Csr, here: I64, relation: int, barred: I64) -> I64:
    """Return the distinct entities, ascending, a step of ``relation`` away from ``here``, but for ``barred``."""
    edge_ptr, edge_tail = csr[2], csr[3]
    num = 0
    for entity in here:
        group = find_group(csr, entity, relation)
        if group >= 0:
            num += edge_ptr[group + 1] - edge_ptr[group]
    reached = np.empty(num, dtype=np.int64)
    num = 0
    for entity in here:
        group = find_group(csr, entity, relation)
        if group >= 0:
            for edge in range(edge_ptr[group], edge_ptr[group + 1]):
                if not is_among(edge_tail[edge], barred):
                    reached[num] = edge_tail[edge]
                    num += 1
    reached = np.sort(reached[:num])
    distinct = 0
    for at in range(num):
        if at == 0 or reached[at] != reached[at - 1]:
            reached[distinct] = reached[at]
            distinct += 1
    return reached[:distinct].copy()


# ------ Executing plans (RoG Algorithm 1): all plans of all questions in one pass, and the ...


NO_LIMIT = 2**62
Plans = Sequence[Sequence[Sequence[str]]]  # per question, per plan: steps by label


@dataclass(frozen=True, slots=True, eq=False)
class Executed:
    """What every plan of every question reached; P plans in the order given."""

    plan_ptr: I64  # [Q+1] plans of question q: plan_ptr[q]..plan_ptr[q+1]
    num_reached: I64  # [P]
    entity_ptr: I64  # [P+1]
    entity: I32  # those kept, ascending inside a plan
    is_known: Bools  # [P] False: the graph lacks a relation of it, or it has no step; then it reached nothing

    def reached(self, question: int, plan: int) -> I32:
        """Return the entities of one plan of one question, ascending."""
        at = self.plan_ptr[question] + plan
        return self.entity[self.entity_ptr[at] : self.entity_ptr[at + 1]]

    @property
    def is_cut(self) -> Bools:
        """[P] Did a plan reach more than ``max_entities``?"""
        cut: Bools = np.diff(self.entity_ptr) < self.num_reached
        return cut


@dataclass(frozen=True, slots=True, eq=False)
class _Encoded:
    """Topics and plans of all questions as arrays; those plans of a question that begin alike are neighbours."""

    topics: tuple[I64, I32]
    plan_ptr: I64
    steps: I32  # [P, L], sorted
    lengths: I64  # [P], sorted
    order: I64  # [P] place in the order given of each sorted plan


def execute_plans(
    graph: KnowledgeGraph,
    topics: Sequence[Sequence[int]],
    plans: Plans,
    *,
    reenter_topic: bool = False,
    directed: bool = True,
    max_entities: int | None = None,
) -> Executed:
    """Return what each question's plans reach from its topics.

    Args:
        graph: also a graph of rows (``Subgraphs.graph``), for topics that are rows.
        topics: entity ids per question.
        plans: plans by label per question; one with a relation that the graph lacks reaches nothing, and is marked.
        reenter_topic: may a step arrive at a topic?
        directed: False: steps are walked in both directions, whatever sign they carry.
        max_entities: kept per plan, those of the smallest ids; None: all. The frontiers on the way are never cut.

    Raises:
        InputError: a topic that is no entity, or unequal numbers of questions.
    """
    encoded = _encode(graph, topics, plans, directed)
    width = encoded.steps.shape[1]
    num = graph.num_entities
    tables = (np.zeros(num // 8 + 1, np.uint8), np.empty((width + 1, num + 1), np.int32))
    rules = (not reenter_topic, 0 if directed else graph.num_relations, max_entities or NO_LIMIT)
    found = follow_all(graph.arrays, encoded.topics, (encoded.plan_ptr, encoded.steps, encoded.lengths), tables, rules)
    return _in_order(encoded, *found)


def step_codes(graph: KnowledgeGraph, plan: Sequence[str], directed: bool) -> tuple[int, ...]:
    """Return the step codes of a plan (see ``follow_kernels``); none where the graph lacks a relation of it."""
    found = to_relations(graph, plan) or ()
    return found if directed else tuple(step % graph.num_relations for step in found)


def topic_arrays(graph: KnowledgeGraph, topics: Sequence[Sequence[int]]) -> tuple[I64, I32]:
    """Return pointer [Q+1] and the distinct topics of each question, ascending.

    Raises:
        InputError: one that is no entity.
    """
    num = graph.num_entities
    ids = np.fromiter(chain.from_iterable(topics), dtype=np.int64)
    wrong = ids[(ids < 0) | (ids >= num)]
    if len(wrong):
        raise InputError(f"topics {wrong[:9].tolist()}: entity ids go from 0 to {num - 1}")
    keys = sorted_distinct(np.repeat(np.arange(len(topics)), [len(one) for one in topics]) * num + ids)
    return np.searchsorted(keys, np.arange(len(topics) + 1) * num), (keys % max(1, num)).astype(np.int32)


def _encode(graph: KnowledgeGraph, topics: Sequence[Sequence[int]], plans: Plans, directed: bool) -> _Encoded:
    if len(topics) != len(plans):
        raise InputError(f"{len(topics)} questions have topics and {len(plans)} have plans: give both for each")
    asked = [tuple(plan) for of_question in plans for plan in of_question]
    codes = {plan: step_codes(graph, plan, directed) for plan in set(asked)}
    lengths = np.array([len(codes[plan]) for plan in asked], dtype=np.int64)
    steps = np.full((len(asked), max(1, lengths.max(initial=0))), -1, dtype=np.int32)
    steps[np.arange(steps.shape[1]) < lengths[:, None]] = [step for plan in asked for step in codes[plan]]
    plan_ptr = np.cumsum([0, *map(len, plans)], dtype=np.int64)
    question = np.repeat(np.arange(len(plans)), np.diff(plan_ptr))
    order = np.lexsort((*steps.T[::-1], question))
    return _Encoded(topic_arrays(graph, topics), plan_ptr, steps[order], lengths[order], order)


def _in_order(encoded: _Encoded, num_reached: I64, kept_ptr: I64, kept: I32) -> Executed:
    """Turn what was found plan by plan, sorted, into the order in which the plans were given."""
    back = np.argsort(encoded.order)
    first, last = kept_ptr[:-1][back], kept_ptr[1:][back]
    entity_ptr = np.concatenate([[0], np.cumsum(last - first)]).astype(np.int64)
    is_known = encoded.lengths[back] > 0
    return Executed(encoded.plan_ptr, num_reached[back], entity_ptr, kept[expand_ranges(first, last)], is_known)


# ------ Following many relation paths from one question's topics: what a common beginning reaches is found once.


class Follower:
    """Follows paths in one graph, with tables that are made once: 4 (max_steps + 1) bytes per entity at most.

    As ``paths.follow_path``: from all topics together, and no step arrives at one unless ``reenter_topic``.
    """

    def __init__(self, graph: KnowledgeGraph, *, max_steps: int, reenter_topic: bool = False) -> None:
        """Keep the arrays of ``graph``."""
        self.csr = graph.arrays
        self.reenter_topic = reenter_topic
        self._max_steps = max_steps
        num = graph.num_entities
        self._tables = (
            np.zeros(num // 8 + 1, dtype=np.uint8),
            np.zeros(num // 8 + 1, dtype=np.uint8),
            np.empty((max_steps + 1, num + 1), dtype=np.int32),  # pages never written to take no memory
        )

    def count(
        self, topics: Sequence[int], paths: Sequence[RelationPath], golds: Collection[int]
    ) -> tuple[list[int], list[int]]:
        """Return how many entities each path reaches, and how many of them are golds."""
        order = sorted(range(len(paths)), key=lambda at: paths[at])
        steps = np.zeros((len(paths), self._max_steps), dtype=np.int32)
        for row, at in enumerate(order):
            steps[row, : len(paths[at])] = paths[at]
        lengths = np.array([len(paths[at]) for at in order], dtype=np.int64)
        start, wanted = (np.array(sorted(set(ids)), dtype=np.int32) for ids in (topics, golds))
        barred = not self.reenter_topic
        reached, right = count_reached(self.csr, start, steps, lengths, wanted, self._tables, barred)
        back = np.argsort(np.array(order, dtype=np.int64))
        return reached[back].tolist(), right[back].tolist()
