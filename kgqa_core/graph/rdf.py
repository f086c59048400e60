"""RDF through pyoxigraph: N-Triples, N-Quads, Turtle, TriG and RDF/XML, also with .gz behind; the suffix says which.

An IRI is its own label; a literal's label is its lexical value, without language and datatype, so that a date is one
node however it is typed; a blank node's is ``_:`` and its name in the file, or ``_:[7]`` for the seventh that has none.
Triples of all named graphs count alike. ``rdfs:label`` in English, or without a language, is the name; of two the first
in byte order. Labels in other languages are left out.

N-Triples and N-Quads are read in blocks of lines, and a block with a fault again line by line: so each malformed line
is a reject with its number. In the other syntaxes a fault leaves open what follows, and is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO

import pyarrow.parquet as pq
import pyoxigraph as ox

from kgqa_core.errors import InputError, shorten
from kgqa_core.graph.formats import (
    BYTE_ORDER_MARK,
    EMPTY_FIELD,
    NAME_COLUMNS,
    NOT_UTF8,
    TRIPLE_COLUMNS,
    TRUNCATED,
    Chunk,
    ChunkReport,
    GraphFormat,
    RawReject,
    line_cuts,
    listed_part,
    report_chunk,
    texts_table,
)
from kgqa_core.graph.input_files import open_maybe_gzip

SYNTAXES = {
    ".nt": ox.RdfFormat.N_TRIPLES,
    ".nq": ox.RdfFormat.N_QUADS,
    ".ttl": ox.RdfFormat.TURTLE,
    ".trig": ox.RdfFormat.TRIG,
    ".rdf": ox.RdfFormat.RDF_XML,
    ".owl": ox.RdfFormat.RDF_XML,
    ".xml": ox.RdfFormat.RDF_XML,
}
BY_LINE = (".nt", ".nq")
LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
LANGUAGE = "en"
NOT_RDF = "not N-Triples"
NESTED = "a triple inside a triple"
LINES_AT_ONCE = 256
ROWS_AT_ONCE = 2**17
MADE = re.compile(r"[0-9a-f]{16,32}")  # what pyoxigraph calls a blank node without a name: at random


def suffix_of(path: Path) -> str:
    """Return the suffix that says how a file is written; InputError where it is no known one."""
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix.lower() not in SYNTAXES:
        raise InputError(
            f"{path}: the suffix says how RDF is written, and {suffix!r} is none of {', '.join(SYNTAXES)} "
            "(each also with .gz behind). Rename the file."
        )
    return suffix.lower()


def _cut(path: Path, columns: tuple[str, ...], chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut at line ends where a file can be; else it is one slice."""
    if path.suffix != ".gz" and suffix_of(path) in BY_LINE:
        return line_cuts(path, columns, chunk_bytes)
    return iter([(0, path.stat().st_size)])


def parse_rdf_chunk(chunk: Chunk) -> ChunkReport:
    """Write a chunk's triples, its names (to ``formats.listed_part``) and its rejects, some at a time.

    Raises InputError, with the place, where a file that is not read line by line has a fault.
    """
    with (
        open_maybe_gzip(chunk.path) as file,
        _Sink(chunk.part, (*TRIPLE_COLUMNS, "position")) as triples,
        _Sink(listed_part(chunk.part), NAME_COLUMNS) as names,
    ):
        reader = _Reader(chunk, triples, names)
        if suffix_of(chunk.path) in BY_LINE:
            reader.read_lines(file)
        else:
            reader.read_document(file)
    counts = {"num_lines": reader.num_lines, "num_rows": triples.num_rows, "num_blank": reader.num_blank}
    return report_chunk(chunk, reader.rejects, **counts)


FORMAT = GraphFormat(
    "<http://example.org/Ada> <http://example.org/bornIn> <http://example.org/London> .", parse_rdf_chunk, _cut
)


