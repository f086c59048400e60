"""From a question's topics to its k-hop subgraph: breadth-first over whole (entity, relation, direction) groups.

Of a group larger than the cap the first ``cap`` tails in id order are walked, which is the order of labels: every
relation of a hub stays, and the same labels give the same subgraph.

Bytes: an edge walked costs the 4 of its tail and some of its group's 12, read in order, and one bit of a table of the
entities seen (N/8 bytes, which stay in cache). An entity left costs a chain of cache misses from its number to its
first edge; those of a block of entities are taken side by side, as they would take most of the time one by one.
Triples are not written down while walking: ``walked_triples`` does it for whoever needs more than the entities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core.errors import InputError
from kgqa_core.graph.csr import I32, I64, U8, Bools, CsrArrays, Ints, compiled
from kgqa_core.graph.follow import find_group, mark
from kgqa_core.graph.kg import KnowledgeGraph

NO_LIMIT = 2**62
BLOCK = 64  # entities whose groups are fetched into the cache together


@dataclass(frozen=True, slots=True, eq=False)
class Expansion:
    """Where a walk came to. The triples are in the graph: see ``walked_triples``."""

    entity: I32  # reached, in order: topics, then hop by hop
    hop_ptr: I64  # [hops+2]; entity[hop_ptr[i]:hop_ptr[i+1]] were first reached in hop i, the topics in hop 0
    left: I32  # entities whose groups were walked
    num_walked: int  # edges; a triple that was walked from both of its ends counts twice
    num_capped: int  # groups of which only the first ``cap`` tails were walked
    stopped: bool  # did ``max_triples`` end the walk?


class Expander:
    """Walks one graph, question after question, with tables that are made once: N/8 and up to 8N bytes."""

    def __init__(
        self,
        graph: KnowledgeGraph,
        *,
        hops: int = 2,
        cap: int | None = 200,
        left_out: Bools | None = None,
        is_cvt: Bools | None = None,
        max_triples: int | None = None,
    ) -> None:
        """Keep the arrays of ``graph``, to be walked ``hops`` steps from a topic. InputError: a number is too small.

        None is no limit. ``cap``: tails of one (entity, relation, direction) group that are walked. ``left_out`` [R]:
        relations that are not walked. ``is_cvt`` [N]: entities that are left in the hop that reached them.
        ``max_triples``: no further entity is left once so many were walked.
        """
        for name, value, least in (("hops", hops, 0), ("cap", cap, 1), ("max_triples", max_triples, 1)):
            if value is not None and value < least:
                raise InputError(f"{name} is {value}; it must be {least} or more")
        self._csr = graph.arrays
        self._num_entities = graph.num_entities
        self._rules = (
            np.zeros(graph.num_relations, dtype=np.bool_) if left_out is None else left_out,
            np.zeros(0, dtype=np.bool_) if is_cvt is None else is_cvt,
        )
        self._limits = (hops, cap or NO_LIMIT, max_triples or NO_LIMIT)
        self._marks = np.zeros(graph.num_entities // 8 + 1, dtype=np.uint8)  # one bit per entity, 0 between calls
        self._order = np.empty(graph.num_entities + 1, dtype=np.int32)  # pages never written to take no memory
        self._left = np.empty(graph.num_entities, dtype=np.int32)

    def expand(self, topics: Sequence[int] | Ints) -> Expansion:
        """Return where the walk from ``topics`` comes to; InputError where one is no entity of the graph."""
        start = np.asarray(topics, dtype=np.int64)
        if len(start) and not 0 <= start.min() <= start.max() < self._num_entities:
            raise InputError(f"topics {list(topics)[:9]}: entity ids go from 0 to {self._num_entities - 1}")
        tables = (self._marks, self._order, self._left)
        hop_ptr, num_left, num_walked, num_capped, stopped = _expand(
            self._csr, start, self._rules, self._limits, tables
        )
        entity, left = self._order[: hop_ptr[-1]].copy(), self._left[:num_left].copy()
        return Expansion(entity, hop_ptr, left, num_walked, num_capped, stopped)

    def walked_triples(self, found: Expansion) -> tuple[I32, I32, I32]:
        """Return heads, relations (0..R-1) and tails of the distinct triples that ``found`` walked, in no order."""
        return _walked_triples(self._csr, found.left, self._rules[0], self._limits[1], self._marks, found.num_walked)


def match_relations(labels: Sequence[str], patterns: Sequence[str]) -> tuple[Bools, list[str]]:
    """Return which relations [R] ``patterns`` name, and the patterns that name none.

    A pattern that ends in "." or "/" is the start of labels ("common." for a domain of Freebase); any other is a label.
    """
    named = np.array(
        [[one.startswith(each) if each.endswith((".", "/")) else one == each for one in labels] for each in patterns],
        dtype=np.bool_,
    ).reshape(len(patterns), len(labels))
    unused = [pattern for pattern, matches in zip(patterns, named, strict=True) if not matches.any()]
    found: Bools = np.logical_or.reduce(named, axis=0)
    return found, unused


def read_cvts(graph: KnowledgeGraph) -> Bools | None:
    """Return which entities [N] are CVT nodes; None where the graph's format does not say."""
    kinds = pq.read_table(graph.folder / "entities.parquet", columns=["kind"])["kind"]
    if kinds.null_count == len(kinds):
        return None
    found: Bools = pc.fill_null(pc.equal(kinds, "cvt"), False).to_numpy()
    return found


