"""A dump as a stream of line-aligned blocks of plain text: gzip (one member or many) or plain, never unpacked to disk.

Block k holds the lines that begin in bytes [k B, (k + 1) B) of the plain text, so blocks depend on the text and on B
alone. A block has PADDING bytes behind its text, the first of them a line end: a scanner may look past the text, and
stops there.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, NamedTuple, cast

from isal import isal_zlib

from kgqa_core.errors import InputError
from kgqa_core.graph.formats import BYTE_ORDER_MARK

GZIP_MAGIC = b"\x1f\x8b"
OTHER_MAGICS = {
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"\xfd7zXZ": "xz",
    b"PAR1": "Parquet",
}
DAMAGE: tuple[type[Exception], ...] = (gzip.BadGzipFile, zlib.error, cast(Any, isal_zlib).IsalError)
READ_BYTES = 512 * 1024  # of the file at once; larger is no faster
MAX_LINE_BYTES = 64 * 2**20
TAIL_BYTES = 4096  # read behind a slice at once, to find its last line's end
PADDING = 64  # bytes behind the text of a block
LINE_END = ord("\n")


class Block(NamedTuple):
    """The lines that begin in one slice of the plain text."""

    number: int
    data: bytearray  # the text, then PADDING bytes
    size: int  # bytes of text


class DumpStream:
    """Reads one dump file.

    Raises InputError when the file is missing, empty, packed otherwise, truncated or damaged, wherever that shows.
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
        # The class behind igzip.open: it inflates straight into our buffer, without the lock of the interpreter.
        is_gzip = start.startswith(GZIP_MAGIC)
        self._raw: Any = isal_zlib._GzipReader(self._file, READ_BYTES) if is_gzip else self._file
        self.plain_bytes = 0  # read so far
        self._ended = False
        self._capacity = block_bytes + TAIL_BYTES + PADDING  # bytes of a usual buffer
        self._free: SimpleQueue[bytearray] = SimpleQueue()

    def __enter__(self) -> DumpStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def file_position(self) -> int:
        """Bytes of the file read so far."""
        return self._file.tell()

    def read_into(self, view: memoryview) -> int:
        """Fill ``view`` with plain text; fewer bytes are returned at the end of the stream only."""
        done = 0
        while done < len(view):
            try:
                count = cast(int, self._raw.readinto(view[done:]))
            except EOFError as error:
                raise self._broken("is truncated: the gzip stream ends too early") from error
            except DAMAGE as error:
                raise self._broken(f"is damaged: {error}") from error
            if count == 0:
                self._ended = True
                break
            done += count
        self.plain_bytes += done
        return done

    def _broken(self, what: str) -> InputError:
        return InputError(
            f"{self.path} {what}, about byte {self.file_position} of {self.file_bytes} "
            f"({self.plain_bytes} bytes of text before it). Nothing of it is kept: download it again and compare sizes."
        )

    def blocks(self, first: int = 0) -> Iterator[Block]:
        """Yield the blocks from number ``first`` on; what is before them is read and left."""
        number, carry = first, self._skip(first * self.block_bytes)
        while carry is not None:
            buffer, filled = self._take_buffer(len(carry)), len(carry)
            buffer[:filled] = carry
            begin = self.plain_bytes - filled  # of the buffer's text in the plain text
            slice_end = (number + 1) * self.block_bytes - begin  # in the buffer
            if slice_end > filled:
                filled += self.read_into(memoryview(buffer)[filled:slice_end])
            end = 0 if slice_end <= 0 else buffer.find(b"\n", slice_end - 1, filled) + 1
            if slice_end > 0 and end == 0:
                buffer, filled, end = self._read_line_end(buffer, filled)
            carry = None if self._ended and end == filled else bytes(memoryview(buffer)[end:filled])
            if number == 0 and buffer.startswith(BYTE_ORDER_MARK):
                buffer[: len(BYTE_ORDER_MARK)] = b"   "  # white space is legal there
            buffer[end] = LINE_END
            if end or carry is not None:
                yield Block(number, buffer, end)
            number += 1

    def recycle(self, block: Block) -> None:
        """Let the stream write another block where this one is."""
        if len(block.data) == self._capacity:
            self._free.put(block.data)

    def _take_buffer(self, at_least: int) -> bytearray:
        if at_least + PADDING > self._capacity:
            return bytearray(at_least + self._capacity)
        try:
            return self._free.get_nowait()
        except Empty:
            return bytearray(self._capacity)

    def _read_line_end(self, buffer: bytearray, filled: int) -> tuple[bytearray, int, int]:
        """Read on to the end of the line that a slice ends in; return the buffer, its filled bytes and that end."""
        while not self._ended:
            if filled > self.block_bytes + MAX_LINE_BYTES:
                raise InputError(
                    f"{self.path}: the line that holds byte {self.plain_bytes} of the text is longer than "
                    f"{MAX_LINE_BYTES} bytes. Is this N-Triples?"
                )
            if filled + TAIL_BYTES + PADDING > len(buffer):
                buffer = buffer[:filled] + bytearray(filled + TAIL_BYTES + PADDING)
            count = self.read_into(memoryview(buffer)[filled : filled + TAIL_BYTES])
            end = buffer.find(b"\n", filled, filled + count) + 1
            filled += count
            if end:
                return buffer, filled, end
        return buffer, filled, filled

    def _skip(self, offset: int) -> bytes | None:
        """Read to the first line that begins at ``offset`` or behind it; return what was read of it and behind it."""
        view = memoryview(bytearray(READ_BYTES))
        while self.plain_bytes < offset - 1 and not self._ended:
            self.read_into(view[: offset - 1 - self.plain_bytes])
        while offset and not self._ended:
            rest = bytes(view[: self.read_into(view[:TAIL_BYTES])])
            if (end := rest.find(b"\n") + 1) and (not self._ended or end < len(rest)):
                return rest[end:]
        return None if self._ended else b""
