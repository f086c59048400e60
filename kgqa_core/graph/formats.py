"""Graph files, read chunk by chunk: what a format is, what became of a chunk, and the formats of lines and columns.

A chunk is a slice of one file that is parsed apart from the others, in this process or in any that sees the same
folders: memory stays flat. ``parse`` writes its rows and its rejects beside the other parts. A module of their own have
``nsm`` and ``paths``; ``config_base.GRAPH_FORMATS`` names them all. RDF is read by ``dump``.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.artifacts import written_whole
from kgqa_core.config_base import GRAPH_FORMATS, Layout, open_entry
from kgqa_core.errors import InputError, shorten
from kgqa_core.graph import input_files
from kgqa_core.graph.header import FirstLine, ends_empty, guess_columns
from kgqa_core.types import Reject

TRIPLE_COLUMNS = ("head", "relation", "tail")
NAME_COLUMNS = ("label", "name")

NOT_JSON = "not JSON"
NOT_AN_OBJECT = "not a JSON object"
EMPTY_FIELD = "empty field"
WRONG_FIELDS = "wrong number of fields"
BAD_QUOTES = "malformed quotes"
UNDECODED = re.compile("[\udc80-\udcff]")
MARK_INSIDE = "byte order mark inside the file"
PLAIN = Layout()
FIRST_BYTES = 2**20  # of a file: the first line is looked for there
csv.field_size_limit(input_files.MAX_LINE_BYTES)  # of this process; by default 131,072 characters


@dataclass(frozen=True, slots=True)
class Fields:
    """Where the lines of one file, or the rows of a Parquet file, hold what is read of them."""

    places: tuple[int, ...]  # of the fields that are read, from 0 on
    width: int = 3  # fields of a line
    separator: str = ""
    has_header: bool = False  # does the first line name them?


@dataclass(frozen=True, slots=True)
class Chunk:
    """One slice of one file, and where its rows go."""

    path: Path
    format: str
    columns: tuple[str, ...]  # what the fields of a row are, in order
    start: int  # first byte; of a Parquet file the first row group, or row: as the format cuts
    end: int  # one past the last
    part: Path  # Parquet file that receives the rows; rejects go to ``rejects_part``
    fields: Fields = Fields((0, 1, 2))

    @property
    def name(self) -> str:
        """What to call it in errors."""
        unit = "row groups" if self.format == "parquet" else "rows" if self.path.suffix == ".parquet" else "bytes"
        return f"{self.path}, {unit} {self.start} to {self.end}"

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


def line_cuts(path: Path, columns: tuple[str, ...], chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (first byte, one past the last) of slices of about ``chunk_bytes`` that end at line ends."""
    size, most = path.stat().st_size, input_files.MAX_LINE_BYTES
    with path.open("rb") as file:
        input_files.require_text(file.peek(), path)
        start = 0
        while start < size:
            file.seek(min(start + chunk_bytes, size))
            if len(file.readline(most + 1)) > most:  # the rest of the line that the cut fell into
                raise InputError(
                    f"{path}: the line that holds byte {file.tell()} of the text is longer than {most} bytes. "
                    "Do its lines end in a line feed?"
                )
            yield start, file.tell()
            start = file.tell()


@dataclass(frozen=True, slots=True)
class GraphFormat:
    """A format of graph files. Its functions are importable, so that other processes can call them, too."""

    example: str  # a line as it should look, for whoever gave a file without one
    parse: Callable[[Chunk], ChunkReport]  # writes a chunk's rows and rejects
    cut: Callable[[Path, tuple[str, ...], int], Iterator[tuple[int, int]]] = line_cuts  # (file, columns, bytes)
    find: Callable[[Path, tuple[str, ...], Layout], Fields] | None = None  # where a file's columns are
    unpacks: bool = False  # is a gzip unpacked before it is cut?
    parser_of: Callable[[Path], Any] = lambda path: None  # (file) -> ``nsm.Parse``, of lines that bring a subgraph each


def open_format(name: str) -> GraphFormat:
    """Return the format of ``config_base.GRAPH_FORMATS`` that has this name; ConfigError where none has."""
    found: GraphFormat = open_entry(GRAPH_FORMATS, name, what="graph format")
    return found


def list_chunks(
    path: Path, *, format: str, columns: tuple[str, ...], parts: Path, chunk_bytes: int, layout: Layout = PLAIN
) -> list[Chunk]:
    """Cut ``path`` into chunks of about ``chunk_bytes``, whose parts lie in ``parts``; a gzip may be unpacked there.

    Raises InputError when a Parquet file is none, a file lacks a column, or its first line may be a header.
    """
    opened = open_format(format)
    if opened.unpacks and path.suffix == ".gz":
        path = input_files.unpack(path, parts)
    fields = opened.find(path, columns, layout) if opened.find else Fields((0, 1, 2))
    return [
        Chunk(path, format, columns, start, end, parts / f"{columns[0]}-{number:06d}.parquet", fields)
        for number, (start, end) in enumerate(opened.cut(path, columns, chunk_bytes))
    ]


