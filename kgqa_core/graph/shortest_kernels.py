"""The compiled passes of ``shortest_paths``: search, trace back, spell.

Bytes: an edge looked at costs the 4 of its tail, read in order, and one of a table of hops, N bytes that stay in cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from kgqa_core.graph.csr import Ints

I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Csr = tuple[Ints, Ints, Ints, Ints]
Edges = tuple[I32, I32, I32]  # places of the entities left and entered, and the relation walked

EMPTY, BARRED = -1, -2
FIRST_CAPACITY = 1 << 8  # of what grows


@njit(cache=True, nogil=True)
def find_paths(
    csr: Csr, source: int, barred: I64, golds: I64, limits: tuple[int, int], tables: tuple[I8, Bools, I32, I32, I64]
) -> tuple[I32, bool]:
    """Return the shortest relation paths from one entity to each of several.

    Args:
        csr: the graph.
        source: where to start.
        barred: entities that no step may arrive at.
        golds: entities to reach, none of them barred.
        limits: longest path, and how many prefixes of one length are kept.
        tables: of [N] hops (EMPTY), [N] golds (False), [N] places (EMPTY), [N+1] scratch, [2R] relations (EMPTY);
            clean again when this returns.

    Returns:
        Paths [P, max_hops], EMPTY behind their ends, and whether some were cut.
    """
    hop, is_gold, place, order, first = tables
    max_hops, max_paths = limits
    for entity in barred:
        hop[entity] = BARRED
    for entity in golds:
        is_gold[entity] = True
    num_visited = _search(csr, source, golds, max_hops, hop, is_gold, order)
    nodes, edges, level_ptr = _trace(csr, source, golds, (max_hops, len(first) // 2), hop, place)
    ends = np.zeros(len(nodes) + 1, np.bool_)
    for at in range(len(nodes)):
        ends[at] = is_gold[nodes[at]]
        place[nodes[at]] = EMPTY
    for at in range(num_visited):
        hop[order[at]] = EMPTY
    for entity in barred:
        hop[entity] = EMPTY
    for entity in golds:
        is_gold[entity] = False
    return _spell(edges, level_ptr, ends, first, max_paths)


@njit(cache=True, nogil=True)
def degree(csr: Csr, entity: int) -> np.int64:
    """Return the number of edges of an entity, in both directions."""
    return np.int64(csr[2][csr[0][entity + 1]] - csr[2][csr[0][entity]])


@njit(cache=True, nogil=True)
def _search(csr: Csr, source: int, golds: I64, max_hops: int, hop: I8, is_gold: Bools, order: I32) -> int:
    """Set ``hop`` of all golds in reach, and of all entities of the hops before the last gold's.

    The source's own hop is that of the shortest walk back to it, where it is not barred. Returns how many entities of
    ``order`` were visited, the source among them.
    """
    group_ptr, _, edge_ptr, edge_tail = csr
    order[0] = source
    begin, num, waiting = 0, 1, len(golds)
    for step in range(1, max_hops + 1):
        end = num
        ahead = behind = np.int64(0)
        for at in range(begin, end):
            ahead += degree(csr, order[at])
        for gold in golds:
            if hop[gold] == EMPTY:
                behind += degree(csr, gold)
        if behind < ahead:
            num = _look_back(csr, source, golds, step, hop, order, num)
            waiting -= num - end
            if waiting == 0 or step == max_hops:
                break
        for at in range(begin, end):
            entity = order[at]
            for edge in range(edge_ptr[group_ptr[entity]], edge_ptr[group_ptr[entity + 1]]):
                tail = edge_tail[edge]
                if hop[tail] == EMPTY:
                    hop[tail] = step
                    order[num] = tail
                    num += 1
                    waiting -= is_gold[tail]
        if waiting == 0 or num == end:
            break
        begin = end
    return num


@njit(cache=True, nogil=True)
def _look_back(csr: Csr, source: int, golds: I64, step: int, hop: I8, order: I32, num: int) -> int:
    """Set ``hop`` of the golds one step from the hop before, and append them to ``order``, from ``num`` on."""
    group_ptr, _, edge_ptr, edge_tail = csr
    for gold in golds:
        if hop[gold] != EMPTY:
            continue
        for edge in range(edge_ptr[group_ptr[gold]], edge_ptr[group_ptr[gold + 1]]):
            tail = edge_tail[edge]
            if (tail == source) if step == 1 else (hop[tail] == step - 1):
                hop[gold] = step
                order[num] = gold
                num += 1
                break
    return num


@njit(cache=True, nogil=True)
def _trace(csr: Csr, source: int, golds: I64, sizes: tuple[int, int], hop: I8, place: I32) -> tuple[I32, Edges, I64]:
    """Walk back from the golds over shortest walks.

    Returns:
        The entities on them, without the source; the edges, by places in that list, where the source is behind its end;
        and where the edges lie that enter hop h: from ``level_ptr[h]`` up to ``level_ptr[h - 1]``.
    """
    group_ptr, group_relation, edge_ptr, edge_tail = csr
    max_hops, num_relations = sizes
    nodes = np.empty(FIRST_CAPACITY, np.int32)
    left, entered, walked = nodes.copy(), nodes.copy(), nodes.copy()
    level_ptr = np.zeros(max_hops + 1, np.int64)
    begin = num = num_edges = 0
    for level in range(max_hops, 0, -1):
        level_ptr[level] = num_edges
        for gold in golds:
            if hop[gold] == level and place[gold] == EMPTY:
                nodes = _with_room(nodes, num)
                nodes[num], place[gold] = gold, num
                num += 1
        if level == 1:
            break
        end = num
        for at in range(begin, end):
            entity = nodes[at]
            for group in range(group_ptr[entity], group_ptr[entity + 1]):
                for edge in range(edge_ptr[group], edge_ptr[group + 1]):
                    tail = edge_tail[edge]
                    if hop[tail] != level - 1:
                        continue
                    if place[tail] == EMPTY:
                        nodes = _with_room(nodes, num)
                        nodes[num], place[tail] = tail, num
                        num += 1
                    left, entered = _with_room(left, num_edges), _with_room(entered, num_edges)
                    walked = _with_room(walked, num_edges)
                    left[num_edges], entered[num_edges] = place[tail], at
                    walked[num_edges] = _reverse(group_relation[group], num_relations)
                    num_edges += 1
        begin = end
    from_source, relations = _first_edges(csr, source, nodes[begin:num], begin, num_relations, hop, place)
    level_ptr[0] = num_edges + len(from_source)
    left = np.append(left[:num_edges], np.full(len(from_source), num, np.int32))
    entered = np.append(entered[:num_edges], from_source)
    return nodes[:num], (left, entered, np.append(walked[:num_edges], relations)), level_ptr


@njit(cache=True, nogil=True)
def _first_edges(
    csr: Csr, source: int, nodes: I32, begin: int, num_relations: int, hop: I8, place: I32
) -> tuple[I32, I32]:
    """Return places and relations of the edges from the source to ``nodes``, from the side that has fewer edges.

    Args:
        csr: the graph.
        source: where to start.
        nodes: those of hop 1; the first has place ``begin``.
        begin: see ``nodes``.
        num_relations: R.
        hop: of all entities.
        place: of all entities.
    """
    group_ptr, group_relation, edge_ptr, edge_tail = csr
    behind = np.int64(0)
    for node in nodes:
        behind += degree(csr, node)
    forward = degree(csr, source) <= behind
    entered, walked = np.empty(FIRST_CAPACITY, np.int32), np.empty(FIRST_CAPACITY, np.int32)
    num = 0
    for at in range(1 if forward else len(nodes)):
        entity = source if forward else nodes[at]
        for group in range(group_ptr[entity], group_ptr[entity + 1]):
            relation = group_relation[group]
            for edge in range(edge_ptr[group], edge_ptr[group + 1]):
                tail = edge_tail[edge]
                if (hop[tail] == 1 and place[tail] != EMPTY) if forward else tail == source:
                    entered, walked = _with_room(entered, num), _with_room(walked, num)
                    entered[num] = place[tail] if forward else begin + at
                    walked[num] = relation if forward else _reverse(relation, num_relations)
                    num += 1
    return entered[:num], walked[:num]


@njit(cache=True, nogil=True)
def _reverse(relation: int, num_relations: int) -> int:
    return relation - num_relations if relation >= num_relations else relation + num_relations


@njit(cache=True, nogil=True)
def _with_room(array: Any, num: int) -> Any:
    """Return ``array``, or a copy of twice its size where ``num`` is its size."""
    if num < len(array):
        return array
    bigger = np.zeros(2 * len(array), array.dtype)
    bigger[: len(array)] = array
    return bigger


@njit(cache=True, nogil=True)
def _spell(edges: Edges, level_ptr: I64, ends: Bools, first: I64, max_paths: int) -> tuple[I32, bool]:
    """List the relation paths over the edges, in order of length and relation ids.

    Args:
        edges: of shortest walks, see ``_trace``.
        level_ptr: see ``_trace``.
        ends: [nodes + 1] is a node a gold? The last stands for the source.
        first: [2R] scratch, EMPTY before and after.
        max_paths: prefixes of one length that are kept.
    """
    left, entered, walked = edges
    max_hops, num_nodes = len(level_ptr) - 1, len(ends) - 1
    parent = np.full(FIRST_CAPACITY, EMPTY, np.int32)
    relation, is_path = parent.copy(), np.zeros(FIRST_CAPACITY, np.bool_)
    here, here_ptr = np.full(1, num_nodes, np.int32), np.array([0, 1], np.int64)  # nodes of each prefix of a length
    stamp, following = np.full(num_nodes + 1, EMPTY, np.int64), np.empty(len(left), np.int64)
    touched = np.empty(len(first), np.int64)
    begin, num, capped = 0, 1, False
    for level in range(1, max_hops + 1):
        out, out_ptr = _by_node(left, level_ptr[level], level_ptr[level - 1], num_nodes + 1)
        end = num
        reached, num_reached = np.empty(FIRST_CAPACITY, np.int32), 0
        reached_ptr = np.zeros(min(max_paths, (end - begin) * len(first)) + 1, np.int64)
        for prefix in range(begin, end):
            num_touched = 0
            for node in here[here_ptr[prefix - begin] : here_ptr[prefix - begin + 1]]:
                for edge in out[out_ptr[node] : out_ptr[node + 1]]:
                    if first[walked[edge]] == EMPTY:
                        touched[num_touched] = walked[edge]
                        num_touched += 1
                    following[edge] = first[walked[edge]]
                    first[walked[edge]] = edge
            for step in np.sort(touched[:num_touched]):
                edge, first[step] = first[step], EMPTY
                if num - end == max_paths:
                    capped = True
                    continue
                parent, relation, is_path = _with_room(parent, num), _with_room(relation, num), _with_room(is_path, num)
                parent[num], relation[num], is_path[num] = prefix, step, False
                while edge != EMPTY:
                    node = entered[edge]
                    if stamp[node] != num:
                        stamp[node] = num
                        reached = _with_room(reached, num_reached)
                        reached[num_reached] = node
                        num_reached += 1
                        is_path[num] |= ends[node]
                    edge = following[edge]
                num += 1
                reached_ptr[num - end] = num_reached
        here, here_ptr, begin = reached, reached_ptr, end
    return _read_off(parent[:num], relation[:num], is_path[:num], max_hops), capped


@njit(cache=True, nogil=True)
def _by_node(left: I32, begin: int, end: int, num_nodes: int) -> tuple[I64, I64]:
    """Return the edges begin..end-1 in order of the node that they leave, and where each node's begin."""
    starts = np.zeros(num_nodes + 1, np.int64)
    for edge in range(begin, end):
        starts[left[edge] + 1] += 1
    starts = np.cumsum(starts)
    order, fill = np.empty(end - begin, np.int64), starts.copy()
    for edge in range(begin, end):
        order[fill[left[edge]]] = edge
        fill[left[edge]] += 1
    return order, starts


@njit(cache=True, nogil=True)
def _read_off(parent: I32, relation: I32, is_path: Bools, max_hops: int) -> I32:
    """Return the paths [P, max_hops] among the prefixes, EMPTY behind their ends."""
    paths = np.full((is_path.sum(), max_hops), EMPTY, np.int32)
    row = 0
    for prefix in range(len(parent)):
        if not is_path[prefix]:
            continue
        length, at = 0, prefix
        while at > 0:
            length, at = length + 1, parent[at]
        at = prefix
        for place in range(length - 1, -1, -1):
            paths[row, place], at = relation[at], parent[at]
        row += 1
    return paths
