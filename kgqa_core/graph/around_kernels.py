"""Which relations lead on from a set of entities, compiled; some entities may not be entered."""

from __future__ import annotations

import numpy as np
from numba import njit

from kgqa_core.graph.follow_kernels import I64, U8, Csr, find_group

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