RawReject = tuple[int, str, str]  # line inside the chunk (1-based), reason, text
Value = TypeVar("Value")
ReadRows = tuple[list[tuple[int, Value]], list[RawReject], int, int]
"""(line inside the chunk, what it says) of the usable lines; the rejects; how many lines there are, how many blank."""


def write_rows(
    chunk: Chunk, table: pa.Table, rejects: list[RawReject], *, num_lines: int, num_blank: int = 0
) -> ChunkReport:
    """Write a chunk's rows (strings, plus ``position``: their order in the file) and its rejects."""
    with written_whole(chunk.part) as part:
        pq.write_table(table, part, compression="zstd")
    if rejects:
        rows = [Reject(chunk.path.name, line, why, text[: input_files.MAX_REJECT_TEXT]) for line, why, text in rejects]
        with written_whole(chunk.rejects_part) as part:
            pq.write_table(input_files.records_table(rows, schemas.REJECTS), part, compression="zstd")
    return ChunkReport(chunk, num_lines, table.num_rows, num_blank, dict(Counter(reason for _, reason, _ in rejects)))


def listed_part(part: Path) -> Path:
    """Return the Parquet file of what a chunk holds beside its triples, where its format has such.

    Its rows are (label, null) of entities, with or without a triple, and (label, name) of whatever a name is given for.
    """
    return part.with_suffix(".listed.parquet")


# ------ Lines.


def split_lines(data: bytes) -> tuple[list[str], bool]:
    """Return the lines without their ends, and whether the last one was ended; what is no UTF-8 are lone surrogates."""
    lines = data.removesuffix(b"\n").decode("utf-8", "surrogateescape").split("\n")  # U+2028 in a name ends no line
    return [line.removesuffix("\r") for line in lines], data.endswith(b"\n")


def read_lines(chunk: Chunk, parse: Callable[[int, str], Value | str | None], *, unfinished: str) -> ReadRows[Value]:
    """Read a chunk line by line.

    ``parse``: from a line and its number inside the chunk to what it says, why it cannot be used, or None where nothing
    is in it. ``unfinished``: its reason where a last line was cut off.
    """
    lines, complete = split_lines(input_files.read_slice(chunk.path, chunk.start, chunk.end))
    usable: list[tuple[int, Value]] = []
    rejects: list[RawReject] = []
    for number, line in enumerate(lines, 1):
        if UNDECODED.search(line):
            shown = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            rejects.append((number, input_files.NOT_UTF8, shown))
            continue
        if not line.strip():
            continue
        found = MARK_INSIDE if line.startswith("\ufeff") else parse(number, line)
        if isinstance(found, str):
            cut_off = found == unfinished and number == len(lines) and not complete
            rejects.append((number, input_files.TRUNCATED if cut_off else found, line))
        elif found is not None:
            usable.append((number, found))
    return usable, rejects, len(lines), len(lines) - len(usable) - len(rejects)


def _find_in_lines(separator: str, quotes: bool, path: Path, columns: tuple[str, ...], layout: Layout) -> Fields:
    """Return where a file of lines has its columns; InputError where nobody can tell whether its first line is one."""
    separator = layout.delimiter or separator
    lines = first_fields(path, separator, quotes, most=2)
    first = lines[0] if lines else FirstLine(0, "", [])
    rows = [_split(row, separator, quotes) or [] for row in first.text.split("\r")]
    whole_rows = [row for row in rows if len(row) >= len(columns) and all(field.strip() for field in row)]
    if len(whole_rows) > 1:
        raise InputError(f"{path}: its lines end in carriage returns alone. Try tr '\\r' '\\n' < {path.name} > new.txt")
    is_header = layout.header
    if is_header is None:
        is_header = first.fields == list(columns) or any(isinstance(column, str) for column in layout.columns)
    if columns == TRIPLE_COLUMNS and (guess := guess_columns(first.fields)):
        _require_clear_header(path, first, guess, layout, is_header)
    named = first if is_header else None
    if len(lines) == 2 and len(first.fields) < len(TRIPLE_COLUMNS) == len(columns) and layout.header is not False:
        named = lines[1] if guess_columns(lines[1].fields) else named  # below a note
    if named and named.number > 1:
        raise InputError(f"{path}: its columns are named in line {named.number}. Remove the lines before it.")
    if columns == TRIPLE_COLUMNS and not layout.columns and ends_empty([line.fields for line in lines]):
        raise InputError(f"graph file: {path.name}:{first.number}: an empty last column: give it columns: [1, 2, 3]")
    places = _places(path, layout.columns, first.fields) if layout.columns and lines else tuple(range(len(columns)))
    return Fields(places, len(first.fields) if layout.columns else len(columns), separator, is_header)


