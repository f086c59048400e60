"""All shortest relation paths from a question's topics to its golds (RoG's Z*, §4.2), as in a multigraph.

Compiled passes search, trace back and spell. An edge looked at costs the 4 bytes of its tail, read in order, and one of
a table of hops, N bytes that stay in cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from kgqa_core.graph.csr import I8, I32, I64, Bools, CsrArrays, compiled
from kgqa_core.graph.follow import is_among, with_room
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import RelationPath

EMPTY, BARRED = -1, -2
FIRST_CAPACITY = 1 << 8  # of what grows


@dataclass(frozen=True, slots=True)
class FoundPaths:
    """The shortest relation paths of one question."""

    paths: tuple[RelationPath, ...]  # distinct; shorter ones first, then by relation ids
    capped: bool  # were there more than may be kept?


class PathFinder:
    """Finds shortest relation paths in one graph, with tables that are made once: 10 bytes per entity."""

    def __init__(
        self, graph: KnowledgeGraph, *, max_hops: int, reenter_topic: bool = False, max_paths: int = 1000
    ) -> None:
        """Keep the arrays of ``graph``, or of a graph of rows; ``max_hops`` is at most 100: hops are bytes.

        ``reenter_topic``: may a step arrive at a topic? Then a gold that is the topic has the shortest closed walks.
        ``max_paths`` are kept per question, those of the smallest relation ids.
        """
        self._csr = graph.arrays
        self.reenter_topic = reenter_topic
        self._limits = (max_hops, max_paths)
        self._tables = (
            np.full(graph.num_entities, EMPTY, dtype=np.int8),
            np.zeros(graph.num_entities, dtype=np.bool_),
            np.full(graph.num_entities, EMPTY, dtype=np.int32),
            np.empty(graph.num_entities + 1, dtype=np.int32),
            np.full(graph.identity, EMPTY, dtype=np.int64),
        )

    def find(self, topics: Sequence[int], golds: Collection[int]) -> FoundPaths:
        """Return the shortest paths of every pair of a topic and a gold, together; topics are no golds where barred."""
        barred = set() if self.reenter_topic else set(topics)
        wanted = np.array(sorted(set(golds) - barred), dtype=np.int64)
        bars = np.array(sorted(barred), dtype=np.int64)
        found: set[RelationPath] = set()
        capped = False
        for topic in sorted(set(topics)) if len(wanted) else ():
            rows, cut = _find_paths(self._csr, topic, bars, wanted, self._limits, self._tables)
            found.update(tuple(step for step in row if step != EMPTY) for row in rows.tolist())
            capped |= cut
        paths = sorted(found, key=lambda path: (len(path), path))
        most = self._limits[1]
        return FoundPaths(tuple(paths[:most]), capped or len(paths) > most)


def hops_to_many(
    graph: KnowledgeGraph,
    searches: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    max_hops: int,
    reenter_topic: bool = False,
) -> list[I64]:
    """Return the shortest hop counts (1..max_hops, any relations, both directions) from topics to answers, -1 beyond.

    ``searches``: topics and answers; hops of an answer are those from the nearest topic. A path has at least one step:
    an answer that is itself a topic is reached only with ``reenter_topic``. Those with the same topics share one.
    """
    num = graph.num_entities
    tables = (np.full(num, EMPTY, np.int8), np.zeros(num, np.bool_), np.empty(2 * num + 1, np.int32))
    golds: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for topics, answers in searches:
        golds[tuple(topics)].update(answers)
    hops: dict[tuple[int, ...], dict[int, int]] = {}
    for starts, reached in golds.items():
        wanted = sorted(reached if reenter_topic else reached.difference(starts))
        sources, ends = (np.array(ids, dtype=np.int64) for ids in (sorted(set(starts)), wanted))
        found = _count_hops(graph.arrays, sources, not reenter_topic, ends, max_hops, tables)
        hops[starts] = dict(zip(wanted, found.tolist(), strict=True))
    return [np.array([hops[tuple(topics)].get(one, -1) for one in answers], np.int64) for topics, answers in searches]


# ------ Kernels.


@compiled
def _find_paths(
    csr: CsrArrays,
    source: int,
    barred: I64,
    golds: I64,
    limits: tuple[int, int],
    tables: tuple[I8, Bools, I32, I32, I64],
) -> tuple[I32, bool]:
    """Return the shortest paths to ``golds``, none of them barred: [P, max_hops], EMPTY behind ends; were some cut?"""
    hop, is_gold, place, order, first = tables  # clean again when this returns
    max_hops, max_paths = limits  # longest path, and how many prefixes of one length are kept
    for entity in barred:
        hop[entity] = BARRED
    for entity in golds:
        is_gold[entity] = True
    order[0] = source
    num_visited = _search(csr, order, 1, golds, max_hops, hop, is_gold)
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


@compiled
def _degree(csr: CsrArrays, entity: int) -> int:
    """Return the number of edges of an entity, in both directions."""
    return int(csr[2][csr[0][entity + 1]] - csr[2][csr[0][entity]])


@compiled
def _search(csr: CsrArrays, order: I32, num: int, golds: I64, max_hops: int, hop: I8, is_gold: Bools) -> int:
    """Set ``hop`` of all golds in reach, and of all entities of the hops before the last gold's.

    A search starts at the first ``num`` entities of ``order``, ascending. A source's own hop is that of the shortest
    walk back to one, where it is not barred. Returns how many of ``order`` were visited, the sources among them.
    """
    group_ptr, _, edge_ptr, edge_tail = csr
    begin, num_sources, waiting = 0, num, 0
    for gold in golds:
        waiting += _degree(csr, gold) > 0
    for step in range(1, max_hops + 1):
        if waiting == 0 or num == begin:
            break
        end = num
        ahead = behind = 0
        for at in range(begin, end):
            ahead += _degree(csr, order[at])
        for gold in golds:
            if hop[gold] == EMPTY:
                behind += _degree(csr, gold)
        if behind < ahead:
            # Look back: the golds one step from the hop before.
            for gold in golds:
                if hop[gold] != EMPTY:
                    continue
                for edge in range(edge_ptr[group_ptr[gold]], edge_ptr[group_ptr[gold + 1]]):
                    tail = edge_tail[edge]
                    if is_among(tail, order[:num_sources]) if step == 1 else hop[tail] == step - 1:
                        hop[gold] = step
                        order[num] = gold
                        num += 1
                        waiting -= 1
                        break
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
        begin = end
    return num


@compiled
def _count_hops(
    csr: CsrArrays, sources: I64, barred: bool, golds: I64, max_hops: int, tables: tuple[I8, Bools, I32]
) -> I64:
    """Return the hops of distinct golds, none of them barred, from any of the sources; -1 out of reach."""
    hop, is_gold, order = tables
    for at in range(len(sources)):
        order[at] = sources[at]
        if barred:
            hop[sources[at]] = BARRED
    for gold in golds:
        is_gold[gold] = True
    num_visited = _search(csr, order, len(sources), golds, max_hops, hop, is_gold)
    found = np.empty(len(golds), np.int64)
    for at in range(len(golds)):
        found[at] = hop[golds[at]]
        is_gold[golds[at]] = False
    for at in range(num_visited):
        hop[order[at]] = EMPTY
    return found


@compiled
def _trace(
    csr: CsrArrays, source: int, golds: I64, sizes: tuple[int, int], hop: I8, place: I32
) -> tuple[I32, I32, I64]:
    """Walk back from the golds over shortest walks: return entities, edges and ``level_ptr``.

    The entities are without the source. Edges [E, 3] are places of the entities left and entered in that list, the
    source behind its end, and the relation; those that enter hop h lie from ``level_ptr[h]`` to ``level_ptr[h - 1]``.
    """
    group_ptr, group_relation, edge_ptr, edge_tail = csr
    max_hops, num_relations = sizes
    nodes = np.empty((FIRST_CAPACITY, 1), np.int32)
    edges = np.empty((FIRST_CAPACITY, 3), np.int32)
    level_ptr = np.zeros(max_hops + 1, np.int64)
    begin = num = num_edges = 0
    for level in range(max_hops, 0, -1):
        level_ptr[level] = num_edges
        nodes = with_room(nodes, num + len(golds))
        for gold in golds:
            if hop[gold] == level and place[gold] == EMPTY:
                nodes[num, 0], place[gold] = gold, num
                num += 1
        if level == 1:
            break
        end = num
        for at in range(begin, end):
            entity = nodes[at, 0]
            nodes = with_room(nodes, num + _degree(csr, entity))
            edges = with_room(edges, num_edges + _degree(csr, entity))
            for group in range(group_ptr[entity], group_ptr[entity + 1]):
                relation = (group_relation[group] + num_relations) % (2 * num_relations)
                for edge in range(edge_ptr[group], edge_ptr[group + 1]):
                    tail = edge_tail[edge]
                    if hop[tail] != level - 1:
                        continue
                    if place[tail] == EMPTY:
                        nodes[num, 0], place[tail] = tail, num
                        num += 1
                    edges[num_edges, 0], edges[num_edges, 1], edges[num_edges, 2] = place[tail], at, relation
                    num_edges += 1
        begin = end
    edges = with_room(edges, num_edges + _degree(csr, source))
    for group in range(group_ptr[source], group_ptr[source + 1]):
        for edge in range(edge_ptr[group], edge_ptr[group + 1]):
            tail = edge_tail[edge]
            if hop[tail] == 1 and place[tail] != EMPTY:
                edges[num_edges, 0], edges[num_edges, 1], edges[num_edges, 2] = num, place[tail], group_relation[group]
                num_edges += 1
    level_ptr[0] = num_edges
    return nodes[:num, 0], edges, level_ptr


@compiled
def _spell(edges: I32, level_ptr: I64, ends: Bools, first: I64, max_paths: int) -> tuple[I32, bool]:
    """List the relation paths over the edges of ``_trace``, in order of length and relation ids.

    ``ends`` [nodes + 1]: is a node a gold? The last is the source. ``first`` [2R]: scratch, EMPTY before and after.
    """
    max_hops, num_nodes = len(level_ptr) - 1, len(ends) - 1
    prefixes = np.zeros((FIRST_CAPACITY, 3), np.int32)  # the prefix before, the relation, does it end at a gold?
    here, here_ptr = np.full((1, 1), num_nodes, np.int32), np.array([0, 1], np.int64)  # nodes of each of one length
    stamp, following = np.full(num_nodes + 1, EMPTY, np.int64), np.empty(level_ptr[0], np.int64)
    touched = np.empty(len(first), np.int64)
    begin, num, capped = 0, 1, False
    for level in range(1, max_hops + 1):
        out, out_ptr = _by_node(edges[level_ptr[level] : level_ptr[level - 1], 0], level_ptr[level], num_nodes + 1)
        end = num
        reached, num_reached = np.empty((FIRST_CAPACITY, 1), np.int32), 0
        reached_ptr = np.zeros(min(max_paths, (end - begin) * len(first)) + 1, np.int64)
        for prefix in range(begin, end):
            num_touched, num_walked = 0, 0
            for at in range(here_ptr[prefix - begin], here_ptr[prefix - begin + 1]):
                node = here[at, 0]
                num_walked += out_ptr[node + 1] - out_ptr[node]
                for edge in out[out_ptr[node] : out_ptr[node + 1]]:
                    relation = edges[edge, 2]
                    if first[relation] == EMPTY:
                        touched[num_touched] = relation
                        num_touched += 1
                    following[edge] = first[relation]
                    first[relation] = edge
            touched[:num_touched].sort()
            prefixes = with_room(prefixes, num + num_touched)
            reached = with_room(reached, num_reached + num_walked)
            for relation in touched[:num_touched]:
                edge, first[relation] = first[relation], EMPTY
                if num - end == max_paths:
                    capped = True
                    continue
                prefixes[num, 0], prefixes[num, 1], prefixes[num, 2] = prefix, relation, 0
                while edge != EMPTY:
                    node = edges[edge, 1]
                    if stamp[node] != num:
                        stamp[node] = num
                        reached[num_reached, 0] = node
                        num_reached += 1
                        prefixes[num, 2] |= ends[node]
                    edge = following[edge]
                num += 1
                reached_ptr[num - end] = num_reached
        here, here_ptr, begin = reached, reached_ptr, end
    return _read_off(prefixes[:num], max_hops), capped


@compiled
def _by_node(left: I32, begin: int, num_nodes: int) -> tuple[I64, I64]:
    """Return the edges, numbered from ``begin`` on, in order of the node ``left`` [E], and where each node's begin."""
    starts = np.zeros(num_nodes + 1, np.int64)
    for node in left:
        starts[node + 1] += 1
    for node in range(num_nodes):
        starts[node + 1] += starts[node]
    order, fill = np.empty(len(left), np.int64), starts.copy()
    for edge in range(len(left)):
        order[fill[left[edge]]] = begin + edge
        fill[left[edge]] += 1
    return order, starts


@compiled
def _read_off(prefixes: I32, max_hops: int) -> I32:
    """Return the paths [P, max_hops] among the prefixes, EMPTY behind their ends."""
    paths = np.full((prefixes[:, 2].sum(), max_hops), EMPTY, np.int32)
    row = 0
    for prefix in range(len(prefixes)):
        if not prefixes[prefix, 2]:
            continue
        length, at = 0, prefix
        while at > 0:
            length, at = length + 1, prefixes[at, 0]
        at = prefix
        for place in range(length - 1, -1, -1):
            paths[row, place], at = prefixes[at, 1], prefixes[at, 0]
        row += 1
    return paths
