"""From numbered triples to the graph at rest: shards of triples, and the CSR in both directions.

An edge is an owner (an entity) and a key: relation (forward r, backward r + R), other entity, hop. So the edges of an
owner sort by (relation, other), and of equal ones the first has the lowest hop. A run holds the edges of one batch of
triples, sorted into at most RANGES ranges of owners; a bucket is a few ranges, hence one slice of every run. Each
bucket is sorted, made distinct, and written as one shard and one piece of the CSR. One writer joins the pieces, in
order of buckets.

Buckets are cut where the edges counted add up, so that they depend on the data alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kgqa_core import schemas
from kgqa_core.artifacts import written_whole
from kgqa_core.graph.csr import group_edges, join_csrs, open_array, write_csr

RANGES = 4096
TRIPLES_FILE = "triples.parquet"  # the shard, in the folder of a bucket


class Layout:
    """How wide the fields of a key are: ``(relation << other_bits | other) << hop_bits | hop``."""

    def __init__(self, num_entities: int, num_relations: int, max_hop: int) -> None:
        """Plan the keys of N entities, and R relations, those without a triple included."""
        self.num_entities, self.num_relations, self.max_hop = num_entities, num_relations, max_hop
        self.other_bits, self.hop_bits = max(num_entities - 1, 0).bit_length(), max_hop.bit_length()
        self.width = max(1, -(-num_entities // RANGES))  # owners of a range


def write_run(triples: Sequence[NDArray[Any]], layout: Layout, folder: Path) -> Path:
    """Write both edges of triples (heads, relations, tails, hops; each [E]) to owner, key and counts in ``folder``."""
    heads, relations, tails, hops = triples
    owners = np.concatenate([heads, tails])
    keys = np.concatenate([relations, relations + layout.num_relations]).astype(np.uint64)
    keys = keys << np.uint64(layout.other_bits) | np.concatenate([tails, heads]).astype(np.uint64)
    keys = keys << np.uint64(layout.hop_bits) | np.concatenate([hops, hops]).astype(np.uint64)
    ranges = (owners // layout.width).astype(np.uint16)
    order = np.argsort(ranges, kind="stable")  # of 16 bits: a radix sort
    counts = [np.bincount(given, minlength=RANGES) for given in (ranges, ranges[: len(heads)])]
    with written_whole(folder) as made:
        made.mkdir()
        for name, array in (("owner", owners[order]), ("key", keys[order]), ("counts", np.array(counts))):
            np.save(made / f"{name}.npy", array, allow_pickle=False)
    return folder


@dataclass(frozen=True, slots=True)
class Bucket:
    """A range of owners, where its edges lie, and where its files go."""

    low: int  # ranges of owners
    high: int
    shard: int | None  # number of its shard of triples; None: no entity of it is a head
    runs: tuple[Path, ...]
    layout: Layout
    relations: tuple[int, ...]  # those with a triple, ascending: their places are the relation ids
    folder: Path


def plan_buckets(
    runs: Sequence[Path], relations: Sequence[int], layout: Layout, shard_rows: int, work: Path
) -> list[Bucket]:
    """Cut the owners into buckets of at most ``2 * shard_rows`` edges, or of one range of owners."""
    counts = np.zeros((2, RANGES), np.int64)  # all edges, forward ones
    for run in runs:
        counts += open_array(run / "counts.npy")
    num_ranges = -(-layout.num_entities // layout.width)
    buckets: list[Bucket] = []
    low = shards = 0
    while low < num_ranges:
        high, total = low + 1, int(counts[0, low])
        while high < num_ranges and total + counts[0, high] <= 2 * shard_rows:
            total += int(counts[0, high])
            high += 1
        has_heads = bool(counts[1, low:high].any())
        folder = work / f"bucket-{len(buckets):05d}"
        buckets.append(Bucket(low, high, shards if has_heads else None, tuple(runs), layout, tuple(relations), folder))
        shards += has_heads
        low = high
    return buckets


def write_bucket(bucket: Bucket) -> tuple[list[int], list[int]]:
    """Sort the edges of one bucket, drop repeats, write its shard and its piece of the CSR.

    Returns how many triples it has by the hop that first walks them, and by relation id.
    """
    layout = bucket.layout
    first = bucket.low * layout.width
    owners, keys = _sorted_edges(bucket, first)
    edges = keys >> np.uint64(layout.hop_bits)
    new = np.append(True, (edges[1:] != edges[:-1]) | (owners[1:] != owners[:-1]))[: len(keys)]
    owners, edges, hops = owners[new], edges[new], (keys[new] & np.uint64((1 << layout.hop_bits) - 1)).astype(np.int64)
    num_relations = len(bucket.relations)
    ids = np.full(2 * layout.num_relations, -1, np.int32)
    ids[np.array(bucket.relations, np.int64)] = np.arange(num_relations)
    ids[layout.num_relations :] = ids[: layout.num_relations] + num_relations
    relations = ids[(edges >> np.uint64(layout.other_bits)).astype(np.int64)]
    others = (edges & np.uint64((1 << layout.other_bits) - 1)).astype(np.int32)
    num_owners = min(bucket.high * layout.width, layout.num_entities) - first
    forward = np.flatnonzero(relations < num_relations)
    with written_whole(bucket.folder) as made:
        made.mkdir()
        write_csr(group_edges(owners - np.int32(first), relations, others, num_owners), made)
        if bucket.shard is not None:
            table = pa.table([owners[forward], relations[forward], others[forward]], schema=schemas.TRIPLES)
            pq.write_table(table, made / TRIPLES_FILE, compression="zstd", use_dictionary=False)
    per_hop = np.bincount(hops[forward], minlength=layout.max_hop + 1)
    per_relation = np.bincount(relations[forward], minlength=num_relations)
    return per_hop.tolist(), per_relation.tolist()


def _sorted_edges(bucket: Bucket, first: int) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """Return owners and keys of a bucket's edges, ascending."""
    found: tuple[list[Any], list[Any]] = ([], [])
    for run in bucket.runs:
        ends = np.append(0, np.cumsum(open_array(run / "counts.npy")[0]))
        for name, arrays in zip(("owner", "key"), found, strict=True):
            arrays.append(open_array(run / f"{name}.npy")[ends[bucket.low] : ends[bucket.high]])
    owners, keys = (np.concatenate(arrays) for arrays in found)
    layout = bucket.layout
    bits = np.uint64((2 * layout.num_relations).bit_length() + layout.other_bits + layout.hop_bits)
    if int(owners.max(initial=first) - first).bit_length() + int(bits) > 64:
        order = np.lexsort((keys, owners))
        return owners[order], keys[order]
    whole = (owners - np.int32(first)).astype(np.uint64) << bits | keys
    whole.sort()  # one number per edge: many times quicker than by two columns
    return (whole >> bits).astype(np.int32) + np.int32(first), whole & ((np.uint64(1) << bits) - np.uint64(1))


def join_buckets(buckets: Sequence[Bucket], out_dir: Path) -> None:
    """Move the shards of buckets to ``out_dir``, join their pieces of the CSR there, and remove them and the runs."""
    folders = [bucket.folder for bucket in buckets]
    join_csrs(folders, np.zeros(len(buckets), np.int64), out_dir)
    for bucket in buckets:
        if bucket.shard is not None:
            shutil.move(bucket.folder / TRIPLES_FILE, out_dir / f"triples-{bucket.shard:04d}.parquet")
    for folder in (*folders, *buckets[0].runs):
        shutil.rmtree(folder)