def _require_clear_header(
    path: Path, first: FirstLine, guess: tuple[int, ...], layout: Layout, is_header: bool
) -> None:
    """Raise InputError where the first line, a header by ``guess_columns``, has to be explained."""
    if first.text.startswith("?") and layout.header is not False:
        raise InputError(f"{path}: results of SPARQL as TSV: quotes and languages stand around the texts. Ask for CSV")
    names, in_order = first.fields, guess == (0, 1, 2)
    # A header is in doubt where it names its columns in another order; any other line where nobody said what it is.
    in_doubt = not in_order if is_header else layout.header is None
    if layout.columns or not in_doubt:
        return
    if in_order and len(names) == len(guess):
        cure = "header: true"
    elif len(set(names)) < len(names):  # columns of one name are told apart by their place
        cure = f"header: true, columns: [{', '.join(str(place + 1) for place in guess)}]"
    else:
        cure = f"columns: [{', '.join(names[place] for place in guess)}]"
    raise InputError(
        f"graph file: {path.name}:{first.number} looks like a header: {shorten(first.text)}. "
        f"Give dataset.graph {cure} (it names the columns), or header: false (it is a triple)"
    )


def first_fields(path: Path, separator: str, quotes: bool, most: int = 1) -> list[FirstLine]:
    """Return the first ``most`` lines of a file, or gzip, that are not blank; none where it is empty."""
    with path.open("rb") as file, input_files.open_maybe_gzip(file, is_gzip=path.suffix == ".gz") as text:
        start = text.read(FIRST_BYTES)
    input_files.require_text(start, path)
    lines, _ = split_lines(start.removeprefix(input_files.BYTE_ORDER_MARK))
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if filled and re.fullmatch('(?i)"?sep=.?"?', filled[0][1]):
        raise InputError(f"{path}: its first line, {filled[0][1]}, is for spreadsheets. Remove it")
    return [FirstLine(number, line, _split(line, separator, quotes) or []) for number, line in filled[:most]]


def _places(path: Path, columns: Sequence[str | int], names: Sequence[str]) -> tuple[int, ...]:
    """Return the places, from 0 on, of columns that are given by name or by place from 1 on."""
    known: dict[str | int, int] = {key: n for n, name in enumerate(names) for key in (n + 1, name)}
    if missing := [column for column in columns if column not in known]:
        cure = "Say which hold head, relation and tail: dataset.graph.columns, such as [subject, predicate, object]"
        if columns == NAME_COLUMNS:
            cure = f"Its columns are to be called {', '.join(NAME_COLUMNS)}"
        raise InputError(f"{path}: no column {missing[0]!r}; the columns are {shorten(list(names))}. {cure}")
    if twice := [column for column in columns if names.count(column) > 1]:
        cure = "Say by place which are meant, from 1 on: dataset.graph.columns, such as [1, 3, 2]"
        raise InputError(f"{path}: several columns are called {twice[0]!r}; they are {shorten(list(names))}. {cure}")
    return tuple(known[column] for column in columns)


def parse_lines(chunk: Chunk, *, quotes: bool = False) -> ChunkReport:
    """Parse lines of fields: at once where nothing is wrong with any, else line by line, so that each fault is told.

    ``quotes``: may fields be quoted, as in CSV? A quoted field ends in its line.
    """
    data = input_files.read_slice(chunk.path, chunk.start, chunk.end)
    begin = int(chunk.start == 0 and chunk.fields.has_header)
    fields = None if quotes and b'"' in data else _read_fields(data, chunk, skip=begin)
    if fields is not None:
        first = chunk.start + begin + 1
        table = fields.append_column("position", pa.array(range(first, first + fields.num_rows), pa.int64()))
        return write_rows(chunk, table, [], num_lines=begin + table.num_rows, num_blank=begin)
    return _parse_each(chunk, quotes)


def _read_fields(data: bytes, chunk: Chunk, *, skip: int) -> pa.Table | None:
    """Return the columns of all lines after the first ``skip``; None where one has a fault, or is blank."""
    if data.count(b"\r") != data.count(b"\r\n") or input_files.BYTE_ORDER_MARK in data:  # the reader eats these
        return None
    names, wanted = [str(place) for place in range(chunk.fields.width)], [str(place) for place in chunk.fields.places]
    options = (
        pacsv.ReadOptions(use_threads=False, block_size=max(len(data), 1), column_names=names, skip_rows=skip),
        pacsv.ParseOptions(delimiter=chunk.fields.separator, quote_char=False, ignore_empty_lines=False),
        pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), include_columns=wanted),
    )
    try:
        table = pacsv.read_csv(pa.BufferReader(data), *options).combine_chunks().rename_columns(chunk.columns)
    except pa.ArrowInvalid:
        return None
    return table if pc.all(_are_filled(table)).as_py() else None


