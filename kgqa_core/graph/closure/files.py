"""Files that tasks pass on: whole or not there, whoever dies while writing; arrays and Arrow tables, memory-mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kgqa_core.artifacts import written_whole


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write a ``.npy`` file."""
    with written_whole(path) as temporary, temporary.open("wb") as stream:
        np.save(stream, array, allow_pickle=False)


def read_arrow(path: Path) -> pa.Table:
    """Memory-map an Arrow file."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def write_arrow(table: pa.Table, path: Path) -> None:
    """Write an Arrow file that can be memory-mapped."""
    with (
        written_whole(path) as temporary,
        pa.OSFile(str(temporary), "wb") as stream,
        pa.ipc.new_file(stream, table.schema) as writer,
    ):
        writer.write_table(table)
