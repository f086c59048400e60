"""From coded triples to runs of edges: every triple of the closure twice, under its head and under its tail.

An edge is an owner (entity id) and a key: relation (forward r, backward r + R) << 36 | other entity << 5 | hop. So the
edges of an owner sort by (relation, other), and of equal ones the first has the lowest hop. A run holds the edges of
one batch of triples, counting-sorted into at most FINE ranges of owners; the bucket of a few ranges is then one slice
of every run. A triple costs 24 bytes here, written once and read once, and about
0.17 CPU µs: two look-ups that miss the cache and two scattered writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit

from kgqa_core.graph.closure.files import save_array
from kgqa_core.graph.closure.options import NEVER
from kgqa_core.graph.closure.parts import Part, batches, column, relations_of
from kgqa_core.graph.closure.tables import I8, I32, I64, numbers_of
from kgqa_core.graph.csr import open_array

FINE = 4096
HOP_BITS, OTHER_BITS = 5, 31
RELATION_SHIFT = HOP_BITS + OTHER_BITS
MAX_RELATIONS = 2 ** (63 - RELATION_SHIFT - 1)


@dataclass(frozen=True, slots=True)
class EdgeTask:
    """One part of coded triples, on its way to runs."""

    part: Part
    number: int
    work: Path  # holds codes.npy [N], numbers.npy (the table of codes) and leave.npy [N]; gets the runs
    num_relations: int  # over all dumps: a provisional R
    batch_rows: int


@dataclass(frozen=True, slots=True)
class Run:
    """Edges on disk: ``<stem>-owner.npy`` int32, ``<stem>-key.npy`` int64, sorted by range of owners."""

    stem: Path
    counts: Path  # .npy int64 [2, FINE]: edges per range, and of those the forward ones

    @property
    def owners(self) -> Path:
        """Where the owners are."""
        return Path(f"{self.stem}-owner.npy")

    @property
    def keys(self) -> Path:
        """Where the keys are."""
        return Path(f"{self.stem}-key.npy")

    def remove(self) -> None:
        """Free its disk."""
        for path in (self.owners, self.keys, self.counts):
            path.unlink()


def fine_width(num_entities: int) -> int:
    """Return how many entities a range of owners has."""
    return max(1, -(-num_entities // FINE))


def write_runs(task: EdgeTask) -> tuple[list[Run], list[int], int]:
    """Write the edges of one part; return the runs, which relations occur, and how many triples were kept."""
    codes, table, leave = (open_array(task.work / f"{name}.npy") for name in ("codes", "numbers", "leave"))
    relation_numbers = open_array(task.part.relations)
    used = np.zeros(task.num_relations, np.bool_)
    width, runs, num_rows = fine_width(len(codes)), [], 0
    has_hop = task.part.hop
    names = ["head", "relation", "tail", *(["hop"] if has_hop else [])]
    for number, batch in enumerate(batches(task.part.path, names, task.batch_rows)):
        heads, tails = (numbers_of(table, codes, column(batch, name)) for name in ("head", "tail"))
        hops = column(batch, "hop") if has_hop else hops_of(heads, tails, leave)
        kept = hops != NEVER
        if not kept.any():
            continue
        relations = relations_of(task.part, batch, relation_numbers)
        heads, relations, tails, hops = heads[kept], relations[kept], tails[kept], hops[kept]
        used[relations] = True
        owners, keys, counts = double(heads, relations, tails, hops, task.num_relations, width)
        stem = task.work / f"run-{task.number:05d}-{number:04d}"
        run = Run(stem, Path(f"{stem}-counts.npy"))
        save_array(run.owners, owners)
        save_array(run.keys, keys)
        save_array(run.counts, counts)
        runs.append(run)
        num_rows += len(heads)
    return runs, np.flatnonzero(used).tolist(), num_rows


@njit(cache=True, nogil=True)
def hops_of(heads: I32, tails: I32, leave: I8) -> I8:
    """Return the hop that first walks each triple, NEVER where none does; heads and tails [E] may be -1 (unknown)."""
    hops = np.full(len(heads), NEVER, np.int8)
    for at in range(len(heads)):
        if heads[at] >= 0 and tails[at] >= 0:
            hops[at] = min(leave[heads[at]], leave[tails[at]])
    return hops


@njit(cache=True, nogil=True)
def double(heads: I32, relations: I32, tails: I32, hops: I8, num_relations: int, width: int) -> tuple[I32, I64, I64]:
    """Return owners [2E] and keys [2E] of both directions, by range of owners, and the ranges' counts [2, FINE]."""
    counts = np.zeros((2, FINE), np.int64)
    for at in range(len(heads)):
        counts[0, heads[at] // width] += 1
        counts[1, heads[at] // width] += 1
        counts[0, tails[at] // width] += 1
    place = np.zeros(FINE, np.int64)
    for fine in range(1, FINE):
        place[fine] = place[fine - 1] + counts[0, fine - 1]
    owners, keys = np.empty(2 * len(heads), np.int32), np.empty(2 * len(heads), np.int64)
    for at in range(len(heads)):
        head, tail, hop = np.int64(heads[at]), np.int64(tails[at]), np.int64(hops[at])
        relation = np.int64(relations[at])
        to = place[head // width]
        place[head // width] += 1
        owners[to] = head
        keys[to] = (relation << RELATION_SHIFT) | (tail << HOP_BITS) | hop
        to = place[tail // width]
        place[tail // width] += 1
        owners[to] = tail
        keys[to] = ((relation + num_relations) << RELATION_SHIFT) | (head << HOP_BITS) | hop
    return owners, keys, counts
