"""Listing the walks along one plan, compiled. They are counted forward and listed backward, so none is a dead end."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kgqa_core.graph.follow import I32, I64, Csr, find_group

Floats = npt.NDArray[np.float64]


@njit(cache=True, nogil=True)
def count_walks(csr: Csr, topics: I32, steps: I64, rules: tuple[bool, int], ways: Floats, sets: I32) -> I64:
    """Count, per step, the walks from the topics to every entity: ``ways`` [L+1, N], 0 where there is none.

    Args:
        csr: the graph.
        topics: distinct.
        steps: [L] step codes, see ``follow_kernels``.
        rules: may no step arrive at a topic? R where steps are walked both ways, else 0.
        ways: zeros; to be given to ``forget_walks`` afterwards.
        sets: [L+1, N] filled with the entities of each step, ascending.

    Returns:
        [L+1] how many entities each step reaches.
    """
    edge_ptr, edge_tail = csr[2], csr[3]
    bars, two_ways = rules
    sizes = np.zeros(len(steps) + 1, np.int64)
    for topic in topics:
        ways[0, topic] = 1
        sets[0, sizes[0]] = topic
        sizes[0] += 1
    for at in range(len(steps)):
        num = 0
        for turn in range(2 if two_ways else 1):
            relation = steps[at] + turn * two_ways
            for place in range(sizes[at]):
                entity = sets[at, place]
                group = find_group(csr, entity, relation)
                if group < 0:
                    continue
                for edge in range(edge_ptr[group], edge_ptr[group + 1]):
                    tail = edge_tail[edge]
                    if (bars and ways[0, tail] > 0) or (turn and tail == entity):  # a loop is one triple, not two
                        continue
                    if ways[at + 1, tail] == 0:
                        sets[at + 1, num] = tail
                        num += 1
                    ways[at + 1, tail] += ways[at, entity]
        sets[at + 1, :num].sort()
        sizes[at + 1] = num
    return sizes


@njit(cache=True, nogil=True)
def list_walks(csr: Csr, steps: I64, rules: tuple[bool, int], ways: Floats, ends: I32, wanted: I64) -> tuple[I32, I32]:
    """List walks to each end, as many as are wanted; predecessors in order of id, from the last one on.

    Args:
        csr: the graph.
        steps: [L].
        rules: are steps walked both ways? R.
        ways: what ``count_walks`` filled.
        ends: entities of the last step.
        wanted: [ends] how many walks to list, at most as many as there are.

    Returns:
        Entities [walks, L+1] and the relation ids walked [walks, L].
    """
    edge_tail, length = csr[3], len(steps)
    both, num_relations = rules
    entities = np.empty((wanted.sum(), length + 1), np.int32)
    walked = np.empty((wanted.sum(), length), np.int32)
    cursor = np.zeros((length, 3), np.int64)  # per step: next edge, end of edges, the turn: 1 the other way
    walk, relations = np.zeros(length + 1, np.int32), np.zeros(length, np.int32)
    row = 0
    for place in range(len(ends)):
        stop = row + wanted[place]
        walk[length], at = ends[place], length
        _open(csr, walk[at], steps[at - 1], num_relations, cursor[at - 1])
        while row < stop and at <= length:
            state = cursor[at - 1]
            if state[0] == state[1]:
                if both and not state[2]:
                    _open(csr, walk[at], steps[at - 1] + num_relations, num_relations, state)
                else:
                    at += 1
                continue
            before = edge_tail[state[0]]
            state[0] += 1
            if ways[at - 1, before] == 0 or (both and state[2] and before == walk[at]):
                continue
            walk[at - 1] = before
            relations[at - 1] = steps[at - 1] + (num_relations if both and state[2] else 0)
            if at > 1:
                at -= 1
                _open(csr, walk[at], steps[at - 1], num_relations, cursor[at - 1])
                continue
            for step in range(length):
                entities[row, step], walked[row, step] = walk[step], relations[step]
            entities[row, length] = walk[length]
            row += 1
    return entities[:row], walked[:row]


@njit(cache=True, nogil=True)
def _open(csr: Csr, entity: int, relation: int, num_relations: int, state: I64) -> None:
    """Point a cursor at the edges by which steps of ``relation`` arrive at ``entity``."""
    backward = relation >= num_relations
    group = find_group(csr, entity, relation - num_relations if backward else relation + num_relations)
    state[0] = csr[2][group] if group >= 0 else 0
    state[1] = csr[2][group + 1] if group >= 0 else 0
    state[2] = backward