@compiled
def _clear(marks: U8, entities: Ints) -> None:
    if len(entities) > len(marks) >> 4:  # one write of it all is quicker than many here and there
        marks[:] = 0
        return
    for entity in entities:
        marks[entity >> 3] = 0


@compiled
def _fetch(csr: CsrArrays, entities: I32, place: I64) -> None:
    """Bring where the entities' edges begin into the cache; ``place`` is scratch."""
    group_ptr, group_relation, edge_ptr, edge_tail = csr
    if not len(edge_tail):
        return
    # Loads of one loop do not wait for each other, as those of one entity must.
    for at in range(len(entities)):
        place[at] = min(group_ptr[entities[at]], len(group_relation) - 1)
    for at in range(len(entities)):
        place[at] = edge_ptr[place[at]] + (group_relation[place[at]] >> 31)  # relations are below 2^31: adds nothing
    for at in range(len(entities)):
        place[at] = edge_tail[place[at]]


@compiled
def _expand(
    csr: CsrArrays, topics: I64, rules: tuple[Bools, Bools], limits: tuple[int, int, int], tables: tuple[U8, I32, I32]
) -> tuple[I64, int, int, int, bool]:
    """Fill ``order`` and ``left``; return hop_ptr and the other figures of an Expansion. ``marks`` are 0 again."""
    left_out, is_cvt = rules
    hops, cap, max_walked = limits
    marks, order, left = tables
    hop_ptr, scratch = np.zeros(hops + 2, np.int64), np.empty(BLOCK, np.int64)
    num = num_left = num_walked = num_capped = begin = 0
    stopped = False
    for topic in topics:
        if not marks[topic >> 3] & (1 << (topic & 7)):
            marks[topic >> 3] |= 1 << (topic & 7)
            order[num] = topic
            num += 1
    for hop in range(hops):
        end = hop_ptr[hop + 1] = num
        at = begin
        # The entities of the hop before and, behind them, the CVT nodes that this hop comes to.
        while at < (num if len(is_cvt) else end) and not stopped:
            if at < end and (at - begin) % BLOCK == 0:
                _fetch(csr, order[at : min(at + BLOCK, end)], scratch)
            entity, is_new = order[at], at >= end
            at += 1
            if len(is_cvt) and is_cvt[entity] != is_new and (is_new or hop > 0):
                continue
            if num_walked >= max_walked:
                stopped = True
                break
            left[num_left] = entity
            num_left += 1
            num, walked, capped = _leave(csr, entity, left_out, cap, marks, order, num)
            num_walked += walked
            num_capped += capped
        begin = end
    hop_ptr[hops + 1] = num
    _clear(marks, order[:num])
    return hop_ptr, num_left, num_walked, num_capped, stopped


@compiled
def _leave(
    csr: CsrArrays, entity: int, left_out: Bools, cap: int, marks: U8, order: I32, num: int
) -> tuple[int, int, int]:
    """Walk an entity's groups: append whom they newly reach to ``order``, from ``num`` on; count edges and cuts."""
    group_ptr, group_relation, edge_ptr, edge_tail = csr
    num_walked = num_capped = 0
    for group in range(group_ptr[entity], group_ptr[entity + 1]):
        relation = group_relation[group]
        if left_out[relation if relation < len(left_out) else relation - len(left_out)]:
            continue
        first, last = edge_ptr[group], edge_ptr[group + 1]
        if last - first > cap:
            last = first + cap
            num_capped += 1
        num_walked += last - first
        for edge in range(first, last):
            tail = edge_tail[edge]
            seen, bit = marks[tail >> 3], tail & 7
            marks[tail >> 3] = seen | (1 << bit)
            order[num] = tail  # written over by the next where it was seen before: no branch to guess
            num += ((seen >> bit) & 1) ^ 1
    return num, num_walked, num_capped


@compiled
def _in_capped(csr: CsrArrays, entity: int, relation: int, tail: int, cap: int) -> bool:
    """Is ``tail`` among the first ``cap`` tails of a group that is there?"""
    edge_ptr, edge_tail, group = csr[2], csr[3], find_group(csr, entity, relation)
    first = edge_ptr[group]
    return bool(edge_ptr[group + 1] - first <= cap or tail <= edge_tail[first + cap - 1])


@compiled
def _walked_triples(csr: CsrArrays, left: I32, left_out: Bools, cap: int, marks: U8, most: int) -> tuple[I32, I32, I32]:
    """Write down the triples: those walked forward, and of those walked backward what was not walked forward too."""
    group_ptr, group_relation, edge_ptr, edge_tail = csr
    heads, relations, tails = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.int32)
    mark(marks, left, True)
    num, num_relations = 0, len(left_out)
    for entity in left:
        for group in range(group_ptr[entity], group_ptr[entity + 1]):
            relation = group_relation[group]
            backward = relation >= num_relations
            if backward:
                relation -= num_relations
            if left_out[relation]:
                continue
            first = edge_ptr[group]
            last = min(edge_ptr[group + 1], first + cap)
            if not backward:
                for edge in range(first, last):
                    heads[num], relations[num], tails[num] = entity, relation, edge_tail[edge]
                    num += 1
                continue
            for edge in range(first, last):
                head = edge_tail[edge]
                if marks[head >> 3] & (1 << (head & 7)) and _in_capped(csr, head, relation, entity, cap):
                    continue
                heads[num], relations[num], tails[num] = head, relation, entity
                num += 1
    _clear(marks, left)
    return heads[:num].copy(), relations[:num].copy(), tails[:num].copy()
