"""Arrow files: what tasks pass on when it is more than arrays, memory-mapped by whoever reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa


def read_arrow(path: Path) -> pa.Table:
    """Memory-map an Arrow file."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def write_arrow(table: pa.Table, path: Path) -> None:
    """Write an Arrow file that can be memory-mapped."""
    with pa.OSFile(str(path), "wb") as stream, pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)
