"""Cutting input files into chunks that are parsed apart from each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from kgqa_core.errors import InputError, shorten
from kgqa_core.graph.formats import ROG_COLUMNS, Chunk, FileFormat, line_cuts, open_parquet
from kgqa_core.graph.gzip_files import unpack
from kgqa_core.graph.rdf import is_by_line


def list_chunks(
    path: Path, *, format: FileFormat, columns: tuple[str, ...], parts: Path, chunk_bytes: int
) -> Iterator[Chunk]:
    """Cut ``path`` into slices of about ``chunk_bytes`` that end at line ends (Parquet: at row groups).

    A gzip of lines is unpacked into ``parts`` first. RDF that cannot be cut at line ends is one slice. Raises
    InputError when a Parquet file is none, or lacks one of the columns.
    """
    if format == "rdf":
        cuts = line_cuts(path, chunk_bytes) if is_by_line(path) else iter([(0, path.stat().st_size)])
    elif format == "parquet":
        cuts = _row_group_cuts(path, columns, chunk_bytes)
    elif format == "rog" and path.suffix == ".parquet":
        cuts = _row_cuts(path, chunk_bytes)
    else:
        path = _plain(path, format, parts)
        cuts = line_cuts(path, chunk_bytes)
    for number, (start, end) in enumerate(cuts):
        part = parts / f"{columns[0]}-{number:06d}.parquet"
        yield Chunk(path=path, format=format, columns=columns, start=start, end=end, part=part)


def _plain(path: Path, format: FileFormat, parts: Path) -> Path:
    if path.suffix != ".gz":
        return path
    if format in ("nsm", "rog"):
        raise InputError(f"{path}: question files are not read from a gzip. Unpack it: gunzip --keep {path.name}")
    return unpack(path, parts)


def _row_group_cuts(path: Path, columns: tuple[str, ...], chunk_bytes: int) -> Iterator[tuple[int, int]]:
    file = _open_with(path, columns)
    start, taken = 0, 0
    for group in range(file.num_row_groups):
        taken += file.metadata.row_group(group).total_byte_size
        if taken >= chunk_bytes or group + 1 == file.num_row_groups:
            yield start, group + 1
            start, taken = group + 1, 0


def _row_cuts(path: Path, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut inside row groups: a row that holds a whole subgraph may take 100 kB, a row group a gigabyte of Python."""
    metadata = _open_with(path, ROG_COLUMNS).metadata
    start = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        end = start + group.num_rows
        step = max(1, group.num_rows * chunk_bytes // max(group.total_byte_size, 1))
        yield from ((first, min(first + step, end)) for first in range(start, end, step))
        start = end


def _open_with(path: Path, columns: tuple[str, ...]) -> pq.ParquetFile:
    file = open_parquet(path)
    missing = [column for column in columns if column not in file.schema_arrow.names]
    if missing:
        raise InputError(
            f"{path}: no column {missing[0]!r}; the columns are {shorten(file.schema_arrow.names)}. "
            f"A Parquet file needs the columns {', '.join(columns)}: rename them and run again."
        )
    return file
