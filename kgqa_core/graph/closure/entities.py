"""The entities of a graph at rest: entities.parquet, aliases, types and string indexes, joined from ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.graph.closure.files import read_arrow
from kgqa_core.graph.closure.names import (
    KINDS,
    EntityCounts,
    EntityTask,
    NameTask,
    describe_entities,
    find_names,
    find_types,
)
from kgqa_core.graph.closure.options import ClosureLimits
from kgqa_core.graph.closure.parts import Parts
from kgqa_core.graph.kg import write_orders
from kgqa_core.graph.shards import ROW_GROUP_ROWS
from kgqa_core.graph.strings import join_strings, open_strings


@dataclass(frozen=True, slots=True)
class NameCounts:
    """What was counted of all entities."""

    num_named: int
    num_several_names: int
    num_shared_names: int
    num_aliases: int
    num_types: int
    kinds: dict[str, int]


def write_entity_files(parts: Parts, num_entities: int, work: Path, out_dir: Path, limits: ClosureLimits) -> NameCounts:
    """Write entities.parquet, aliases.parquet, types.parquet and the string indexes."""
    found = {}
    for what, function, paths in (("names", find_names, parts.names), ("types", find_types, parts.types)):
        tasks = [
            NameTask(path, work, work / f"{what}-{number:05d}.arrow", limits.batch_rows)
            for number, path in enumerate(paths)
        ]
        found[what] = tuple(limits.map_tasks(function, tasks))
    ranges = [
        EntityTask(
            low,
            min(low + ROW_GROUP_ROWS, num_entities),
            work,
            found["names"],
            found["types"],
            work / f"range-{low // ROW_GROUP_ROWS:05d}",
        )
        for low in range(0, num_entities, ROW_GROUP_ROWS)
    ]
    pieces: list[EntityCounts] = list(limits.map_tasks(describe_entities, ranges))
    _join_tables(pieces, out_dir)
    num_shared = _join_strings(pieces, work, out_dir)
    return NameCounts(
        num_named=sum(piece.num_named for piece in pieces),
        num_several_names=sum(piece.num_several_names for piece in pieces),
        num_shared_names=num_shared,
        num_aliases=sum(piece.num_aliases for piece in pieces),
        num_types=sum(piece.num_types for piece in pieces),
        kinds=dict(zip(KINDS, np.sum([piece.kinds for piece in pieces], axis=0).tolist(), strict=True)),
    )


def _join_tables(pieces: Sequence[EntityCounts], out_dir: Path) -> None:
    """Write the ranges one after the other, a row group each."""
    total = 0
    with pq.ParquetWriter(out_dir / "entities.parquet", schemas.ENTITIES, **_encoding("kind")) as writer:
        for piece in pieces:
            table = read_arrow(piece.file("entities"))
            ids = pa.array(np.arange(total, total + table.num_rows, dtype=np.int32))
            columns = [ids, *(table[name].cast(pa.string()) for name in ("label", "name", "kind"))]
            writer.write_table(pa.table(columns, schema=schemas.ENTITIES))
            total += table.num_rows
    for what, schema, repeats in (("aliases", schemas.ALIASES, ()), ("types", schemas.TYPES, ("type",))):
        with pq.ParquetWriter(out_dir / f"{what}.parquet", schema, **_encoding(*repeats)) as writer:
            for piece in pieces:
                writer.write_table(read_arrow(piece.file(what)).cast(schema))


def _encoding(*repeats: str) -> dict[str, Any]:
    """Return how to write a table: only columns of few values get a dictionary, which others are slower with."""
    return {"compression": "zstd", "use_dictionary": list(repeats)}


def _join_strings(pieces: Sequence[EntityCounts], work: Path, out_dir: Path) -> int:
    """Write the string indexes; return how many names several entities share."""
    tables = [read_arrow(piece.file("entities")) for piece in pieces]
    for column, folder, stem in (("label", out_dir, "label"), ("name", out_dir, "name"), ("folded", work, "folded")):
        join_strings([table[column] for table in tables], folder, stem)
    names, folded = open_strings(out_dir, "name"), open_strings(work, "folded")
    return write_orders((names.data, names.offsets), (folded.data, folded.offsets), out_dir)
