"""Shortest hop counts from topics to answers, 64 searches at a time: bit i of an entity's word says that search i is
there.

Only the edges of entities that some search has reached are read. The last step is taken from the answers' side, one
look at their neighbours, so that the widest frontier is never walked. Searches that are over take no part in longer
ones: those still open are packed anew, and start again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from kgqa_core.graph.csr import I64, U64, Bools, Ints
from kgqa_core.graph.kg import KnowledgeGraph

LANES = 64  # searches that share one sweep: one bit of a uint64 each
SHORT = 2  # steps of the first search; for each further one the open searches start again

Search = tuple[Sequence[int], Sequence[int]]  # topics, answers


def hops_to_answers(
    graph: KnowledgeGraph,
    topics: Sequence[int],
    answers: Sequence[int],
    *,
    max_hops: int,
    reenter_topic: bool = False,
) -> I64:
    """Return the shortest hop count (1..max_hops, any relations, both directions) to each answer, -1 unreachable.

    A path has at least one step: an answer that is itself a topic is reached only with ``reenter_topic``.
    """
    return hops_to_many(graph, [(topics, answers)], max_hops=max_hops, reenter_topic=reenter_topic)[0]


def hops_to_many(
    graph: KnowledgeGraph, searches: Sequence[Search], *, max_hops: int, reenter_topic: bool = False
) -> list[I64]:
    """``hops_to_answers`` for many (topics, answers) at once."""
    sweep = _Sweep(graph, reenter_topic)
    found = _in_batches(sweep, searches, min(max_hops, SHORT))
    for limit in range(SHORT + 1, max_hops + 1):
        unfinished = [number for number, search in enumerate(searches) if sweep.is_open(search, found[number])]
        again = _in_batches(sweep, [searches[number] for number in unfinished], limit)
        for number, hops in zip(unfinished, again, strict=True):
            found[number] = hops
    return found


def _in_batches(sweep: _Sweep, searches: Sequence[Search], max_hops: int) -> list[I64]:
    found: list[I64] = []
    for first in range(0, len(searches), LANES):
        found += sweep.run(searches[first : first + LANES], max_hops)
    return found


class _Sweep:
    """Memory for sweeps over one graph: 8 bytes per entity for each of four arrays, 4 for a fifth; kept clean."""

    def __init__(self, graph: KnowledgeGraph, reenter_topic: bool) -> None:
        self._csr = (graph.group_ptr, graph.edge_ptr, graph.edge_tail)
        self._reenter = reenter_topic
        self._topics, self._seen, self._here, self._reached = np.zeros((4, graph.num_entities), dtype=np.uint64)
        self._touched = np.empty(graph.num_entities, dtype=np.int32)

    def is_open(self, search: Search, hops: I64) -> bool:
        """May further steps reach what these hop counts lack?"""
        topics, answers = search
        missing = np.asarray(answers, dtype=np.int64)[hops < 0]
        missing = missing if self._reenter else np.setdiff1d(missing, topics)
        return bool(len(topics)) and bool(self._has_edges(missing).any())

    def _has_edges(self, entities: Ints) -> Bools:
        return np.greater(self._csr[0][entities + 1], self._csr[0][entities])

    def run(self, searches: Sequence[Search], max_hops: int) -> list[I64]:
        """Return the hop counts of up to 64 searches."""
        lanes = np.repeat(np.arange(len(searches)), [len(topics) for topics, _ in searches]).astype(np.uint64)
        starts = np.array([topic for topics, _ in searches for topic in topics], dtype=np.int64)
        ends = np.array([answer for _, answers in searches for answer in answers], dtype=np.int64)
        sizes = [len(answers) for _, answers in searches]
        bits = np.uint64(1) << np.repeat(np.arange(len(searches)), sizes).astype(np.uint64)
        np.bitwise_or.at(self._topics, starts, np.uint64(1) << lanes)
        frontier: Ints = np.unique(starts)
        self._here[frontier] = self._topics[frontier]
        may_be_reached = self._has_edges(ends) & (self._reenter | (self._topics[ends] & bits == 0))
        hops = np.full(len(ends), -1, dtype=np.int64)
        visited = [frontier]
        for hop in range(1, max_hops + 1):
            looked = np.flatnonzero((hops < 0) & may_be_reached)
            if not len(looked):
                break
            hops[looked[_near(*self._csr, ends[looked], bits[looked], self._here)]] = hop
            if hop < max_hops:
                frontier = self._step(frontier)
                visited.append(frontier)
        for entities in visited:
            for words in (self._topics, self._seen, self._here):
                words[entities] = 0
        return np.split(hops, np.cumsum(sizes)[:-1]) if sizes else []

    def _step(self, frontier: Ints) -> Ints:
        count = _spread(*self._csr, frontier, self._here, self._reached, self._touched)
        touched = self._touched[:count]
        blocked = self._seen[touched] if self._reenter else self._seen[touched] | self._topics[touched]
        new = self._reached[touched] & ~blocked
        self._reached[touched] = 0
        self._here[frontier] = 0
        self._here[touched] = new
        self._seen[touched] |= new
        following: Ints = touched[new != 0]
        return following


@njit(cache=True, nogil=True)
def _spread(
    group_ptr: Ints, edge_ptr: Ints, edge_tail: Ints, frontier: Ints, here: U64, reached: U64, touched: Ints
) -> int:
    """Pass each frontier entity's word on to its neighbours; return how many were touched, listed in ``touched``."""
    count = 0
    for entity in frontier:
        word = here[entity]
        for edge in range(edge_ptr[group_ptr[entity]], edge_ptr[group_ptr[entity + 1]]):
            tail = edge_tail[edge]
            if reached[tail] == 0:
                touched[count] = tail
                count += 1
            reached[tail] |= word
    return count


@njit(cache=True, nogil=True)
def _near(group_ptr: Ints, edge_ptr: Ints, edge_tail: Ints, ends: Ints, bits: U64, here: U64) -> Bools:
    """Say of which of ``ends`` a neighbour is in the frontier of its search."""
    found = np.zeros(len(ends), dtype=np.bool_)
    for place in range(len(ends)):
        entity = ends[place]
        for edge in range(edge_ptr[group_ptr[entity]], edge_ptr[group_ptr[entity + 1]]):
            if here[edge_tail[edge]] & bits[place]:
                found[place] = True
                break
    return found
