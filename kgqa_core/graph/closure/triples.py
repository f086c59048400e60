"""The triples of a graph at rest: shards, relations and CSR, from the parts that hold the closure."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.errors import InputError
from kgqa_core.graph.closure.buckets import BucketTask, Piece, join_pieces, plan_buckets, write_bucket
from kgqa_core.graph.closure.edges import FINE, MAX_RELATIONS, EdgeTask, Run, write_runs
from kgqa_core.graph.closure.files import save_array
from kgqa_core.graph.closure.options import ClosureLimits, ClosureOptions
from kgqa_core.graph.closure.parts import Part
from kgqa_core.graph.closure.tables import I64


@dataclass(frozen=True, slots=True)
class TripleCounts:
    """What was counted on the way."""

    num_rows: int  # kept, repeats included
    num_triples: int
    per_hop: tuple[int, ...]  # distinct, by the hop that first walks them
    per_relation: dict[str, int]  # label -> distinct triples


def write_triple_files(
    parts: Sequence[Part],
    labels: Sequence[str],
    num_entities: int,
    work: Path,
    out_dir: Path,
    options: ClosureOptions,
    limits: ClosureLimits,
) -> TripleCounts:
    """Write triples-NNNN.parquet, relations.parquet and the CSR.

    Args:
        parts: coded triples, of which those are kept whose ends are in the closure and of which one is left.
        labels: of all relations, by provisional number; in byte order.
        num_entities: N.
        work: folder of the look-up tables; gets runs and pieces.
        out_dir: of the graph.
        options: for shard_rows.
        limits: for the mapping of tasks.
    """
    if len(labels) > MAX_RELATIONS:
        raise InputError(f"dump: {len(labels)} relations are more than the {MAX_RELATIONS} that an edge has room for")
    edge_tasks = [EdgeTask(part, number, work, len(labels), limits.batch_rows) for number, part in enumerate(parts)]
    made = list(limits.map_tasks(write_runs, edge_tasks))
    runs = tuple(run for runs, _, _ in made for run in runs)
    used = sorted({relation for _, relations, _ in made for relation in relations})
    relation_ids = np.full(len(labels), -1, np.int32)
    relation_ids[used] = np.arange(len(used))
    save_array(work / "relation_ids.npy", relation_ids)
    buckets = plan_buckets(_total(runs), num_entities, options.shard_rows)
    tasks = [
        BucketTask(bucket, number, runs, work / "relation_ids.npy", len(used), work)
        for number, bucket in enumerate(buckets)
    ]
    pieces: list[Piece] = list(limits.map_tasks(write_bucket, tasks))
    for bucket in buckets:
        if bucket.shard is not None:  # published by one writer, which no killed worker can follow
            shutil.move(work / bucket.file, out_dir / bucket.file)
    for run in runs:
        run.remove()
    counts = join_pieces(pieces, num_entities, len(used), out_dir)
    for piece in pieces:
        piece.remove()
    kept = [labels[relation] for relation in used]
    table = pa.table([np.arange(len(used), dtype=np.int32), kept, counts, [None] * len(used)], schema=schemas.RELATIONS)
    pq.write_table(table, out_dir / "relations.parquet", compression="zstd")
    return TripleCounts(
        num_rows=sum(num_rows for _, _, num_rows in made),
        num_triples=sum(piece.num_triples for piece in pieces),
        per_hop=tuple(np.sum([piece.triples_per_hop for piece in pieces], axis=0).tolist()),
        per_relation=dict(zip(kept, counts.tolist(), strict=True)),
    )


def _total(runs: Sequence[Run]) -> I64:
    total = np.zeros((2, FINE), np.int64)
    for run in runs:
        total += np.load(run.counts, allow_pickle=False)
    return total
