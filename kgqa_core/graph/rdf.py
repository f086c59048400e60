"""RDF through pyoxigraph: N-Triples, N-Quads, Turtle, TriG and RDF/XML, also with .gz behind; the suffix says which.

An IRI is its own label; a literal's is ``dump_rows.literal_label``; a blank node's is ``_:`` and its name in the file,
or ``_:[7]`` for the seventh that has none.
Triples of all named graphs count alike. ``rdfs:label`` in English, or without a language, is the name; of two the first
in byte order. Labels in other languages are left out.

N-Triples and N-Quads are read in blocks of lines, and a block with a fault again line by line: so each malformed line
is a reject with its number. In the other syntaxes a fault leaves open what follows, and is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq
import pyoxigraph as ox

from kgqa_core.errors import InputError, shorten
from kgqa_core.graph import formats
from kgqa_core.graph.dump_rows import literal_label
from kgqa_core.graph.formats import Chunk, ChunkReport, GraphFormat, RawReject
from kgqa_core.graph.input_files import NOT_UTF8, TRUNCATED

SYNTAXES = {
    ".nt": ox.RdfFormat.N_TRIPLES,
    ".nq": ox.RdfFormat.N_QUADS,
    ".ttl": ox.RdfFormat.TURTLE,
    ".trig": ox.RdfFormat.TRIG,
    **dict.fromkeys((".rdf", ".owl", ".xml"), ox.RdfFormat.RDF_XML),
}
BY_LINE = (".nt", ".nq")
LABEL, LANGUAGE = "http://www.w3.org/2000/01/rdf-schema#label", "en"
LINES_AT_ONCE = 256
ROWS_AT_ONCE = 2**17
MADE = re.compile(r"[0-9a-f]{16,32}")  # what pyoxigraph calls a blank node without a name: at random


def suffix_of(path: Path) -> str:
    """Return the suffix that says how a file is written; InputError where it is no known one."""
    if path.suffix.lower() not in SYNTAXES:
        raise InputError(
            f"{path}: the suffix says how RDF is written, and {path.suffix!r} is none of {', '.join(SYNTAXES)} "
            "(each also with .gz behind). Rename the file."
        )
    return path.suffix.lower()


def _cut(path: Path, columns: tuple[str, ...], chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut at line ends where a file can be; else it is one slice."""
    by_line = suffix_of(path) in BY_LINE
    return formats.line_cuts(path, columns, chunk_bytes) if by_line else iter([(0, path.stat().st_size)])


Found = tuple[int, list[ox.Quad], tuple[str, str] | None]  # last line read, its triples, reason and text of a fault


def parse_rdf_chunk(chunk: Chunk) -> ChunkReport:
    """Write a chunk's triples, its names (to ``formats.listed_part``) and its rejects, some at a time.

    Raises InputError, with the place, where a file that is not read line by line has a fault.
    """
    by_line, made, rejects = suffix_of(chunk.path) in BY_LINE, dict[str, int](), list[RawReject]()

    def label(node: object) -> str:
        if isinstance(node, ox.Literal):
            return literal_label(node.value, node.datatype.value, node.language)
        if not isinstance(node, ox.BlankNode):
            return str(node.value)  # type: ignore[attr-defined]
        if by_line or not MADE.fullmatch(node.value):  # in lines all blank nodes have names
            return f"_:{node.value}"
        return f"_:[{made.setdefault(node.value, len(made) + 1)}]"

    num_lines = num_used = num_rows = 0
    with (
        _open_rows(chunk.part, (*formats.TRIPLE_COLUMNS, "position")) as add_triple,
        _open_rows(formats.listed_part(chunk.part), formats.NAME_COLUMNS) as add_name,
    ):
        for num_lines, quads, fault in (_read_lines if by_line else _read_document)(chunk):
            num_used += len(quads) + (fault is not None)
            if fault:
                rejects.append((num_lines, *fault))
            for quad in quads:
                relation, tail = quad.predicate.value, quad.object
                if why := _why_unusable(quad):
                    rejects.append((num_lines, why, str(quad)))
                elif relation != LABEL or not isinstance(tail, ox.Literal):
                    num_rows += 1
                    add_triple(label(quad.subject), relation, label(tail), chunk.start + num_lines)
                elif (tail.language or LANGUAGE).partition("-")[0] == LANGUAGE:
                    add_name(label(quad.subject), tail.value)
    return formats.report_chunk(chunk, rejects, num_lines=num_lines, num_rows=num_rows, num_blank=num_lines - num_used)


EXAMPLE = "<http://example.org/Ada> <http://example.org/bornIn> <http://x.org/London> ."
FORMAT = GraphFormat(EXAMPLE, parse_rdf_chunk, _cut, unpacks=True, tells_terms=True)


@contextmanager
def _open_rows(path: Path, columns: Sequence[str]) -> Iterator[Callable[..., None]]:
    """Yield what adds a row to a Parquet file of texts (``position``: a number), written some rows at a time."""
    rows: list[tuple[object, ...]] = []

    def add(*row: object) -> None:
        rows.append(row)
        if len(rows) == ROWS_AT_ONCE:
            flush()

    def flush() -> None:
        writer.write_table(formats.texts_table(rows, columns))
        rows.clear()

    with pq.ParquetWriter(path, formats.texts_table([], columns).schema, compression="zstd") as writer:
        yield add
        flush()


def _read_lines(chunk: Chunk) -> Iterator[Found]:
    """Yield what blocks of the chunk's lines hold; of a block with a fault, what each line does."""
    number, form = 0, SYNTAXES[suffix_of(chunk.path)]
    lines = BytesIO(formats.read_slice(chunk.path, chunk.start, chunk.end))
    while block := list(islice(lines, LINES_AT_ONCE)):
        try:
            quads = list(ox.parse(b"".join(block), format=form))
        except SyntaxError:
            quads = []
        if quads and not any(map(_why_unusable, quads)):
            number += len(block)
            yield number, quads, None
            continue
        for line in block:
            number += 1
            try:
                yield number, list(ox.parse(line, format=form)), None
            except SyntaxError:
                text = line.decode("utf-8", errors="replace")
                cut_off = TRUNCATED if not line.endswith(b"\n") else "not N-Triples"
                reason = cut_off if text.encode() == line else NOT_UTF8
                yield number, [], (reason, text.rstrip("\r\n"))


def _read_document(chunk: Chunk) -> Iterator[Found]:
    """Yield the triples of a whole file, numbered: nothing tells the lines."""
    form = SYNTAXES[suffix_of(chunk.path)]
    try:
        for number, quad in enumerate(ox.parse(path=chunk.path, format=form, base_iri="file:///"), 1):
            yield number, [quad], None
    except SyntaxError as error:
        place = f":{error.lineno}" if error.lineno else ""
        raise InputError(
            f"{chunk.path}{place}: not {form.name} ({shorten(error.msg)}). Mend the file: what follows cannot be told."
        ) from error


def _why_unusable(quad: ox.Quad) -> str | None:
    tail = quad.object
    if isinstance(tail, ox.Triple) or isinstance(quad.subject, ox.Triple):
        return "a triple inside a triple"
    return formats.EMPTY_FIELD if isinstance(tail, ox.Literal) and not tail.value.strip() else None
