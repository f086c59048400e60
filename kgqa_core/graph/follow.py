"""Following relation paths from topics: to the entities that they reach, and to the reasoning paths that lead there.

``leave`` takes one step, ``follow_path`` and ``follow_layers`` a whole path, and ``reasoning_paths`` lists the ways
along it. ``execute`` follows many paths in one pass. A relation here is one of 0..2R-1: forward, then backward.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, pairwise

import numpy as np
from numba import njit

from kgqa_core.errors import InputError
from kgqa_core.graph.csr import I32, I64, U8, CsrArrays, Ints, shared_sorted, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph, to_relations
from kgqa_core.types import ReasoningPath, RelationPath, Step

FEW = 16  # groups of one entity up to which a search from the first on is quicker
NOTHING: I64 = np.empty(0, dtype=np.int64)
LEADS, LEADS_ON = 1, 2  # to an entity that may be entered; to one that can be left again without entering a barred one


def leave(graph: KnowledgeGraph, entities: Ints, relation: int, barred: Ints = NOTHING) -> I64:
    """Return the distinct entities, ascending, one step of ``relation`` away from any of ``entities``.

    ``barred``: entities, ascending, that the step may not arrive at; few.
    """
    return _leave(graph.arrays, _as_ids(entities), relation, _as_ids(barred))


def _as_ids(entities: Ints) -> I64:
    return np.require(entities, np.int64, ["C", "W"])  # one type, so that kernels are compiled once


def follow_layers(
    graph: KnowledgeGraph,
    start: Sequence[int] | Ints,
    path: RelationPath,
    *,
    topics: Sequence[int] | Ints | None = None,
    reenter_topic: bool = False,
) -> list[I64]:
    """Return the distinct entities, ascending, after 0..len(path) steps from all of ``start`` together.

    With ``reenter_topic=False`` no step may arrive at one of ``topics``; None: these are ``start``.
    """
    layers = [sorted_distinct(np.asarray(start, dtype=np.int64))]
    barred = layers[0] if topics is None else sorted_distinct(np.asarray(topics, dtype=np.int64))
    for relation in path:
        layers.append(leave(graph, layers[-1], relation, NOTHING if reenter_topic else barred))
    return layers


def follow_path(
    graph: KnowledgeGraph,
    start: Sequence[int] | Ints,
    path: RelationPath,
    *,
    topics: Sequence[int] | Ints | None = None,
    reenter_topic: bool = False,
) -> I64:
    """Return the distinct entities, ascending, that ``path`` leads to; see ``follow_layers``."""
    return follow_layers(graph, start, path, topics=topics, reenter_topic=reenter_topic)[-1]


def reasoning_paths(
    graph: KnowledgeGraph,
    topics: Sequence[int],
    path: RelationPath,
    *,
    ends: Sequence[int] | None = None,
    reenter_topic: bool = False,
) -> Iterator[ReasoningPath]:
    """Yield the ways along ``path``: first one to every end, ends ascending, then what other ways there are.

    The first way to an end goes by the smallest entity ids, from the last on. ``ends``: the only ones that are asked
    for; None: all.
    """
    layers = follow_layers(graph, topics, path, reenter_topic=reenter_topic)
    wanted = layers[-1] if ends is None else shared_sorted(layers[-1], sorted_distinct(np.array(ends, dtype=np.int64)))

    def before(here: int, place: int) -> Ints:
        return enter_from(graph, here, path[place], layers[place])

    yield from paths_through(wanted.tolist(), path, before, num_relations=graph.num_relations)


def enter_from(graph: KnowledgeGraph, here: int, relation: int, layer: Ints) -> Ints:
    """Return the entities of ``layer``, ascending, from which a step of ``relation`` leads to ``here``."""
    back = (relation + graph.num_relations) % graph.identity
    return shared_sorted(graph.neighbors(here, back), layer)


def paths_through(
    ends: Iterable[int], path: RelationPath, before: Callable[[int, int], Ints], *, num_relations: int
) -> Iterator[ReasoningPath]:
    """Yield the ways along ``path`` to ``ends``: one to each end in turns, so that a cap starves none.

    Args:
        ends: entities.
        path: relation ids, forward or backward.
        before: from an entity and the place of a step in ``path`` to where that step may have come from.
        num_relations: R.
    """
    walks = [_walk_back(path, before, len(path), end, num_relations) for end in ends]
    while walks:
        going_on = []
        for walk in walks:
            found = next(walk, None)
            if found is not None:
                yield found
                going_on.append(walk)
        walks = going_on


def _walk_back(
    path: RelationPath, before: Callable[[int, int], Ints], place: int, here: int, num_relations: int
) -> Iterator[ReasoningPath]:
    """Yield the ways to ``here`` after ``place`` steps, in the order of ``before``."""
    if place == 0:
        yield ()
        return
    relation = path[place - 1]
    reverse = relation >= num_relations
    for previous in before(here, place - 1).tolist():
        head, tail = (here, previous) if reverse else (previous, here)
        for way in _walk_back(path, before, place - 1, previous, num_relations):
            yield (*way, Step(head, relation % num_relations, tail, reverse=reverse))


def end_of(path: ReasoningPath) -> int:
    """Return the entity that a path, of one step at least, ends at."""
    return path[-1].head if path[-1].reverse else path[-1].tail


# ------ Kernels.


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _is_among(value: int, ordered: I64) -> bool:
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
                if not _is_among(edge_tail[edge], barred):
                    reached[num] = edge_tail[edge]
                    num += 1
    reached = np.sort(reached[:num])
    distinct = 0
    for at in range(num):
        if at == 0 or reached[at] != reached[at - 1]:
            reached[distinct] = reached[at]
            distinct += 1
    return reached[:distinct].copy()


@njit(cache=True, nogil=True)
def find_dead_ends(csr: CsrArrays, barred: I64) -> I64:
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
                if not _is_among(edge_tail[back], barred):
                    leaves = True
                    break
            if not leaves:
                found[num] = near
                num += 1
    return np.sort(found[:num])


@njit(cache=True, nogil=True)
def find_leading(csr: CsrArrays, here: I64, barred: I64, dead_ends: I64, num_steps: int) -> U8:
    """Return [2R]: LEADS and LEADS_ON, of each relation from any of ``here``."""
    group_ptr, group_relation, edge_ptr, edge_tail = csr
    found = np.zeros(num_steps, dtype=np.uint8)
    for entity in here:
        for group in range(group_ptr[entity], group_ptr[entity + 1]):
            relation = group_relation[group]
            for edge in range(edge_ptr[group], edge_ptr[group + 1]):
                if found[relation] == LEADS | LEADS_ON:
                    break
                if not _is_among(edge_tail[edge], barred):
                    found[relation] |= LEADS
                if not _is_among(edge_tail[edge], dead_ends):
                    found[relation] |= LEADS_ON
    return found


# ------ Following many relation paths in one compiled pass, where what begins alike is walked once.


FIRST_CAPACITY = 1 << 12  # entities


def execute_plans(
    graph: KnowledgeGraph,
    topics: Sequence[Sequence[int]],
    plans: Sequence[Sequence[Sequence[str]]],
    *,
    reenter_topic: bool = False,
) -> list[list[I32]]:
    """Return the entities, ascending, that each question's plans reach from its topics (RoG Algorithm 1).

    Args:
        graph: also a graph of rows (``Subgraphs.graph``), for topics that are rows.
        topics: entity ids per question.
        plans: plans by label per question; an empty one, or one of an unknown relation, reaches nothing.
        reenter_topic: may a step arrive at a topic?

    Raises:
        InputError: a topic that is no entity, or unequal numbers of questions.
    """
    if len(topics) != len(plans):
        raise InputError(f"{len(topics)} questions have topics and {len(plans)} have plans: give both for each")
    asked = [tuple(plan) for of_question in plans for plan in of_question]
    relations = {plan: to_relations(graph, plan) or () for plan in set(asked)}
    steps, lengths = _path_arrays([relations[plan] for plan in asked])
    plan_ptr = np.cumsum([0, *map(len, plans)], dtype=np.int64)
    # Plans of a question that begin alike become neighbours.
    order = np.lexsort((*steps.T[::-1], np.repeat(np.arange(len(plans)), np.diff(plan_ptr))))
    tables = (_no_marks(graph), np.empty((steps.shape[1] + 1, graph.num_entities + 1), np.int32))
    sorted_plans = (plan_ptr, steps[order], lengths[order])
    kept_ptr, kept = _follow_all(graph.arrays, _topic_arrays(graph, topics), sorted_plans, tables, not reenter_topic)
    place = np.argsort(order)
    bounds = zip(kept_ptr[place].tolist(), kept_ptr[place + 1].tolist(), strict=True)
    reached = [kept[start:end] for start, end in bounds]
    return [reached[start:end] for start, end in pairwise(plan_ptr)]


def _path_arrays(paths: Sequence[RelationPath], width: int = 1) -> tuple[I32, I64]:
    """Return the steps [P, L] of paths, -1 behind their ends, and their lengths [P]; L is ``width`` at least."""
    lengths = np.array([len(path) for path in paths], dtype=np.int64)
    steps = np.full((len(paths), lengths.max(initial=width)), -1, dtype=np.int32)
    steps[np.arange(steps.shape[1]) < lengths[:, None]] = [step for path in paths for step in path]
    return steps, lengths


def _no_marks(graph: KnowledgeGraph) -> U8:
    return np.zeros(graph.num_entities // 8 + 1, dtype=np.uint8)  # a bit per entity


def _topic_arrays(graph: KnowledgeGraph, topics: Sequence[Sequence[int]]) -> tuple[I64, I32]:
    """Return pointer [Q+1] and the distinct topics of each question, ascending; InputError where one is no entity."""
    num = graph.num_entities
    ids = np.fromiter(chain.from_iterable(topics), dtype=np.int64)
    wrong = ids[(ids < 0) | (ids >= num)]
    if len(wrong):
        raise InputError(f"topics {wrong[:9].tolist()}: entity ids go from 0 to {num - 1}")
    keys = sorted_distinct(np.repeat(np.arange(len(topics)), [len(one) for one in topics]) * num + ids)
    return np.searchsorted(keys, np.arange(len(topics) + 1) * num), (keys % max(1, num)).astype(np.int32)


class Follower:
    """Counts what paths reach in one graph, with tables that are made once: 4 (max_steps + 1) bytes per entity.

    As ``follow_path``: from all topics together, and no step arrives at one unless ``reenter_topic``.
    """

    def __init__(self, graph: KnowledgeGraph, *, max_steps: int, reenter_topic: bool = False) -> None:
        """Keep the arrays of ``graph``."""
        self._csr = graph.arrays
        self._barred = not reenter_topic
        self._max_steps = max_steps
        sets = np.empty(
            (max_steps + 1, graph.num_entities + 1), dtype=np.int32
        )  # pages never written to take no memory
        self._tables = (_no_marks(graph), _no_marks(graph), sets)

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
        reached, right = _count_reached(self._csr, start, steps, lengths, wanted, self._tables, self._barred)
        back = np.argsort(np.array(order, dtype=np.int64))
        return reached[back].tolist(), right[back].tolist()


@njit(cache=True, nogil=True)
def _mark(marks: U8, entities: I32, value: bool) -> None:
    """Set or clear the bits of entities."""
    for entity in entities:
        if value:
            marks[entity >> 3] |= 1 << (entity & 7)
        else:
            marks[entity >> 3] &= ~(1 << (entity & 7))


@njit(cache=True, nogil=True)
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
    _mark(marks, reached[:num], False)
    return num


@njit(cache=True, nogil=True)
def _start(topics: I32, barred: bool, marks: U8, sets: I32) -> int:
    """Make the topics the first set, and mark them where no step may arrive at them."""
    for at in range(len(topics)):
        sets[0, at] = topics[at]
    if barred:
        _mark(marks, topics, True)
    return len(topics)


@njit(cache=True, nogil=True)
def _follow(csr: CsrArrays, steps: I32, lengths: I64, path: int, known: int, marks: U8, sets: I32, sizes: I64) -> int:
    """Fill ``sets`` and ``sizes`` along one path, of whose predecessor ``known`` steps are there; return its length."""
    shared, length = 0, lengths[path]
    while shared < min(known, length) and steps[path, shared] == steps[path - 1, shared]:
        shared += 1
    for at in range(shared, length):
        sizes[at + 1] = _step(csr, sets[at, : sizes[at]], steps[path, at], marks, sets[at + 1])
    return int(length)


@njit(cache=True, nogil=True)
def _count_reached(
    csr: CsrArrays, topics: I32, steps: I32, lengths: I64, golds: I32, tables: tuple[U8, U8, I32], barred: bool
) -> tuple[I64, I64]:
    """Return the entities that each of one question's paths reaches [P], and the golds among them [P].

    Args:
        csr: the graph.
        topics: distinct.
        steps: [P, L] of the paths, in lexicographic order.
        lengths: [P].
        golds: distinct.
        tables: marks, marks of golds, and sets.
        barred: may no step arrive at a topic?
    """
    marks, is_gold, sets = tables
    num_reached, num_right = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.int64)
    sizes = np.zeros(len(sets), np.int64)
    _mark(is_gold, golds, True)
    sizes[0] = _start(topics, barred, marks, sets)
    known = 0  # steps whose sets are those of the path before
    for path in range(len(steps)):
        known = _follow(csr, steps, lengths, path, known, marks, sets, sizes)
        num_reached[path] = sizes[known]
        for at in range(sizes[known]):
            entity = sets[known, at]
            num_right[path] += (is_gold[entity >> 3] >> (entity & 7)) & 1
    _mark(is_gold, golds, False)
    _mark(marks, topics, False)
    return num_reached, num_right


@njit(cache=True, nogil=True)
def _follow_all(
    csr: CsrArrays, topics: tuple[I64, I32], plans: tuple[I64, I32, I64], tables: tuple[U8, I32], barred: bool
) -> tuple[I64, I32]:
    """Return kept_ptr [P+1] and the entities that the plans of all questions reach, ascending inside a plan.

    Args:
        csr: the graph.
        topics: pointer [Q+1] and distinct topics per question.
        plans: pointer [Q+1]; steps [P, L], in lexicographic order per question; lengths [P], 0 is not followed.
        tables: marks and sets.
        barred: may no step arrive at a topic?
    """
    topic_ptr, topic = topics
    plan_ptr, steps, lengths = plans
    marks, sets = tables
    kept_ptr, kept, num_kept = np.zeros(len(steps) + 1, np.int64), np.empty(FIRST_CAPACITY, np.int32), 0
    sizes = np.zeros(len(sets), np.int64)
    for question in range(len(plan_ptr) - 1):
        start = topic[topic_ptr[question] : topic_ptr[question + 1]]
        sizes[0] = _start(start, barred, marks, sets)
        known = 0  # steps whose sets are those of the plan before
        for plan in range(plan_ptr[question], plan_ptr[question + 1]):
            known = _follow(csr, steps, lengths, plan, known, marks, sets, sizes)
            if known:
                found = sets[known, : sizes[known]]
                found.sort()
                if num_kept + len(found) > len(kept):
                    kept = _longer(kept, num_kept + len(found))
                for at in range(len(found)):
                    kept[num_kept + at] = found[at]
                num_kept += len(found)
            kept_ptr[plan + 1] = num_kept
        _mark(marks, start, False)
    return kept_ptr, kept[:num_kept].copy()


@njit(cache=True, nogil=True)
def _longer(values: I32, size: int) -> I32:
    longer = np.empty(max(size, 2 * len(values)), np.int32)
    for at in range(len(values)):  # a slice assigned takes seconds to compile
        longer[at] = values[at]
    return longer
