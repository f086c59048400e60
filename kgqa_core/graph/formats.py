"""Reading triple and name files chunk by chunk (see ``chunks``): memory stays flat, and chunks can be read anywhere.

``parse_chunk`` is pure and importable: it reads one line-aligned slice of one file and writes its rows beside the
other parts. Chunks may therefore be mapped in this process or by any pool that sees the same folders.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.artifacts import written_whole
from kgqa_core.errors import InputError, nearest, shorten

FileFormat = Literal["wikimovies", "tsv", "csv", "parquet", "nsm", "rog", "rdf"]
TRIPLE_COLUMNS = ("head", "relation", "tail")
NAME_COLUMNS = ("label", "name")
ROG_COLUMNS = ("question", "q_entity", "graph")  # that a Parquet file of RoG rows must have

BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # at the start of a file; no text
MAX_REJECT_TEXT = 500  # characters of a rejected line that are kept
NOT_UTF8 = "not UTF-8"
NOT_JSON = "not JSON"
NOT_AN_OBJECT = "not a JSON object"
EMPTY_FIELD = "empty field"
WRONG_FIELDS = "wrong number of fields"
TRUNCATED = "truncated last line"
BAD_QUOTES = "malformed quotes"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One slice of one file, and where its rows go."""

    path: Path
    format: FileFormat
    columns: tuple[str, ...]  # what the fields of a row are, in order
    start: int  # first byte; for Parquet the first row group, of rog the first row
    end: int  # one past the last byte; for Parquet one past the last row group, of rog one past the last row
    part: Path  # Parquet file that receives the rows; rejects go to ``rejects_part``

    @property
    def name(self) -> str:
        """What to call it in errors."""
        return f"{self.path}, {'row groups' if self.format == 'parquet' else 'bytes'} {self.start} to {self.end}"

    @property
    def rejects_part(self) -> Path:
        """The Parquet file (schemas.REJECTS, line numbers counted inside the chunk) of this chunk's rejects."""
        return self.part.with_suffix(".rejects.parquet")


@dataclass(frozen=True, slots=True)
class ChunkReport:
    """What became of one chunk."""

    chunk: Chunk
    num_lines: int  # lines (Parquet: rows) in the chunk, all kinds: what the next chunk's line numbers add
    num_rows: int  # rows kept
    num_blank: int  # blank lines and header lines: neither kept nor rejected
    rejects: dict[str, int]  # reason -> rows rejected


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file; InputError where it is none."""
    try:
        return pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"{path}: not a readable Parquet file ({shorten(str(error))}). Is its format right?"
        ) from error


def parse_chunk(chunk: Chunk) -> ChunkReport:
    """Read one chunk and write its rows (strings, plus ``position``: their order in the file) and its rejects."""
    return write_parts(chunk, _parse_parquet(chunk) if chunk.format == "parquet" else _parse_lines(chunk))


RawReject = tuple[int, str, str]  # line inside the chunk (1-based), reason, text
Parsed = tuple[pa.Table, int, int, list[RawReject]]  # rows, lines, blank lines, rejects


def write_parts(chunk: Chunk, parsed: Parsed) -> ChunkReport:
    """Write a chunk's rows and rejects."""
    table, num_lines, num_blank, rejects = parsed
    with written_whole(chunk.part) as part:
        pq.write_table(table, part, compression="zstd")
    return report_chunk(chunk, rejects, num_lines=num_lines, num_rows=table.num_rows, num_blank=num_blank)


def report_chunk(
    chunk: Chunk, rejects: list[RawReject], *, num_lines: int, num_rows: int, num_blank: int
) -> ChunkReport:
    """Write a chunk's rejects, and return what became of it."""
    if rejects:
        lines, reasons, texts = zip(*rejects, strict=True)
        columns = [
            [chunk.path.name] * len(lines),
            list(lines),
            list(reasons),
            [text[:MAX_REJECT_TEXT] for text in texts],
        ]
        with written_whole(chunk.rejects_part) as part:
            pq.write_table(pa.table(columns, schema=schemas.REJECTS), part, compression="zstd")
    return ChunkReport(
        chunk=chunk,
        num_lines=num_lines,
        num_rows=num_rows,
        num_blank=num_blank,
        rejects=dict(Counter(reason for _, reason, _ in rejects)),
    )


def _parse_lines(chunk: Chunk) -> Parsed:
    lines, complete = read_lines(chunk)
    split = SPLITTERS[chunk.format]
    width = len(chunk.columns)
    columns: list[list[str]] = [[] for _ in chunk.columns]
    positions: list[int] = []
    rejects: list[RawReject] = []
    num_blank = 0
    for number, line in enumerate(lines, 1):
        if isinstance(line, bytes):
            rejects.append((number, NOT_UTF8, line.decode("utf-8", errors="replace")))
            continue
        fields = split(line)
        if not line.strip() or (number == 1 and _is_header(fields, chunk)):
            num_blank += 1
            continue
        reason = _fault(fields, width)
        if reason is None and fields is not None:
            for column, value in zip(columns, fields, strict=True):
                column.append(value)
            positions.append(chunk.start + number)
        else:
            cut_off = reason == WRONG_FIELDS and number == len(lines) and not complete
            rejects.append((number, TRUNCATED if cut_off else str(reason), line))
    arrays = [pa.array(column, pa.string()) for column in columns]
    table = pa.table([*arrays, pa.array(positions, pa.int64())], names=[*chunk.columns, "position"])
    return table, len(lines), num_blank, rejects


