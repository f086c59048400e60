"""Following relation paths from topics: to the entities that they reach, and to the reasoning paths that lead there.

``leave`` takes one step, ``follow_layers`` a whole path, and ``reasoning_paths`` lists the ways along it. A
``Follower`` follows many paths in one compiled pass, where what begins alike is walked once. A relation here is one of
0..2R-1: forward, then backward.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise

import numpy as np

from kgqa_core.errors import InputError
from kgqa_core.graph.csr import I32, I64, U8, CsrArrays, Ints, compiled, shared_sorted, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph, to_relations
from kgqa_core.types import ReasoningPath, RelationPath, Step

FEW = 16  # groups of one entity up to which a search from the first on is quicker
FIRST_CAPACITY = 1 << 12  # of what grows
Ids = Sequence[int] | Ints
NOTHING: I64 = np.empty(0, dtype=np.int64)
LEADS, LEADS_ON = 1, 2  # to an entity that may be entered; to one that can be left again without entering a barred one


def leave(graph: KnowledgeGraph, entities: Ints, relation: int, barred: Ints = NOTHING) -> I64:
    """Return the distinct entities, ascending, one step of ``relation`` away from any of ``entities``.

    ``barred``: entities, ascending, that the step may not arrive at; few.
    """
    return _leave(graph.arrays, as_ids(entities), relation, as_ids(barred))


def as_ids(entities: Ints) -> I64:
    """Return entities as kernels take them: of one type, so that these are compiled once."""
    return np.require(entities, np.int64, ["C", "W"])


def follow_layers(
    graph: KnowledgeGraph, start: Ids, path: RelationPath, *, topics: Ids | None = None, reenter_topic: bool = False
) -> list[I64]:
    """Return the distinct entities, ascending, after 0..len(path) steps from all of ``start`` together.

    With ``reenter_topic=False`` no step may arrive at one of ``topics``; None: these are ``start``.
    """
    layers = [sorted_distinct(np.array(start, dtype=np.int64))]
    barred = layers[0] if topics is None else sorted_distinct(np.array(topics, dtype=np.int64))
    for relation in path:
        layers.append(_leave(graph.arrays, layers[-1], relation, NOTHING if reenter_topic else barred))
    return layers


def reasoning_paths(
    graph: KnowledgeGraph,
    topics: Sequence[int],
    path: RelationPath,
    *,
    ends: Sequence[int] | None = None,
    reenter_topic: bool = False,
    layers: Sequence[Ints] | None = None,
    keep: Callable[[Ints, int, int], Ints] | None = None,
) -> Iterator[ReasoningPath]:
    """Yield the ways along ``path``: one to every end in turns, ends ascending, so that a cap starves none.

    The first way to an end goes by the smallest entity ids, from the last on. ``ends``: the only ones asked for.
    ``layers``: entities that a way may be at after 0..len(path) steps, ascending; None: all that ``topics`` lead to.
    ``keep``: (where a step may come from, where it arrives, its place in ``path``) -> where it comes from; None: all.
    """
    layers = follow_layers(graph, topics, path, reenter_topic=reenter_topic) if layers is None else layers
    wanted = layers[-1] if ends is None else shared_sorted(layers[-1], sorted_distinct(np.array(ends, dtype=np.int64)))
    num = graph.num_relations
    # Of the way to each end, from its last step on: entities still to be tried, what comes before a place in the path,
    # the entity arrived at from them, and the way on from there.
    waiting: Iterable[list[tuple[Iterator[int], int, int, ReasoningPath]]]
    waiting = ([(iter((end,)), len(path), end, ())] for end in wanted.tolist())
    while waiting:
        following = []
        for tried in waiting:
            while tried:
                entities, place, after, way = tried[-1]
                here = next(entities, None)
                if here is None:
                    tried.pop()
                    continue
                if place < len(path):
                    reverse = path[place] >= num
                    head, tail = (after, here) if reverse else (here, after)
                    way = (Step(head, path[place] % num, tail, reverse), *way)
                if place == 0:
                    following.append(tried)
                    yield way
                    break
                before = graph.neighbors(here, (path[place - 1] + num) % graph.identity)
                before = shared_sorted(before, layers[place - 1])
                before = before if keep is None else keep(before, here, place - 1)
                tried.append((iter(before.tolist()), place - 1, here, way))
        waiting = following


def on_way(graph: KnowledgeGraph, layers: Sequence[Ints], path: RelationPath, ends: Iterable[int]) -> list[Ints]:
    """Return of each of the ``layers`` along a path the entities from which the rest of it leads to one of ``ends``."""
    kept = [shared_sorted(layers[-1], np.array(sorted(ends), dtype=np.int64))]
    for relation, layer in zip(reversed(path), reversed(layers[:-1]), strict=True):
        back = leave(graph, kept[0], (relation + graph.num_relations) % graph.identity)
        kept.insert(0, shared_sorted(layer, back))
    return kept


def end_of(path: ReasoningPath) -> int:
    """Return the entity that a path, of one step at least, ends at."""
    return path[-1].head if path[-1].reverse else path[-1].tail


# ------ Many paths in one pass.


class Follower:
    """Follows paths in one graph, with tables that are made once: 4 (max_steps + 1) bytes per entity.

    As ``follow_layers``: from all topics together, and no step arrives at one unless ``reenter_topic``.
    """

    def __init__(self, graph: KnowledgeGraph, *, max_steps: int, reenter_topic: bool = False) -> None:
        """Keep the arrays of ``graph``."""
        self._csr, self._num_entities = graph.arrays, graph.num_entities
        self._barred, self._max_steps = not reenter_topic, max_steps
        marks, is_gold = np.zeros((2, graph.num_entities // 8 + 1), dtype=np.uint8)  # a bit per entity, 0 between calls
        # Entities after each step, in order of meeting; pages never written to take no memory.
        sets = np.empty((max_steps + 1, graph.num_entities + 1), dtype=np.int32)
        self._tables = (marks, is_gold, sets)

    def count(
        self, topics: Sequence[int], paths: Sequence[RelationPath], golds: Collection[int]
    ) -> tuple[list[int], list[int]]:
        """Return how many entities each path reaches, and how many of them are golds."""
        reached, right, _, _ = self._follow([topics], [paths], golds)
        return reached.tolist(), right.tolist()

    def reach(self, topics: Sequence[Sequence[int]], paths: Sequence[Sequence[RelationPath | None]]) -> list[list[I32]]:
        """Return the entities, ascending, that each question's paths reach; None reaches nothing."""
        sizes, _, starts, listed = self._follow(topics, paths, None)
        found = [listed[at : at + size] for at, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
        return [found[start:end] for start, end in pairwise(np.cumsum([0, *map(len, paths)]).tolist())]

    def _follow(
        self,
        topics: Sequence[Sequence[int]],
        paths: Sequence[Sequence[RelationPath | None]],
        golds: Collection[int] | None,
    ) -> tuple[I64, I64, I64, I32]:
        """Return what ``_follow_all`` does; entities are listed where no golds are given. InputError: no entity."""
        starts = [sorted(set(ids)) for ids in topics]
        wrong = [ids for ids in starts if ids and not 0 <= ids[0] <= ids[-1] < self._num_entities]
        if wrong:
            raise InputError(f"topics {wrong[0][:9]}: entity ids go from 0 to {self._num_entities - 1}")
        asked = [path or () for own in paths for path in own]
        topic_ptr, path_ptr = ([0, *accumulate(map(len, groups))] for groups in (starts, paths))
        # Paths of a question that begin alike are neighbours.
        order = [at for own in pairwise(path_ptr) for at in sorted(range(*own), key=asked.__getitem__)]
        lengths = np.array([-1 if path is None else len(path) for own in paths for path in own], dtype=np.int64)
        steps = np.zeros((len(asked), self._max_steps), dtype=np.int32)
        for row, path in enumerate(asked):
            steps[row, : len(path)] = path
        return _follow_all(
            self._csr,
            (np.array(topic_ptr), np.array(list(chain.from_iterable(starts)), dtype=np.int32)),
            (np.array(path_ptr), np.array(order, dtype=np.int64), steps, lengths),
            np.array(sorted(set(golds or ())), dtype=np.int32),
            self._tables,
            (self._barred, golds is None),
        )


def execute_plans(
    graph: KnowledgeGraph,
    topics: Sequence[Sequence[int]],
    plans: Sequence[Sequence[Sequence[str]]],
    *,
    reenter_topic: bool = False,
) -> list[list[I32]]:
    """Return the entities, ascending, that each question's plans reach from its topics (RoG Algorithm 1).

    A plan that is empty or has an unknown relation reaches nothing. Raises InputError where a topic is no entity, or
    not as many questions have topics as plans.
    """
    if len(topics) != len(plans):
        raise InputError(f"{len(topics)} questions have topics and {len(plans)} have plans: give both for each")
    relations = {plan: to_relations(graph, plan) or None for own in plans for plan in map(tuple, own)}
    paths = [[relations[tuple(plan)] for plan in own] for own in plans]
    longest = max((len(path) for path in relations.values() if path), default=1)
    return Follower(graph, max_steps=longest, reenter_topic=reenter_topic).reach(topics, paths)


# ------ Kernels.


@compiled
def find_group(csr: CsrArrays, entity: int, relation: int) -> np.int64:
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


@compiled
def is_among(value: int, ordered: Ints) -> bool:
    """Say whether ``value`` is in ``ordered``, ascending and mostly of one or two."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) >> 1
        if ordered[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low < len(ordered) and ordered[low] == value


@compiled
def _leave(csr: CsrArrays, here: I64, relation: int, barred: I64) -> I64:
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


@compiled
def find_leading(csr: CsrArrays, here: I64, barred: I64, num_steps: int, wanted: int) -> U8:
    """Return [2R]: those of LEADS and LEADS_ON that are wanted, of each relation from any of ``here``.

    ``barred`` may not be entered. A group of edges is left as soon as all that is wanted of its relation is known.
    """
    group_ptr, group_relation, edge_ptr, edge_tail = csr
    found = np.zeros(num_steps, dtype=np.uint8)
    for entity in here:
        for group in range(group_ptr[entity], group_ptr[entity + 1]):
            relation = group_relation[group]
            for edge in range(edge_ptr[group], edge_ptr[group + 1]):
                if found[relation] == wanted:
                    break
                tail = edge_tail[edge]
                if is_among(tail, barred):
                    continue
                found[relation] |= LEADS
                if wanted == LEADS:
                    break
                for back in range(edge_ptr[group_ptr[tail]], edge_ptr[group_ptr[tail + 1]]):
                    if not is_among(edge_tail[back], barred):
                        found[relation] |= LEADS_ON
                        break
    return found


@compiled
def mark(marks: U8, entities: I32, value: bool) -> None:
    """Set or clear the bits of entities."""
    for entity in entities:
        if value:
            marks[entity >> 3] |= 1 << (entity & 7)
        else:
            marks[entity >> 3] &= ~(1 << (entity & 7))


@compiled
def _step(csr: CsrArrays, here: I32, relation: int, marks: U8, reached: I32) -> int:
    """Write the distinct entities one step away that are not marked into ``reached``; return how many."""
    edge_ptr, edge_tail = csr[2], csr[3]
    num = 0
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


@compiled
def _follow_all(
    csr: CsrArrays,
    topics: tuple[I64, I32],
    paths: tuple[I64, I64, I32, I64],
    golds: I32,
    tables: tuple[U8, U8, I32],
    flags: tuple[bool, bool],
) -> tuple[I64, I64, I64, I32]:
    """Return how many entities each path reaches [P], and either how many golds [P] or where [P] they lie in a list."""
    topic_ptr, topic = topics  # [Q+1], distinct topics per question
    # [Q+1]; an order [P] in which those of a question that begin alike are neighbours; [P, L]; [P], -1: reaches nothing
    path_ptr, order, steps, lengths = paths
    marks, is_gold, sets = tables
    barred, keeps = flags  # may no step arrive at a topic? Are entities listed (ascending), and not golds counted?
    num_reached, num_right = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.int64)
    kept, kept_at, num_kept = np.empty((FIRST_CAPACITY, 1), np.int32), np.zeros(len(steps), np.int64), 0
    sizes = np.zeros(len(sets), np.int64)
    mark(is_gold, golds, True)
    for question in range(len(path_ptr) - 1):
        start = topic[topic_ptr[question] : topic_ptr[question + 1]]
        sizes[0], known, before = len(start), 0, 0  # ``known`` steps of the path before have their sets
        for at in range(len(start)):
            sets[0, at] = start[at]
        mark(marks, start, barred)
        for path in order[path_ptr[question] : path_ptr[question + 1]]:
            shared, length = 0, lengths[path]
            while shared < min(known, length) and steps[path, shared] == steps[before, shared]:
                shared += 1
            for at in range(shared, length):
                sizes[at + 1] = _step(csr, sets[at, : sizes[at]], steps[path, at], marks, sets[at + 1])
            known, before = max(length, 0), path
            if length < 0:
                continue
            found = sets[known, : sizes[known]]
            num_reached[path] = len(found)
            if not keeps:
                for entity in found:
                    num_right[path] += (is_gold[entity >> 3] >> (entity & 7)) & 1
                continue
            found.sort()
            kept = with_room(kept, num_kept + len(found))
            for at in range(len(found)):
                kept[num_kept + at, 0] = found[at]
            kept_at[path] = num_kept
            num_kept += len(found)
        mark(marks, start, False)
    mark(is_gold, golds, False)
    return num_reached, num_right, kept_at, kept[:num_kept, 0].copy()


@compiled
def with_room(rows: I32, size: int) -> I32:
    """Return ``rows`` [n, k], or a larger copy where they are fewer than ``size``."""
    if size <= len(rows):
        return rows
    bigger = np.empty((max(size, 2 * len(rows)), rows.shape[1]), np.int32)
    for row in range(len(rows)):  # a slice assigned takes seconds to compile
        for column in range(rows.shape[1]):
            bigger[row, column] = rows[row, column]
    return bigger
