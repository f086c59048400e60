"""Input files: gzip as a stream, large dumps in blocks of lines, and the rows that are rejected, with their place."""

from __future__ import annotations

import codecs
import gzip
import math
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from isal import igzip, isal_zlib

from kgqa_core import schemas
from kgqa_core.errors import InputError, nearest_beside, shorten
from kgqa_core.profiles import SYNTAXES

if TYPE_CHECKING:
    from kgqa_core.graph.formats import ChunkReport

MAX_REJECT_TEXT = 500  # characters of a rejected line that are kept
NUM_SHOWN = 5  # rejects in an error
NOT_UTF8 = "not UTF-8"
TRUNCATED = "truncated last line"
UNLINKED = ("no answer in the graph", "no topic in the graph", "no entity name in the text")  # of questions
LISTED = re.compile(r'\s*(?:\{\s*"(?!answers"|topics")(\w+)"\s*:\s*)?\[\s*(?:\{|$)')  # one JSON list, or it by its key
COPY_BYTES = 2**20
MAX_LINE_BYTES = 64 * 2**20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # at the start of a file; no text
MADE = re.compile(r"_:[0-9a-f]{16,32}")  # what pyoxigraph calls a blank node without a name: at random
MAGICS = {  # how files begin that are no UTF-8
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    b"(\xb5/\xfd": "Zstandard",
    b"\xfd7zXZ": "xz",
    b"PAR1": "Parquet",
    b"\xff\xfe": "UTF-16",  # its zero bytes are UTF-8: most of its lines would pass
    b"\xfe\xff": "UTF-16",
}
START_BYTES = 64  # in which a file shows what it is
WIDE_BYTES = 16  # in which it shows that it is UTF-16: keys stand before letters that are not Latin
DAMAGE: tuple[type[Exception], ...] = (EOFError, gzip.BadGzipFile, zlib.error, cast(Any, isal_zlib).IsalError)


@contextmanager
def open_maybe_gzip(file: IO[bytes], *, is_gzip: bool) -> Iterator[IO[bytes]]:
    """Read an open file through gzip, of any number of members, where it is one.

    Raises InputError, wherever that shows, where the gzip is truncated, damaged or none.
    """
    try:
        yield cast(Any, igzip).IGzipFile(fileobj=file, mode="rb") if is_gzip else file
    except DAMAGE as error:
        early = "truncated: the gzip stream ends too early, or a few bytes that are no gzip stand behind it"
        what = early if isinstance(error, EOFError) else f"damaged: {error}"
        raise InputError(
            f"{file.name} is {what}, about byte {file.tell()} of {Path(file.name).stat().st_size}. Nothing of it is "
            "kept. Was the file copied whole? Compare sizes, or download it again."
        ) from error


def require_file(path: Path, *, what: str) -> None:
    """Raise InputError, naming the nearest file beside it, unless ``path`` is a file. ``what``: "graph file", say."""
    if path.is_dir():
        raise InputError(f"{what}: {path} is a folder, not a file. Name the file inside it.")
    if not path.is_file():
        hint = nearest_beside(path) if path.parent.is_dir() else f"; its folder {path.parent} does not exist either"
        raise InputError(f"{what}: {path} does not exist. Check this path{hint}")


def magic_of(start: bytes) -> str | None:
    """Return what a file is that begins like this and is no text; None where it may be one."""
    return next((name for magic, name in MAGICS.items() if start.startswith(magic)), None)


def require_text(start: bytes, path: Path) -> None:
    """Raise InputError where a file that begins like this is packed, or in UTF-16."""
    name = magic_of(start)
    if name == "zip" and path.suffix.lower() in (".xlsx", ".xlsm", ".ods"):
        raise InputError(f"{path} is a spreadsheet. Export its sheet as CSV in UTF-8.")
    with suppress(UnicodeDecodeError):
        codecs.utf_8_decode(start[:START_BYTES])  # the last character may be cut
        # UTF-16 without a mark may pass as UTF-8, too. Of Latin letters every second byte is zero, and no other is.
        even, odd = start[:WIDE_BYTES:2], start[1:WIDE_BYTES:2]
        is_wide = (set(even) == {0} and all(odd)) or (set(odd) == {0} and all(even))
        name = "UTF-16" if is_wide else None
    if name:
        raise InputError(f"{path} is {name}. Repack it as plain UTF-8, or check its format and suffix.")


def read_slice(path: Path, start: int, end: int) -> bytes:
    """Return some bytes of a file, but for the byte order mark that it may begin with."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(end - start)
    return data.removeprefix(BYTE_ORDER_MARK) if start == 0 else data


def read_text(path: Path) -> str:
    """Return the text of a file, but for the byte order mark that it may begin with; InputError: it is not UTF-8."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}: not UTF-8 in line {line} ({shorten(str(error))})") from error


