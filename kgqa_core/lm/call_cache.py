"""The call cache: no call is paid twice, whoever was killed meanwhile.

One folder per model. Every process appends to a journal of its own (``journal-*.jsonl``, each line on the disk before
it counts). Journals whose process is gone are compacted into one Parquet file (``calls-<hash of content>.parquet``)
under the folder's lock: the new file is there before anything that it replaces is removed, so a kill at any point costs
at most the call in flight. The cache only saves cost; it may be deleted at any time. Failures are never kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import cure_of, written_whole
from kgqa_core.errors import ArtifactError
from kgqa_core.lm.call_journal import PATTERN, Journal, dead_journal, read_journal
from kgqa_core.lm.call_record import CallRecord, from_table, to_table
from kgqa_core.schemas import CALLS

MAX_PARTS = 8  # Parquet files that lie side by side before they become one
_log = logging.getLogger(__name__)


class CallCache:
    """The calls of one model at rest, and those of this process.

    Opening reads all that there is, and compacts what dead processes left. Safe for threads; a forked child begins a
    journal of its own.
    """

    def __init__(self, folder: Path, model: str) -> None:
        """Open the part of ``folder`` that belongs to ``model``; raises ArtifactError where it cannot be used."""
        slug = re.sub(r"[^\w.-]+", "_", model, flags=re.ASCII)[:64]
        digest = hashlib.sha256(model.encode()).hexdigest()[:16]  # keeps apart what the slug merges
        self.folder = folder / f"{slug}-{digest}"
        self.num_torn = 0  # lines that a kill or a bad disk cut; their calls are paid again
        self.num_damaged = 0  # Parquet files that cannot be read
        self._records: dict[str, CallRecord] = {}
        self._journal: Journal | None = None
        self._guard = threading.Lock()
        with self._told():
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                self._read()
                self._compact()

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: str) -> CallRecord | None:
        """Return what was kept under ``key``."""
        return self._records.get(key)

    def put(self, records: Mapping[str, CallRecord]) -> None:
        """Keep ``records``: on the disk when this returns. What is known already is not kept again.

        Raises:
            ArtifactError: the disk is full or refuses.
        """
        with self._guard, self._told():
            new = {key: record for key, record in records.items() if key not in self._records}
            if not new:
                return
            if self._journal is None or self._journal.pid != os.getpid():
                with self._locked():
                    self._journal = Journal(self.folder)
            self._journal.append(new)
            self._records.update(new)

    def close(self) -> None:
        """End this process's journal and compact it; the cache can be read on."""
        with self._guard, self._told():
            journal, self._journal = self._journal, None
            if journal is not None and journal.pid == os.getpid():
                journal.close()
                with self._locked():
                    self._compact()

    def __enter__(self) -> CallCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        """Load everything, files before journals: of calls that two processes paid, the one kept first counts."""
        for path in sorted(self.folder.glob("calls-*.parquet")):
            for key, record in self._read_part(path):
                self._records.setdefault(key, record)
        for path in sorted(self.folder.glob(PATTERN)):
            records, num_torn = read_journal(path)
            self.num_torn += num_torn
            for key, record in records.items():
                self._records.setdefault(key, record)
        if self.num_torn:
            _log.warning("%s: %d torn lines left out; their calls are paid again", self.folder, self.num_torn)

    def _read_part(self, path: Path) -> list[tuple[str, CallRecord]]:
        """Return the rows of a Parquet file; a damaged one is set aside, with a warning, and its calls paid again."""
        try:
            table = pq.read_table(path, partitioning=None)
            if not table.schema.equals(CALLS):
                raise ValueError(f"its columns are {', '.join(table.column_names)}")
            return list(from_table(table))
        except (pa.ArrowException, ValueError, OSError) as problem:
            self.num_damaged += 1
            _log.warning("%s cannot be read (%s); it is set aside and its calls are paid again", path, problem)
            with suppress(OSError):
                path.rename(path.with_suffix(".damaged"))
            return []

    def _compact(self) -> None:
        """Write what dead processes left into one file, then remove it; call it with the folder's lock held.

        What is in a file already stays as it is there: of a call that two processes paid, one text is kept for good.
        """
        own = None if self._journal is None else self._journal.path
        with ExitStack() as locks:
            journals = [path for path in sorted(self.folder.glob(PATTERN)) if path != own]
            dead = [path for path in journals if locks.enter_context(dead_journal(path))]
            for rubble in self.folder.glob(".calls-*.partial"):  # only who holds the lock writes one
                rubble.unlink(missing_ok=True)
            if not dead:
                return
            parts = sorted(self.folder.glob("calls-*.parquet"))
            merged = parts if len(parts) >= MAX_PARTS else []
            records = {key: record for path in merged for key, record in self._read_part(path)}
            known = {key for path in parts if path not in merged for key, _ in self._read_part(path)} | set(records)
            for path in dead:
                for key, record in read_journal(path)[0].items():
                    if key not in known:
                        records.setdefault(key, record)
            written = self._write_part(records) if records else None
            for path in (*dead, *merged):
                if path != written:
                    path.unlink(missing_ok=True)

    def _write_part(self, records: dict[str, CallRecord]) -> Path:
        sink = pa.BufferOutputStream()
        pq.write_table(to_table(records), sink, compression="zstd")
        content = sink.getvalue().to_pybytes()
        path = self.folder / f"calls-{hashlib.sha256(content).hexdigest()[:24]}.parquet"
        with written_whole(path) as partial, partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        return path

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("a", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what the disk says into an error of ours."""
        try:
            yield
        except OSError as problem:
            cure = cure_of(problem, self.folder) or "Check the disk"
            raise ArtifactError(f"the call cache in {self.folder} cannot be used: {problem}. {cure}") from problem
