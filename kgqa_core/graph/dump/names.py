"""Entities by name in coded parts: what a question file that names its topics needs before there is a graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from kgqa_core.graph.dump.codes import code_of, label_of
from kgqa_core.graph.shards import connect


def labels_named(
    names: Sequence[str], dumps: Sequence[Path], *, memory_limit: str, temp_directory: Path
) -> dict[str, list[str]]:
    """Return, of the texts that are names or aliases in a dump, the labels of the entities that bear them, sorted.

    A text that is a MID is taken for no name: where all are, as in WebQSP, the names of a dump need not be read.
    """
    wanted = sorted(name for name in set(names) if code_of(name) < 0)
    parts = [str(part) for dump in dumps for part in sorted(dump.glob("names-*.parquet"))]
    if not wanted or not parts:
        return {}
    found: dict[str, list[str]] = {}
    with connect(memory_limit=memory_limit, temp_directory=temp_directory) as connection:
        connection.register("wanted", pa.table({"name": wanted}))
        connection.read_parquet(parts).create_view("given")
        query = "select distinct name, entity from given semi join wanted using (name) order by name, entity"
        for name, entity in connection.sql(query).fetchall():
            found.setdefault(name, []).append(label_of(entity))
    return found
