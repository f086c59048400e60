"""Files that tasks pass on: whole or not there, whoever dies while writing; arrays and Arrow tables, memory-mapped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to; what was written takes the place of ``path`` once it is complete.

    A task may run twice at a time, where a worker is taken for dead: its files are equal, and none is ever half there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write a ``.npy`` file."""
    with whole(path) as temporary, temporary.open("wb") as stream:
        np.save(stream, array, allow_pickle=False)


def read_arrow(path: Path) -> pa.Table:
    """Memory-map an Arrow file."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def write_arrow(table: pa.Table, path: Path) -> None:
    """Write an Arrow file that can be memory-mapped."""
    with (
        whole(path) as temporary,
        pa.OSFile(str(temporary), "wb") as stream,
        pa.ipc.new_file(stream, table.schema) as writer,
    ):
        writer.write_table(table)