def unpack(path: Path, folder: Path) -> Path:
    """Write the text of a gzip into ``folder``, under its name without .gz, and return where; errors as above."""
    plain = folder / path.stem
    with path.open("rb") as file, open_maybe_gzip(file, is_gzip=True) as packed, plain.open("wb") as out:
        shutil.copyfileobj(packed, out, COPY_BYTES)
    return plain


def read_blocks(path: Path, block_bytes: int, skip: int) -> Iterator[tuple[bytes, int]]:
    """Yield the blocks of whole lines of RDF as N-Triples or N-Quads, and how many of its bytes were read so far.

    A block ends behind the last line end within ``block_bytes`` (of a longer line: within as many more as it takes).
    So blocks depend on the text alone, and reading may begin at any of them: at byte ``skip`` of the text. Raises
    InputError where the file is missing, empty, packed otherwise, truncated or damaged, wherever that shows.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror}). Is the path right?") from error
    with file:
        start = file.read(6)
        file.seek(0)
        packed = magic_of(start)
        if not start or packed not in (None, "gzip"):
            what = f"is {packed}" if packed else "is empty"
            raise InputError(f"{path}: {what}; RDF is read as plain text or gzip. Download or repack it.")
        with open_maybe_gzip(file, is_gzip=packed == "gzip") as stream:
            at, rest = 0, b""
            if (suffix := syntax_of(path)) not in (".nt", ".nq"):
                stream = cast(Any, Rewritten(stream, path, suffix))
            while at < skip and (text := stream.read(min(block_bytes, skip - at))):
                at += len(text)
            while text := rest + (read := stream.read(block_bytes - len(rest))):
                if not at and text.startswith(BYTE_ORDER_MARK):
                    text = text.replace(BYTE_ORDER_MARK, b"   ", 1)  # white space is legal there
                while not (end := text.rfind(b"\n") + 1) and read:
                    if len(text) > block_bytes + MAX_LINE_BYTES:
                        raise InputError(
                            f"{path}: the line that holds byte {at + len(text)} of the text is longer than "
                            f"{MAX_LINE_BYTES} bytes. Is this N-Triples?"
                        )
                    text += (read := stream.read(block_bytes))
                end = end or len(text)  # the last line of the file may lack its end
                rest = text[end:]
                at += end
                yield (text[:end] if rest else text), file.tell()


def syntax_of(path: Path) -> str:
    """Return the suffix of SYNTAXES that says how RDF is written; N-Triples where there is none."""
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    return suffix if suffix in SYNTAXES else ".nt"


# ------ RDF in other syntaxes than N-Triples: Turtle, TriG and RDF/XML.


class Rewritten:
    """The triples of an open file as a stream of N-Triples, written by pyoxigraph; those of all named graphs count.

    A blank node belongs to its file: behind its name, or ``_:unnamed-7`` for the seventh without one, stands a checksum
    of the file's name. A fault leaves open what follows, so it is an error.
    """

    def __init__(self, file: IO[bytes], path: Path, suffix: str) -> None:
        self._lines, self._left = _rewrite(file, path, suffix), bytearray()

    def read(self, size: int) -> bytes:
        """Return so many bytes; fewer at the end. Raises InputError, with the place, where the file has a fault."""
        while len(self._left) < size and (line := next(self._lines, b"")):
            self._left += line
        text = bytes(self._left[:size])
        del self._left[:size]
        return text


def _rewrite(file: IO[bytes], path: Path, suffix: str) -> Iterator[bytes]:
    import pyoxigraph as ox

    form = ox.RdfFormat.from_extension(suffix.removeprefix(".")) or ox.RdfFormat.RDF_XML  # .owl is no name of it
    made: dict[str, int] = {}
    own = f"{zlib.crc32(path.name.encode()):08x}"

    def written(node: object) -> str:
        text = str(node)
        if isinstance(node, ox.Triple):
            return f"<<( {text} )>>"
        if not isinstance(node, ox.BlankNode):
            return text
        return f"_:unnamed-{made.setdefault(text, len(made) + 1)}-{own}" if MADE.fullmatch(text) else f"{text}-{own}"

    if file.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
        file.seek(0)
    try:
        for quad in ox.parse(file, format=form, base_iri="file:///"):
            yield f"{written(quad.subject)} {quad.predicate} {written(quad.object)} .\n".encode()
    except SyntaxError as error:
        place = f":{error.lineno}" if error.lineno else ""
        raise InputError(
            f"{path}{place}: not {form.name} ({shorten(error.msg)}). Mend the file: what follows cannot be told."
        ) from error


# ------ Rejects and tables.


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


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Make a folder, empty even where a killed build left one, and remove it in the end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def rebatch(reader: pa.RecordBatchReader, rows: int) -> Iterator[pa.Table]:
    """Yield tables of exactly ``rows`` rows (the last may be shorter), however the reader cuts its batches."""
    held = reader.schema.empty_table()
    for batch in reader:
        held = pa.concat_tables([held, pa.Table.from_batches([batch])])
        while held.num_rows >= rows:
            yield held.slice(0, rows).combine_chunks()
            held = held.slice(rows)
    if held.num_rows:
        yield held.combine_chunks()


def records_table(records: Sequence[object], schema: pa.Schema) -> pa.Table:
    """Return records, whose fields are called as the columns, as a table."""
    return pa.table([[getattr(one, name) for one in records] for name in schema.names], schema=schema)


def texts_table(rows: Sequence[Sequence[object]], names: Sequence[str]) -> pa.Table:
    """Return rows as a table of texts; the column ``position`` holds numbers."""
    schema = pa.schema([(name, pa.int64() if name == "position" else pa.string()) for name in names])
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return pa.table([list(column) for column in columns], schema=schema)


def column_texts(column: pa.ChunkedArray) -> pa.Array:
    """Return values as texts, "" where one is missing; whole numbers and times are alike whatever their type."""
    texts = column.cast(pa.string()).combine_chunks().fill_null("")
    if pa.types.is_floating(column.type):
        whole = (numbers := column.cast(pa.float64()).combine_chunks()).cast(pa.int64(), safe=False)
        is_whole = pc.equal(whole.cast(pa.float64(), safe=False), numbers)
        texts = pc.case_when(pc.make_struct(is_whole, pc.is_nan(numbers)), whole.cast(pa.string()), "", texts)
    if pa.types.is_decimal(column.type):
        texts = pc.replace_substring_regex(texts, r"^(0)E-\d+$|\.0+$", r"\1")
    if pa.types.is_timestamp(column.type):  # without zeros behind the seconds and, without a zone, of midnight
        zeros = r"( 00:00:00)?\.0+$|(?:\.0+|(\.\d*[1-9])0+)(Z|[+-]\d{4})?$"
        texts = pc.replace_substring_regex(texts, zeros, r"\2\3")
    return texts


def check_rejects(
    rejects: Iterable[pa.Table], *, num_rejects: int, num_rows: int, max_ratio: float, section: str = "dataset.graph"
) -> None:
    """Raise InputError where a larger share of rows than ``max_ratio`` was rejected: how many, the first, what to do.

    Where that is all of them, the format is in doubt. Of the tables no more are read than the first rejects take.
    """
    if num_rejects <= max_ratio * num_rows:
        return
    first = list(islice((row for table in rejects for row in table.slice(0, NUM_SHOWN).to_pylist()), NUM_SHOWN))
    shown = "; ".join(f"{row['file']}:{row['line']}: {row['reason']}: {shorten(row['text'], 80)}" for row in first)
    if num_rejects == num_rows:
        told = f"none of {num_rows} rows can be used"
        cure = _cure_of_all(first, section)
    else:
        percent, enough = 100 * num_rejects / num_rows, math.ceil(1000 * num_rejects / num_rows) / 1000
        told = f"{num_rejects} of {num_rows} rows rejected ({percent:.3g} %, allowed {100 * max_ratio:.3g} %)"
        cure = f"Mend them, or allow more: --set {section}.max_reject_ratio={enough:g}"
    if any(row["reason"] == NOT_UTF8 for row in first):
        cure += ". If they are Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 old > new"
    raise InputError(f"{told}; the first:\n  {shown}\n{cure}")


def _cure_of_all(first: Sequence[dict[str, Any]], section: str) -> str:
    """Return what to do where every row was rejected, by the ``first`` of them."""
    reason = first[0]["reason"]
    if json_list := LISTED.match("".join(row["text"] for row in first)):
        split = f"jq -c '.{json_list[1] or ''}[]' old.json > new.jsonl"  # [1]: the key of the list, where it has one
        return f"Is {first[0]['file']} one JSON list? Make a line of each object: {split}"
    if reason in UNLINKED:
        return "The graph calls things otherwise, or by ids: docs/own-data.md says where names come from"
    cure = f"Is the file what {section} says it is? docs/own-data.md shows the lines of each format"
    if section == "dataset.questions" and reason == "not JSON":
        cure += ', such as {"question": "Who is it?", "answers": ["a name"]} of jsonl'
    elif section == "dataset.graph" and reason == "wrong number of fields":
        cure += ". dataset.graph.columns says which of more fields are a triple: [1, 2, 3]; names have two"
    return cure
