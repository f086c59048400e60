"""Rejected rows: counted per file, kept with exact line numbers, and the reason to stop when there are too many."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.errors import InputError, shorten
from kgqa_core.types import Reject

if TYPE_CHECKING:
    from kgqa_core.graph.formats import ChunkReport

MAX_REJECT_TEXT = 500  # characters of a rejected line that are kept
NOT_UTF8 = "not UTF-8"
TRUNCATED = "truncated last line"

NUM_SHOWN = 5


def collect_rejects(files: Iterable[Sequence[ChunkReport]]) -> Iterator[pa.Table]:
    """Yield the rejects (schemas.REJECTS) of each file's chunks, chunk line numbers turned into file line numbers."""
    for reports in files:
        lines_before = 0
        for report in reports:
            if report.rejects:
                table = pq.read_table(report.chunk.rejects_part, schema=schemas.REJECTS)
                lines = pa.array(table["line"].to_numpy() + lines_before, pa.int64())
                yield table.set_column(1, schemas.REJECTS.field("line"), lines)
            lines_before += report.num_lines


def write_rejects(tables: Iterable[pa.Table], out: Path) -> None:
    """Write reject tables one after the other to one Parquet file, which is empty where there are none."""
    with pq.ParquetWriter(out, schemas.REJECTS, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)


def rejects_table(rejects: Sequence[Reject]) -> pa.Table:
    """Return reject records as a table of schemas.REJECTS."""
    columns = [[getattr(reject, name) for reject in rejects] for name in schemas.REJECTS.names]
    return pa.table(columns, schema=schemas.REJECTS)


def check_reject_ratio(reports: Sequence[ChunkReport], *, max_ratio: float, key: str) -> None:
    """Raise InputError when more than ``max_ratio`` of one file's rows were rejected, showing the first five."""
    num_rejects = sum(sum(report.rejects.values()) for report in reports)
    num_rows = num_rejects + sum(report.num_rows for report in reports)
    if num_rejects > max_ratio * num_rows:
        shown: list[Reject] = []
        for table in collect_rejects([reports]):
            shown += [Reject(**row) for row in table.slice(0, NUM_SHOWN).to_pylist()]
            if len(shown) >= NUM_SHOWN:
                break
        raise too_many_rejects(shown, num_rejects=num_rejects, num_rows=num_rows, max_ratio=max_ratio, key=key)


def too_many_rejects(
    first: Sequence[Reject], *, num_rejects: int, num_rows: int, max_ratio: float, key: str
) -> InputError:
    """Return the error that stops a build: how many, the first five as ``file:line: reason: text``, what to do."""
    shown = "\n".join(f"  {r.file}:{r.line}: {r.reason}: {shorten(r.text)}" for r in first[:NUM_SHOWN])
    share, allowed = 100 * num_rejects / num_rows, 100 * max_ratio
    enough = math.ceil(1000 * num_rejects / num_rows) / 1000
    return InputError(
        f"{num_rejects} of {num_rows} rows rejected ({share:.3g} %, allowed {allowed:.3g} %); the first:\n{shown}\n"
        f"Mend them, or allow more: --set {key}={enough:g}"
    )