def line_cuts(path: Path, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (first byte, one past the last) of slices of about ``chunk_bytes`` that end at line ends."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = 0
        while start < size:
            file.seek(min(start + chunk_bytes, size))
            file.readline()  # on to the end of the line that the cut fell into
            end = file.tell()
            yield start, end
            start = end


def line_blocks(path: Path, block_bytes: int = 8 * 2**20) -> Iterator[tuple[list[str | bytes], bool]]:
    """Yield a file's lines, a block at a time, as ``split_lines`` returns them."""
    for start, end in line_cuts(path, block_bytes):
        yield _read_slice(path, start, end)


def read_lines(chunk: Chunk) -> tuple[list[str | bytes], bool]:
    """Return a chunk's lines as ``split_lines`` does."""
    return _read_slice(chunk.path, chunk.start, chunk.end)


def _read_slice(path: Path, start: int, end: int) -> tuple[list[str | bytes], bool]:
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(end - start)
    return split_lines(data.removeprefix(BYTE_ORDER_MARK) if start == 0 else data)


def split_lines(data: bytes) -> tuple[list[str | bytes], bool]:
    """Return the lines without their ends (undecodable ones as bytes), and whether the last one was ended."""
    complete = data.endswith(b"\n")
    data = data.removesuffix(b"\n")
    try:
        # split, not splitlines: a form feed or U+2028 inside a name ends no line
        return [line.removesuffix("\r") for line in data.decode("utf-8").split("\n")], complete
    except UnicodeDecodeError:
        return [_decode(line.removesuffix(b"\r")) for line in data.split(b"\n")], complete


def _decode(line: bytes) -> str | bytes:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line


def _is_header(fields: list[str] | None, chunk: Chunk) -> bool:
    """Are these, the chunk's first line, exactly the column names? WikiMovies files have no header."""
    return chunk.start == 0 and chunk.format != "wikimovies" and fields == list(chunk.columns)


def _fault(fields: list[str] | None, width: int) -> str | None:
    if fields is None:
        return BAD_QUOTES
    if len(fields) != width:
        return WRONG_FIELDS
    return None if all(map(str.strip, fields)) else EMPTY_FIELD


def _split_csv(line: str) -> list[str] | None:
    """Split one CSV line; None where its quotes do not close (a field with a line break in it, say)."""
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error:
        return None


def _split_tsv(line: str) -> list[str]:
    return line.split("\t")


def _split_wikimovies(line: str) -> list[str]:
    return line.split("|")


SPLITTERS: dict[str, Callable[[str], list[str] | None]] = {
    "csv": _split_csv,
    "tsv": _split_tsv,
    "wikimovies": _split_wikimovies,
}


def _parse_parquet(chunk: Chunk) -> Parsed:
    file = open_parquet(chunk.path)
    before = sum(file.metadata.row_group(group).num_rows for group in range(chunk.start))
    table = file.read_row_groups(list(range(chunk.start, chunk.end)), columns=list(chunk.columns))
    try:
        arrays = [table[column].cast(pa.string()).combine_chunks().fill_null("") for column in chunk.columns]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"{chunk.path}: columns must hold text, numbers or dates: {shorten(str(error))}") from error
    kept = pa.array([True] * table.num_rows, pa.bool_())
    for array in arrays:
        kept = pc.and_(kept, pc.not_equal(pc.utf8_trim_whitespace(array), ""))
    bad = pc.indices_nonzero(pc.invert(kept)).to_pylist()
    rejects = [(row + 1, EMPTY_FIELD, "\t".join(str(array[row]) for array in arrays)) for row in bad]
    positions = pa.array(range(before, before + table.num_rows), pa.int64())
    rows = pa.table([*arrays, positions], names=[*chunk.columns, "position"]).filter(kept)
    return rows, table.num_rows, 0, rejects


def require_file(path: Path, *, what: str) -> None:
    """Raise InputError, naming the nearest file beside it, unless ``path`` is a file. ``what``: "graph file", say."""
    if path.is_file():
        return
    if path.is_dir():
        raise InputError(f"{what}: {path} is a folder, not a file. Name the file inside it.")
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, beside)
    hint = f" Nearest beside it: {near[0]}." if near else ""
    hint = hint if path.parent.is_dir() else f" Its folder {path.parent} does not exist either."
    raise InputError(f"{what}: {path} does not exist.{hint} Check the path in the run's configuration.")
