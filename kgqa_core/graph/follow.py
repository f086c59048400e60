"""Following relation paths from topics: to the entities that they reach, and to the reasoning paths that lead there.

``leave`` takes one step, ``follow_path`` and ``follow_layers`` a whole path, and ``reasoning_paths`` lists the ways
along it. ``execute`` follows many paths in one pass. A relation here is one of 0..2R-1: forward, then backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numba import njit

from kgqa_core.graph.csr import I64, U8, CsrArrays, Ints, shared_sorted, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph
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
