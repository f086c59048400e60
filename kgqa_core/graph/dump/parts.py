"""Writing the parts of a dump: one part is the rows of a fixed number of blocks, in the order of the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.graph.dump.codes import has_numba
from kgqa_core.graph.dump.rows import KIND_FOREIGN, Array, Rows
from kgqa_core.types import Reject

ROW_GROUP_ROWS = 2**20
REJECT_GROUP_ROWS = 2**14
SCHEMAS = {
    "triples": schemas.DUMP_TRIPLES,
    "types": schemas.DUMP_TYPES,
    "names": schemas.DUMP_NAMES,
    "texts": schemas.DUMP_TEXTS,
    "rejects": schemas.REJECTS,
}


class PartWriter:
    """Writes the Parquet files of one part, under temporary names until ``close``."""

    def __init__(self, folder: Path, number: int) -> None:
        self._tables = {
            kind: _TableWriter(folder / f"{kind}-{number:05d}.parquet", schema) for kind, schema in SCHEMAS.items()
        }
        self._seen = new_text_set()

    def write(self, rows: Rows, relation: Array, rejects: Sequence[Reject]) -> dict[str, int]:
        """Add the rows of the next block; ``relation`` are the triples' relation ids. Return the rows by table."""
        found = rows.buffers
        self._tables["triples"].add(found.head, relation, found.tail)
        self._tables["types"].add(found.typed, found.type)
        names = _strings(found.name_end, found.name_data, found.name_kind != KIND_FOREIGN)
        self._tables["names"].add(found.named, found.name_kind, names)
        codes, ends, data = self._seen(found.text_code, found.text_check, found.text_end, found.text_data)
        self._tables["texts"].add(codes, _strings(ends, data))
        if rejects:
            files, reasons, texts = (
                strings_of([getattr(r, name) for r in rejects]) for name in ("file", "reason", "text")
            )
            self._tables["rejects"].add(files, np.array([r.line for r in rejects], np.int64), reasons, texts)
        return {"triples": len(found.head), "types": len(found.typed), "names": len(names), "texts": len(codes)}

    def close(self) -> list[Path]:
        """Finish, sync and rename the files; return their paths."""
        return [table.close() for table in self._tables.values()]

    def abort(self) -> None:
        """Remove what was written."""
        for table in self._tables.values():
            table.abort()


class _TableWriter:
    """Gathers columns to row groups. A row group ends with a block, so its size depends on the dump alone."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self._schema = path, schema
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._tables: list[pa.Table] = []
        self._num_rows = 0
        self._group_rows = REJECT_GROUP_ROWS if schema is schemas.REJECTS else ROW_GROUP_ROWS
        self._writer = pq.ParquetWriter(self._temporary, schema, **_encodings(schema))

    def add(self, *columns: Any) -> None:
        table = pa.table(
            [column_of(column) if isinstance(column, np.ndarray) else column for column in columns], schema=self._schema
        )
        if table.num_rows:
            self._tables.append(table)
            self._num_rows += table.num_rows
        if self._num_rows >= self._group_rows:
            self._flush()

    def _flush(self) -> None:
        if self._tables:
            table = pa.concat_tables(self._tables).combine_chunks()
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._tables, self._num_rows = [], 0

    def close(self) -> Path:
        self._flush()
        self._writer.close()
        publish(self._temporary, self.path)
        return self.path

    def abort(self) -> None:
        self._tables = []
        self._writer.close()
        self._temporary.unlink(missing_ok=True)


def column_of(values: Array) -> pa.Array:
    """Return the array's own memory as a column. (``pa.array`` would import pandas: 0.4 s and 40 MB.)"""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def publish(temporary: Path, path: Path) -> None:
    """Sync a file and give it its name."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """Return what makes a table small for little time: of the encodings tried, these were on the front for each column.

    Heads come in runs, which zstd alone takes best; ids byte by byte (BYTE_STREAM_SPLIT) beat a dictionary.
    """
    split = {name: "BYTE_STREAM_SPLIT" for name in ("relation", "tail", "code") if name in schema.names}
    return {"compression": "zstd", "compression_level": 1, "use_dictionary": False, "column_encoding": split or None}


def _strings(ends: Array, data: Array, known: Array | None = None) -> pa.Array:
    """Return strings of which each ends at ``ends`` in ``data``, null where ``known`` is False."""
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    nulls = None if known is None or known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(ends), [nulls, pa.py_buffer(offsets), pa.py_buffer(data)])


def strings_of(texts: Sequence[str]) -> pa.Array:
    """Return a column of texts, as ``column_of`` does."""
    pieces = [text.encode() for text in texts]
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return _strings(ends, np.frombuffer(b"".join(pieces), np.uint8))


TextSet = Callable[[Array, Array, Array, Array], tuple[Array, Array, Array]]


def new_text_set() -> TextSet:
    """Return a function that returns those of a block's texts that it has not seen before: codes, ends and bytes.

    Texts are told apart by code and check: 127 bits. Of two texts with one code both stay, for the reader to notice.
    """
    if has_numba():
        from kgqa_core.graph.dump.text_set import CompiledTextSet

        return CompiledTextSet().add
    seen: set[tuple[int, int]] = set()

    def add(codes: Array, checks: Array, ends: Array, data: Array) -> tuple[Array, Array, Array]:
        kept: list[int] = []
        for row, key in enumerate(zip(codes.tolist(), checks.tolist(), strict=True)):
            if key not in seen:
                seen.add(key)
                kept.append(row)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        pieces: Sequence[Array] = [data[starts[row] : ends[row]] for row in kept]
        lengths = np.array([len(piece) for piece in pieces], np.int64)
        return codes[kept], np.cumsum(lengths), np.concatenate([*pieces, np.empty(0, np.uint8)])

    return add
