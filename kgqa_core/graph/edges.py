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
from kgqa_core.graph.csr import open_array, write_array_header

RANGES = 4096


class Layout:
    """How wide the fields of a key are: ``(relation << other_bits | other) << hop_bits | hop``."""

    def __init__(self, num_entities: int, num_relations: int, max_hop: int) -> None:
        """Plan the keys of N entities, and R relations, those without a triple included."""
        self.num_entities, self.num_relations, self.max_hop = num_entities, num_relations, max_hop
        self.other_bits, self.hop_bits = max(num_entities - 1, 0).bit_length(), max_hop.bit_length()
        self.width = max(1, -(-num_entities // RANGES))  # owners of a range


def write_run(triples: Sequence[NDArray[Any]], layout: Layout, stem: Path) -> Path:
    """Write both edges of triples (heads, relations, tails, hops; each [E]) to ``<stem>-{owner,key,counts}.npy``."""
    heads, relations, tails, hops = triples
    owners = np.concatenate([heads, tails])
    keys = np.concatenate([relations, relations + layout.num_relations]).astype(np.uint64)
    keys = keys << np.uint64(layout.other_bits) | np.concatenate([tails, heads]).astype(np.uint64)
    keys = keys << np.uint64(layout.hop_bits) | np.concatenate([hops, hops]).astype(np.uint64)
    ranges = (owners // layout.width).astype(np.uint16)
    order = np.argsort(ranges, kind="stable")  # of 16 bits: a radix sort
    counts = [np.bincount(given, minlength=RANGES) for given in (ranges, ranges[: len(heads)])]
    for name, array in (("owner", owners[order]), ("key", keys[order]), ("counts", np.array(counts))):
        save_array(Path(f"{stem}-{name}.npy"), array)
    return stem


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write a ``.npy`` file, whole or not at all."""
    with written_whole(path) as temporary, temporary.open("wb") as stream:
        np.save(stream, array, allow_pickle=False)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A range of owners, where its edges lie, and where its files go."""

    low: int  # ranges of owners
    high: int
    shard: int | None  # number of its shard of triples; None: no entity of it is a head
    runs: tuple[Path, ...]
    layout: Layout
    relations: tuple[int, ...]  # those with a triple, ascending: their places are the relation ids
    stem: Path  # -> <stem>-{groups,relation,size,tail}.npy and <stem>-triples.parquet


@dataclass(frozen=True, slots=True)
class Piece:
    """What ``write_bucket`` wrote."""

    bucket: Bucket
    num_groups: int
    num_edges: int
    hops: tuple[int, ...]  # triples by the hop that first walks them
    relations: tuple[int, ...]  # triples by relation id


def plan_buckets(
    runs: Sequence[Path], relations: Sequence[int], layout: Layout, shard_rows: int, work: Path
) -> list[Bucket]:
    """Cut the owners into buckets of at most ``2 * shard_rows`` edges, or of one range of owners."""
    counts = np.zeros((2, RANGES), np.int64)  # all edges, forward ones
    for run in runs:
        counts += open_array(Path(f"{run}-counts.npy"))
    num_ranges = -(-layout.num_entities // layout.width)
    buckets: list[Bucket] = []
    low = shards = 0
    while low < num_ranges:
        high, total = low + 1, int(counts[0, low])
        while high < num_ranges and total + counts[0, high] <= 2 * shard_rows:
            total += int(counts[0, high])
            high += 1
        has_heads = bool(counts[1, low:high].any())
        stem = work / f"bucket-{len(buckets):05d}"
        buckets.append(Bucket(low, high, shards if has_heads else None, tuple(runs), layout, tuple(relations), stem))
        shards += has_heads
        low = high
    return buckets


def write_bucket(bucket: Bucket) -> Piece:
    """Sort the edges of one bucket, drop repeats, write its shard and its piece of the CSR."""
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
    changes = (owners[1:] != owners[:-1]) | (relations[1:] != relations[:-1])
    starts = np.flatnonzero(np.append(True, changes)[: len(owners)])
    num_owners = min(bucket.high * layout.width, layout.num_entities) - first
    arrays = {
        "groups": np.bincount(owners[starts] - first, minlength=num_owners),
        "relation": relations[starts],
        "size": np.diff(np.append(starts, len(owners))),
        "tail": others,
    }
    for name, array in arrays.items():
        save_array(Path(f"{bucket.stem}-{name}.npy"), array)
    forward = np.flatnonzero(relations < num_relations)
    if bucket.shard is not None:
        columns = [owners[forward], relations[forward], others[forward]]
        with written_whole(Path(f"{bucket.stem}-triples.parquet")) as out:
            pq.write_table(pa.table(columns, schema=schemas.TRIPLES), out, compression="zstd", use_dictionary=False)
    return Piece(
        bucket,
        num_groups=len(starts),
        num_edges=len(owners),
        hops=tuple(np.bincount(hops[forward], minlength=layout.max_hop + 1).tolist()),
        relations=tuple(np.bincount(relations[forward], minlength=num_relations).tolist()),
    )


def _sorted_edges(bucket: Bucket, first: int) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """Return owners and keys of a bucket's edges, ascending."""
    found: tuple[list[Any], list[Any]] = ([], [])
    for run in bucket.runs:
        ends = np.append(0, np.cumsum(open_array(Path(f"{run}-counts.npy"))[0]))
        for name, arrays in zip(("owner", "key"), found, strict=True):
            arrays.append(open_array(Path(f"{run}-{name}.npy"))[ends[bucket.low] : ends[bucket.high]])
    owners, keys = (np.concatenate(arrays) for arrays in found)
    layout = bucket.layout
    bits = np.uint64((2 * layout.num_relations).bit_length() + layout.other_bits + layout.hop_bits)
    if int(owners.max(initial=first) - first).bit_length() + int(bits) > 64:
        order = np.lexsort((keys, owners))
        return owners[order], keys[order]
    whole = (owners - np.int32(first)).astype(np.uint64) << bits | keys
    whole.sort()  # one number per edge: many times quicker than by two columns
    return (whole >> bits).astype(np.int32) + np.int32(first), whole & ((np.uint64(1) << bits) - np.uint64(1))


def join_pieces(pieces: Sequence[Piece], num_entities: int, folder: Path) -> None:
    """Move the shards to ``folder``, write the four arrays of the CSR there, and remove the pieces and the runs."""
    num_groups, num_edges = sum(piece.num_groups for piece in pieces), sum(piece.num_edges for piece in pieces)
    for name, source, length in (("group_relation", "relation", num_groups), ("edge_tail", "tail", num_edges)):
        with (folder / f"{name}.npy").open("wb") as stream:
            write_array_header(stream, np.dtype(np.int32), length)
            for piece in pieces:
                stream.write(_read(piece, source).astype(np.int32).data)
    for name, source, length in (("group_ptr", "groups", num_entities), ("edge_ptr", "size", num_groups)):
        with (folder / f"{name}.npy").open("wb") as stream:
            write_array_header(stream, np.dtype(np.int64), length + 1)
            last = np.zeros(1, np.int64)
            stream.write(last.data)
            for piece in pieces:
                pointers = last + np.cumsum(_read(piece, source))
                stream.write(pointers.data)
                last = pointers[-1:] if len(pointers) else last
    for piece in pieces:
        if piece.bucket.shard is not None:
            shutil.move(f"{piece.bucket.stem}-triples.parquet", folder / f"triples-{piece.bucket.shard:04d}.parquet")
        for name in ("groups", "relation", "size", "tail"):
            Path(f"{piece.bucket.stem}-{name}.npy").unlink()
    for run in pieces[0].bucket.runs:
        for name in ("owner", "key", "counts"):
            Path(f"{run}-{name}.npy").unlink()


def _read(piece: Piece, name: str) -> NDArray[Any]:
    return open_array(Path(f"{piece.bucket.stem}-{name}.npy"))