def _are_filled(table: pa.Table) -> pa.ChunkedArray:
    return reduce(pc.and_, [pc.not_equal(pc.utf8_trim_whitespace(column), "") for column in table.columns])


def _parse_each(chunk: Chunk, quotes: bool) -> ChunkReport:
    layout = chunk.fields

    def parse(number: int, line: str) -> tuple[object, ...] | str | None:
        if layout.has_header and chunk.start + number == 1:
            return None
        fields = _split(line, layout.separator, quotes)
        if fields is None:
            return BAD_QUOTES
        if len(fields) != layout.width:
            return WRONG_FIELDS
        wanted = [fields[place] for place in layout.places]
        return (*wanted, chunk.start + number) if all(map(str.strip, wanted)) else EMPTY_FIELD

    rows, rejects, num_lines, num_blank = read_lines(chunk, parse, unfinished=WRONG_FIELDS)
    table = input_files.texts_table([row for _, row in rows], (*chunk.columns, "position"))
    return write_rows(chunk, table, rejects, num_lines=num_lines, num_blank=num_blank)


def _split(line: str, separator: str, quotes: bool) -> list[str] | None:
    """Split one line; None where its quotes do not close (a CSV field with a line break in it, say)."""
    if not quotes or '"' not in line:
        return line.split(separator)
    try:
        return next(csv.reader([line], strict=True, delimiter=separator))
    except csv.Error:
        return None


def format_of_lines(example: str, separator: str, *, quotes: bool = False) -> GraphFormat:
    """Return a format whose lines hold fields, which may stand in ``quotes`` as in CSV, but end in their line."""
    find = partial(_find_in_lines, separator, quotes)
    return GraphFormat(example, partial(parse_lines, quotes=quotes), find=find, unpacks=True)


WIKIMOVIES = format_of_lines("Rear Window|directed_by|Alfred Hitchcock", "|")
TSV = format_of_lines("head<TAB>relation<TAB>tail", "\t")
CSV = format_of_lines('head,relation,"tail, with a comma"', ",", quotes=True)


# ------ Parquet: columns head, relation, tail, or what the layout calls them.


def open_parquet(path: Path, columns: tuple[str, ...] = ()) -> pq.ParquetFile:
    """Open a Parquet file; InputError where it is none, or lacks one of ``columns``."""
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a name that is no UTF-8
        raise InputError(f"{path}: no readable Parquet file ({shorten(str(error))}). Is its format right?") from error
    _places(path, columns, file.schema_arrow.names)
    return file


def _row_group_cuts(path: Path, columns: tuple[str, ...], chunk_bytes: int) -> Iterator[tuple[int, int]]:
    file = open_parquet(path)
    start, taken = 0, 0
    for group in range(file.num_row_groups):
        taken += file.metadata.row_group(group).total_byte_size
        if taken >= chunk_bytes or group + 1 == file.num_row_groups:
            yield start, group + 1
            start, taken = group + 1, 0


def _parse_row_groups(chunk: Chunk) -> ChunkReport:
    file = open_parquet(chunk.path)
    before = sum(file.metadata.row_group(group).num_rows for group in range(chunk.start))
    wanted = [file.schema_arrow.names[place] for place in chunk.fields.places]
    try:
        table = file.read_row_groups(list(range(chunk.start, chunk.end)), columns=wanted)
        texts = pa.table([input_files.column_texts(table[column]) for column in wanted], names=list(chunk.columns))
        kept = _are_filled(texts).combine_chunks()  # of no row there is no chunk, which ends the process in pyarrow
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
        raise InputError(f"{chunk.path}: columns must hold text, numbers or dates: {shorten(str(error))}") from error
    bad = pc.indices_nonzero(pc.invert(kept)).to_pylist()
    rejects = [(row + 1, EMPTY_FIELD, "\t".join(str(column[row]) for column in texts.columns)) for row in bad]
    rows = texts.append_column("position", pa.array(range(before, before + table.num_rows), pa.int64())).filter(kept)
    return write_rows(chunk, rows, rejects, num_lines=table.num_rows)


PARQUET = GraphFormat(
    "columns head, relation, tail",
    _parse_row_groups,
    _row_group_cuts,
    lambda path, want, layout: Fields(_places(path, layout.columns or want, open_parquet(path).schema_arrow.names)),
)
