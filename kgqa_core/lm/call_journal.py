"""The journal of one process: calls appended line by line, on the disk before anybody uses them."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from kgqa_core.lm.call_record import CallRecord, from_line, to_line

PATTERN = "journal-*.jsonl"


class Journal:
    """An open journal. Its lock says that its process lives; the kernel frees it however that ends."""

    def __init__(self, folder: Path) -> None:
        """Begin a journal in ``folder``; call it with the folder's lock held, or another may take it for a dead one."""
        host = "".join(letter for letter in socket.gethostname() if letter.isalnum())[:32]
        self.path = folder / f"journal-{host}-{os.getpid()}-{uuid4().hex[:12]}.jsonl"
        self.pid = os.getpid()  # a forked child has to begin its own
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._size = 0
        _sync_folder(folder)

    def append(self, records: dict[str, CallRecord]) -> None:
        """Write ``records`` and wait until they are on the disk; raises OSError, and then holds what it held before."""
        content = b"".join(to_line(key, record) for key, record in records.items())
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise
        self._size += len(content)

    def close(self) -> None:
        """End it: from now on anybody may compact it."""
        os.close(self._file)


def read_journal(path: Path) -> tuple[dict[str, CallRecord], int]:
    """Return the calls of a journal, and how many of its lines are torn or damaged and left out."""
    records: dict[str, CallRecord] = {}
    num_torn = 0
    for line in path.read_bytes().splitlines():
        entry = from_line(line)
        if entry is None:
            num_torn += 1
        else:
            records.setdefault(*entry)
    return records, num_torn


@contextmanager
def dead_journal(path: Path) -> Iterator[bool]:
    """Hold the lock of a journal whose process is gone, and yield True; yield False where it lives."""
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _sync_folder(folder: Path) -> None:
    """Make a new file's name as durable as its content."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
