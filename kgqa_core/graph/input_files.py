"""Rejected rows: counted per file, kept with exact line numbers, and the reason to stop when there are too many."""

from __future__ import annotations

import gzip
import math
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from isal import igzip, isal_zlib

from kgqa_core import schemas
from kgqa_core.errors import InputError, shorten
from kgqa_core.types import Reject

if TYPE_CHECKING:
    from kgqa_core.graph.formats import ChunkReport

MAX_REJECT_TEXT = 500  # characters of a rejected line that are kept
NOT_UTF8 = "not UTF-8"
TRUNCATED = "truncated last line"

NUM_SHOWN = 5


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


def rejects_table(rejects: Sequence[Reject]) -> pa.Table:
    """Return reject records as a table of schemas.REJECTS."""
    columns = [[getattr(reject, name) for reject in rejects] for name in schemas.REJECTS.names]
    return pa.table(columns, schema=schemas.REJECTS)


def check_reject_ratio(reports: Sequence[ChunkReport], *, max_ratio: float, key: str) -> None:
    """Raise InputError when more than ``max_ratio`` of one file's rows were rejected, showing the first five."""
    num_rejects = sum(sum(report.rejects.values()) for report in reports)
    num_rows = num_rejects + sum(report.num_rows for report in reports)
    if num_rejects > max_ratio * num_rows:
        shown: list[Reject] = []
        for table in collect_rejects([reports]):
            shown += [Reject(**row) for row in table.slice(0, NUM_SHOWN).to_pylist()]
            if len(shown) >= NUM_SHOWN:
                break
        raise too_many_rejects(shown, num_rejects=num_rejects, num_rows=num_rows, max_ratio=max_ratio, key=key)


def too_many_rejects(
    first: Sequence[Reject], *, num_rejects: int, num_rows: int, max_ratio: float, key: str
) -> InputError:
    """Return the error that stops a build: how many, the first five as ``file:line: reason: text``, what to do."""
    shown = "\n".join(f"  {r.file}:{r.line}: {r.reason}: {shorten(r.text)}" for r in first[:NUM_SHOWN])
    share, allowed = 100 * num_rejects / num_rows, 100 * max_ratio
    enough = math.ceil(1000 * num_rejects / num_rows) / 1000
    return InputError(
        f"{num_rejects} of {num_rows} rows rejected ({share:.3g} %, allowed {allowed:.3g} %); the first:\n{shown}\n"
        f"Mend them, or allow more: --set {key}={enough:g}"
    )


# ------ Gzip files: small ones read or unpacked, dumps as a stream of blocks of lines that is never unpacked to disk.


COPY_BYTES = 2**20
MAX_LINE_BYTES = 64 * 2**20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # at the start of a file; no text
GZIP_MAGIC = b"\x1f\x8b"
OTHER_MAGICS = {
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"\xfd7zXZ": "xz",
    b"PAR1": "Parquet",
}
DAMAGE: tuple[type[Exception], ...] = (gzip.BadGzipFile, zlib.error, cast(Any, isal_zlib).IsalError)


@contextmanager
def open_maybe_gzip(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to be read as bytes, through gzip where its name ends in .gz.

    Raises InputError, wherever that shows, where the gzip is truncated, damaged or none.
    """
    if path.suffix != ".gz":
        with path.open("rb") as file:
            yield file
        return
    try:
        with gzip.open(path, "rb") as packed:
            yield cast("IO[bytes]", packed)
    except EOFError as error:
        raise InputError(f"{path}: the gzip is truncated. Was the file copied whole?") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: not a usable gzip ({shorten(str(error))}). Was the file copied whole?") from error


def unpack(path: Path, folder: Path) -> Path:
    """Write the text of a gzip into ``folder``, under its name without .gz, and return where; errors as above."""
    plain = folder / path.stem
    with open_maybe_gzip(path) as packed, plain.open("wb") as out:
        shutil.copyfileobj(packed, out, COPY_BYTES)
    return plain


class BlockReader:
    """Reads one large file, gzip of any number of members or plain, in blocks of whole lines.

    A block begins where the one before ends, and ends behind the last line end within ``block_bytes`` (of a longer
    line: within as many more as it takes). So blocks depend on the text alone, and reading may begin at any of them.

    Raises InputError where the file is missing, empty, packed otherwise, truncated or damaged, wherever that shows.
    """

    def __init__(self, path: Path, block_bytes: int) -> None:
        self.path, self.block_bytes = path, block_bytes
        try:
            self._file: IO[bytes] = path.open("rb")
        except OSError as error:
            raise InputError(f"{path}: cannot be opened ({error.strerror}). Is the path right?") from error
        self.file_bytes = path.stat().st_size
        start = self._file.read(6)
        self._file.seek(0)
        packed = next((name for magic, name in OTHER_MAGICS.items() if start.startswith(magic)), None)
        if not start or packed:
            self._file.close()
            what = f"is {packed}" if packed else "is empty"
            raise InputError(f"{path}: {what}; N-Triples are read as plain text or gzip. Download or repack it.")
        is_gzip = start.startswith(GZIP_MAGIC)
        opened: Any = igzip
        self._plain: Any = opened.IGzipFile(fileobj=self._file, mode="rb") if is_gzip else self._file
        self.plain_bytes = 0  # read so far

    def __enter__(self) -> BlockReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def file_position(self) -> int:
        """Bytes of the file read so far."""
        return self._file.tell()

    def blocks(self, skip: int = 0) -> Iterator[bytes]:
        """Yield the blocks from byte ``skip`` of the text on, which is the start of one."""
        while self.plain_bytes < skip and self._read(min(self.block_bytes, skip - self.plain_bytes)):
            continue
        rest = b""
        while text := rest + (read := self._read(self.block_bytes - len(rest))):
            if self.plain_bytes == len(text) and text.startswith(BYTE_ORDER_MARK):
                text = text.replace(BYTE_ORDER_MARK, b"   ", 1)  # white space is legal there
            while not (end := text.rfind(b"\n") + 1) and read:
                if len(text) > self.block_bytes + MAX_LINE_BYTES:
                    raise InputError(
                        f"{self.path}: the line that holds byte {self.plain_bytes} of the text is longer than "
                        f"{MAX_LINE_BYTES} bytes. Is this N-Triples?"
                    )
                text += (read := self._read(self.block_bytes))
            end = end or len(text)  # the last line of the file may lack its end
            rest = text[end:]
            yield text[:end] if rest else text

    def _read(self, count: int) -> bytes:
        """Read ``count`` bytes of the text; fewer at its end only."""
        try:
            text = cast(bytes, self._plain.read(count))
        except EOFError as error:
            raise self._broken("is truncated: the gzip stream ends too early") from error
        except DAMAGE as error:
            raise self._broken(f"is damaged: {error}") from error
        self.plain_bytes += len(text)
        return text

    def _broken(self, what: str) -> InputError:
        return InputError(
            f"{self.path} {what}, about byte {self.file_position} of {self.file_bytes} "
            f"({self.plain_bytes} bytes of text before it). Nothing of it is kept: download it again and compare sizes."
        )
