"""From runs to the graph at rest: one task per bucket of owners writes its shard of triples and its piece of the CSR.

Buckets are cut where the edges counted add up, so that they depend on the data alone. The pieces are joined to the
``.npy`` files of ``graph/csr.py`` by one writer, in order of buckets. A triple costs about 0.2 CPU µs: an edge is moved
once to its owner and sorted among a handful; a third of the time is the zstd of the shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numba import njit

from kgqa_core import schemas
from kgqa_core.artifacts import written_whole
from kgqa_core.graph.closure.edges import HOP_BITS, OTHER_BITS, Run, fine_width
from kgqa_core.graph.closure.files import save_array
from kgqa_core.graph.closure.options import MAX_HOPS
from kgqa_core.graph.closure.sorting import sort_by_owner
from kgqa_core.graph.closure.tables import I32, I64
from kgqa_core.graph.csr import open_array, write_array_header


@dataclass(frozen=True, slots=True)
class Bucket:
    """A range of owners."""

    low: int  # first entity
    high: int  # one past the last
    fine_low: int  # the same in ranges of owners
    fine_high: int
    shard: int | None  # number of its shard of triples; None: no entity of it is a head

    @property
    def file(self) -> str:
        """Return the name of its shard."""
        return f"triples-{self.shard:04d}.parquet"


@dataclass(frozen=True, slots=True)
class BucketTask:
    """One bucket, and where its edges lie."""

    bucket: Bucket
    number: int
    runs: tuple[Run, ...]
    relations: Path  # .npy int32: provisional relation -> relation id
    num_relations: int  # R
    work: Path


@dataclass(frozen=True, slots=True)
class Piece:
    """The CSR of one bucket: ``<stem>-{groups,relation,size,tail}.npy``, and what was counted."""

    stem: Path
    num_groups: int
    num_edges: int
    num_triples: int
    triples_per_hop: tuple[int, ...]

    def read(self, name: str) -> I32:
        """Return one of its arrays."""
        array: I32 = np.load(f"{self.stem}-{name}.npy", allow_pickle=False)
        return array

    def remove(self) -> None:
        """Free its disk."""
        for name in ("groups", "relation", "size", "tail"):
            Path(f"{self.stem}-{name}.npy").unlink()


def plan_buckets(counts: I64, num_entities: int, shard_rows: int) -> list[Bucket]:
    """Cut the owners into buckets of at most ``2 * shard_rows`` edges, or of one range of owners.

    Args:
        counts: [2, FINE] edges of each range of owners, and of those the forward ones.
        num_entities: N.
        shard_rows: triples per shard, about.
    """
    width = fine_width(num_entities)
    num_fine = -(-num_entities // width)
    buckets: list[Bucket] = []
    low = shards = 0
    while low < num_fine:
        high, total = low + 1, int(counts[0, low])
        while high < num_fine and total + counts[0, high] <= 2 * shard_rows:
            total += int(counts[0, high])
            high += 1
        has_heads = bool(counts[1, low:high].any())
        ends = low * width, min(high * width, num_entities)
        buckets.append(Bucket(*ends, low, high, shards if has_heads else None))
        shards += has_heads
        low = high
    return buckets


def write_bucket(task: BucketTask) -> Piece:
    """Sort the edges of one bucket, drop repeats, write its shard and its piece of the CSR."""
    bucket = task.bucket
    owners, keys = _read_edges(task)
    start, keys = sort_by_owner(owners, keys, bucket.low, bucket.high)
    del owners
    groups, relation, size, tail, hops = group_edges(start, keys, open_array(task.relations), task.num_relations)
    del start, keys
    piece = Piece(
        task.work / f"piece-{task.number:05d}", len(relation), len(tail), int(hops.sum()), tuple(hops.tolist())
    )
    for name, array in (("groups", groups), ("relation", relation), ("size", size), ("tail", tail)):
        save_array(Path(f"{piece.stem}-{name}.npy"), array)
    if bucket.shard is not None:
        columns = forward_triples(bucket.low, groups, relation, size, tail, task.num_relations)
        table = pa.table([pa.array(values) for values in columns], schema=schemas.TRIPLES)
        with written_whole(task.work / bucket.file) as out:
            pq.write_table(table, out, compression="zstd", use_dictionary=False)  # a third of the time, and smaller
    return piece


def _read_edges(task: BucketTask) -> tuple[I32, I64]:
    owners, keys = [], []
    for run in task.runs:
        ends = np.cumsum(np.load(run.counts, allow_pickle=False)[0])
        fine_low, last = task.bucket.fine_low, int(ends[task.bucket.fine_high - 1])
        first = int(ends[fine_low - 1]) if fine_low else 0
        owners.append(open_array(run.owners)[first:last])
        keys.append(open_array(run.keys)[first:last])
    return np.concatenate(owners), np.concatenate(keys)


@njit(cache=True, nogil=True)
def group_edges(start: I64, keys: I64, relation_ids: I32, num_relations: int) -> tuple[I32, I32, I32, I32, I64]:
    """Drop repeats and find the groups.

    Args:
        start: [owners + 1] where the keys of each owner start.
        keys: [E] ascending for each owner.
        relation_ids: [provisional R] relation id of each relation that occurs.
        num_relations: R.

    Returns:
        groups per owner, relation and size of each group, other entity of each edge, and forward edges per hop.
    """
    groups = np.zeros(len(start) - 1, np.int32)
    relation, size = np.empty(len(keys), np.int32), np.empty(len(keys), np.int32)
    tail = np.empty(len(keys), np.int32)
    hops = np.zeros(MAX_HOPS + 2, np.int64)
    num_groups = num_edges = 0
    for owner in range(len(groups)):
        edge, group = np.int64(-1), np.int64(-1)
        for at in range(start[owner], start[owner + 1]):
            if keys[at] >> HOP_BITS == edge:
                continue
            edge = keys[at] >> HOP_BITS
            given = edge >> OTHER_BITS
            if given != group:
                group = given
                if given < len(relation_ids):
                    relation[num_groups] = relation_ids[given]
                else:
                    relation[num_groups] = relation_ids[given - len(relation_ids)] + num_relations
                size[num_groups] = 0
                num_groups += 1
                groups[owner] += 1
            size[num_groups - 1] += 1
            tail[num_edges] = edge & ((1 << OTHER_BITS) - 1)
            num_edges += 1
            if given < len(relation_ids):
                hops[keys[at] & ((1 << HOP_BITS) - 1)] += 1
    return groups, relation[:num_groups].copy(), size[:num_groups].copy(), tail[:num_edges].copy(), hops


@njit(cache=True, nogil=True)
def forward_triples(
    low: int, groups: I32, relation: I32, size: I32, tail: I32, num_relations: int
) -> tuple[I32, I32, I32]:
    """Return head, relation and tail of the forward edges of a piece whose first owner is ``low``."""
    count = 0
    for group in range(len(relation)):
        if relation[group] < num_relations:
            count += size[group]
    heads, relations, tails = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, np.int32)
    group = edge = to = 0
    for owner in range(len(groups)):
        for _ in range(groups[owner]):
            if relation[group] < num_relations:
                for at in range(edge, edge + size[group]):
                    heads[to], relations[to], tails[to] = low + owner, relation[group], tail[at]
                    to += 1
            edge += size[group]
            group += 1
    return heads, relations, tails


def join_pieces(pieces: Sequence[Piece], num_entities: int, num_relations: int, folder: Path) -> I64:
    """Write the four arrays of the CSR, piece after piece; return the triples of each relation, [R]."""
    num_groups = sum(piece.num_groups for piece in pieces)
    for name, source, length in (
        ("group_relation", "relation", num_groups),
        ("edge_tail", "tail", sum(piece.num_edges for piece in pieces)),
    ):
        with (folder / f"{name}.npy").open("wb") as stream:
            write_array_header(stream, np.dtype(np.int32), length)
            for piece in pieces:
                stream.write(piece.read(source).data)
    for name, source, length in (("group_ptr", "groups", num_entities), ("edge_ptr", "size", num_groups)):
        with (folder / f"{name}.npy").open("wb") as stream:
            write_array_header(stream, np.dtype(np.int64), length + 1)
            last = np.zeros(1, np.int64)
            stream.write(last.data)
            for piece in pieces:
                pointers = np.cumsum(np.append(last, piece.read(source)))[1:]
                stream.write(pointers.data)
                last = pointers[-1:] if len(pointers) else last
    counts = np.zeros(2 * num_relations, np.int64)
    for piece in pieces:
        counts += np.bincount(piece.read("relation"), piece.read("size"), 2 * num_relations).astype(np.int64)
    return counts[:num_relations]