class _Sink:
    """A Parquet file of texts (``position``: a number), written some rows at a time."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._columns, self._rows = columns, list[tuple[object, ...]]()
        self._writer = pq.ParquetWriter(path, texts_table([], columns).schema, compression="zstd")
        self.num_rows = 0

    def add(self, *row: object) -> None:
        self._rows.append(row)
        self.num_rows += 1
        if len(self._rows) == ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(texts_table(self._rows, self._columns))
        self._rows = []

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure == (None, None, None):
            self._flush()
        self._writer.close()


class _Reader:
    """Reads one chunk into two sinks, and keeps what cannot be used."""

    def __init__(self, chunk: Chunk, triples: _Sink, names: _Sink) -> None:
        self._chunk, self._triples, self._names = chunk, triples, names
        self._format = SYNTAXES[suffix_of(chunk.path)]
        self._made: dict[str, int] = {}  # random name of a blank node -> its number
        self._may_be_made = suffix_of(chunk.path) not in BY_LINE  # there all blank nodes have names
        self.rejects: list[RawReject] = []
        self.num_lines = self.num_blank = 0

    def read_lines(self, file: IO[bytes]) -> None:
        """Read the chunk's lines; faulty ones become rejects."""
        lines = _lines(file, self._chunk)
        while block := list(islice(lines, LINES_AT_ONCE)):
            quads = self._whole(block)
            for quad in quads:
                self._add(quad, self.num_lines + 1)
            num_used = len(quads)
            if not quads:
                num_used = sum(self._line(line, number) for number, line in enumerate(block, self.num_lines + 1))
            self.num_lines += len(block)
            self.num_blank += len(block) - num_used

    def _whole(self, block: list[bytes]) -> list[ox.Quad]:
        """Return the triples of a block of lines; none where one has a fault, so that its line number can be told."""
        try:
            quads = list(ox.parse(b"".join(block), format=self._format))
        except SyntaxError:
            return []
        return [] if any(map(_fault, quads)) else quads

    def _line(self, line: bytes, number: int) -> int:
        """Read one line; return 0 where there is nothing in it."""
        try:
            quads = list(ox.parse(line, format=self._format))
        except SyntaxError:
            self.rejects.append((number, _reason(line), line.decode("utf-8", errors="replace").rstrip("\r\n")))
            return 1
        for quad in quads:
            self._add(quad, number)
        return len(quads)

    def read_document(self, file: IO[bytes]) -> None:
        """Read the triples of a whole file."""
        try:
            for quad in ox.parse(file, format=self._format, base_iri="file:///"):
                self.num_lines += 1  # of triples: nothing tells the lines
                self._add(quad, self.num_lines)
        except SyntaxError as error:
            place = f":{error.lineno}" if error.lineno else ""
            raise InputError(
                f"{self._chunk.path}{place}: not {self._format.name} ({shorten(error.msg)}). "
                "Mend the file: what follows cannot be told."
            ) from error

    def _add(self, quad: ox.Quad, number: int) -> None:
        head, relation, tail = quad.subject, quad.predicate.value, quad.object
        if (fault := _fault(quad)) is not None or isinstance(head, ox.Triple) or isinstance(tail, ox.Triple):
            self.rejects.append((number, fault or NESTED, str(quad)))
        elif relation != LABEL or not isinstance(tail, ox.Literal):
            self._triples.add(self._label(head), relation, self._label(tail), self._chunk.start + number)
        elif (tail.language or LANGUAGE).partition("-")[0] == LANGUAGE:
            self._names.add(self._label(head), tail.value)

    def _label(self, node: ox.NamedNode | ox.BlankNode | ox.Literal) -> str:
        if not isinstance(node, ox.BlankNode):
            return node.value
        if not self._may_be_made or not MADE.fullmatch(node.value):
            return f"_:{node.value}"
        return f"_:[{self._made.setdefault(node.value, len(self._made) + 1)}]"


def _fault(quad: ox.Quad) -> str | None:
    """Return why a triple cannot be used."""
    tail = quad.object
    if isinstance(tail, ox.Triple) or isinstance(quad.subject, ox.Triple):
        return NESTED
    return EMPTY_FIELD if isinstance(tail, ox.Literal) and not tail.value.strip() else None


def _lines(file: IO[bytes], chunk: Chunk) -> Iterator[bytes]:
    """Yield the chunk's lines with their ends."""
    file.seek(chunk.start)
    left = chunk.end - chunk.start
    for line in file:
        yield line.removeprefix(BYTE_ORDER_MARK) if left == chunk.end and chunk.start == 0 else line
        left -= len(line)
        if left <= 0 and chunk.path.suffix != ".gz":
            return


def _reason(line: bytes) -> str:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return NOT_UTF8
    return NOT_RDF if line.endswith(b"\n") else TRUNCATED
