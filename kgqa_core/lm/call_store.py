"""The call store: no call is paid twice, whoever was killed meanwhile.

All models and processes share one SQLite file in the home's ``cache/calls``. A call is on the disk when ``put``
returns, so a kill at any point costs at most the calls in flight. The store only saves cost: it may be deleted while no
process uses it. Calls that failed are never in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from kgqa_core.artifacts import cure_of
from kgqa_core.errors import ArtifactError
from kgqa_core.lm.types import Decoding, Generation, Prompt

KEY_VERSION = 1  # raise it when the meaning of a field of Prompt or Decoding moves
PATIENCE = 120.0  # seconds that one process waits for the commits of others
MAX_ASKED = 500  # keys of one query
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)  # the last: an unknown file format
NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "fuse")  # kinds of mounts
TABLE = """CREATE TABLE calls (
    key TEXT PRIMARY KEY, text TEXT, log_prob REAL, num_tokens INTEGER, finished INTEGER, num_prompt_tokens INTEGER,
    seconds REAL, digest TEXT -- of the columns before it, since SQLite itself does not see every damage
) WITHOUT ROWID"""
_log = logging.getLogger(__name__)


def text_key(model: str, prompt: Prompt, decoding: Decoding, index: int) -> str:
    """Return the key (SHA-256, hexadecimal) of a model's text number ``index`` (of a sample or beam).

    Only what shapes the text counts: greedy texts have no seed, and how many samples are drawn changes none.
    """
    shape: list[object] = [decoding.method, decoding.max_new_tokens, list(decoding.stop)]
    if decoding.method == "sample":
        shape += [decoding.temperature, decoding.top_p, decoding.seed]
    elif decoding.method == "beam":
        shape += [decoding.num_beams]
    constraint = None if prompt.constraint is None else prompt.constraint.key
    return _hash(["text", model, prompt.system, prompt.text, constraint, *shape, index])


def score_key(model: str, prompt: Prompt, option: str) -> str:
    """Return the key of the log-likelihood of one option: SHA-256, hexadecimal."""
    return _hash(["score", model, prompt.system, prompt.text, option])


def later_seed(seed: int, first: int) -> int:
    """Return the seed of samples ``first``, ``first`` + 1, … where those before them were drawn earlier.

    Drawing them with the same seed would give the first ones again. 31 bits: what every server takes.
    """
    return seed if first == 0 else int(_hash(["seed", seed, first])[:8], 16) >> 1


def _hash(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps([KEY_VERSION, *parts]).encode()).hexdigest()


class Kept(NamedTuple):
    """A call that went well, and what it cost when it was paid."""

    generation: Generation  # of a scored option: no text, and its log-likelihood
    num_prompt_tokens: int  # of the whole call; samples of one call each have all of it
    seconds: float  # of this text: samples of one call share its seconds


class CallStore:
    """The calls of all models at rest. Safe for threads, for processes at the same time, and after a fork."""

    def __init__(self, folder: Path) -> None:
        """Open the store in ``folder``, or begin one; raises ArtifactError where the disk or another process refuses.

        A damaged store stays where it is, is counted in ``num_damaged``, and a new one takes its place.
        """
        self.folder = folder
        self.num_damaged = 0  # stores, rows and lines that could not be read; their calls are paid again
        self._guard = threading.RLock()
        with self._told():
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "lock").open("a", encoding="utf-8") as stream:  # two would begin, or set aside, at once
                fcntl.flock(stream, fcntl.LOCK_EX)
                self._begin()
                self._take_over()

    def get(self, keys: Iterable[str]) -> dict[str, Kept]:
        """Return what is kept under those of ``keys`` that are known."""
        wanted, found, bad = list(dict.fromkeys(keys)), {}, []
        with self._guard, self._told():
            database = self._connected()
            for start in range(0, len(wanted), MAX_ASKED):
                part = wanted[start : start + MAX_ASKED]
                query = f"SELECT * FROM calls WHERE key IN ({','.join('?' * len(part))})"
                for *row, digest in database.execute(query, part):
                    if digest == _digest(row):
                        key, text, log_prob, num_tokens, finished, *cost = row
                        found[key] = Kept(Generation(text, log_prob, num_tokens, bool(finished)), *cost)
                    else:
                        bad.append((row[0],))
            if bad:
                self._damaged(f"{len(bad)} calls", len(bad))
                with database:
                    database.executemany("DELETE FROM calls WHERE key = ?", bad)
        return found

    def put(self, calls: Mapping[str, Kept]) -> dict[str, Kept]:
        """Keep ``calls``, all or none, on the disk when this returns; return what is kept under their keys from now on.

        Of a call that two processes paid, the text that was kept first stays for good, and both go on with it.

        Raises:
            ArtifactError: the disk is full or refuses.
        """
        rows = [_row(key, kept) for key, kept in calls.items()]
        with self._guard, self._told():
            database = self._connected()
            before = database.total_changes
            with database:
                database.executemany("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", rows)
            num_new = database.total_changes - before
        return dict(calls) if num_new == len(rows) else {**calls, **self.get(calls)}

    def close(self) -> None:
        """End the connection; a forked child may not close its parent's."""
        with self._guard, self._told():
            if self._pid == os.getpid():
                self._database.close()

    def __enter__(self) -> CallStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> None:
        """Open the newest store that is sound.

        A damaged one keeps its name: another process may have it open, and would remove the log of a new store of
        that name when it ends.
        """
        numbers = [int(path.stem.removeprefix("calls-")) for path in self.folder.glob("calls-*.sqlite")]
        self._path = self.folder / f"calls-{max(numbers, default=1)}.sqlite"
        while not self._is_sound():
            self._database.close()
            self._damaged(self._path.name, 1)
            self._path = self.folder / f"calls-{int(self._path.stem.removeprefix('calls-')) + 1}.sqlite"

    def _is_sound(self) -> bool:
        """Connect; say whether this is a store of ours without damage."""
        try:
            self._connect()
            # Machines that share a folder do not share the memory that a write-ahead log needs.
            mode = "DELETE" if _is_on_network(self.folder) else "WAL"
            self._database.execute(f"PRAGMA journal_mode = {mode}")
            if not (tables := self._database.execute("SELECT sql FROM sqlite_master").fetchall()):
                self._database.execute(TABLE)
            check = self._database.execute("PRAGMA quick_check(1)").fetchone()
            return tables in ([], [(TABLE,)]) and check == ("ok",)
        except (sqlite3.Error, UnicodeDecodeError) as problem:
            if not _is_damage(problem):
                raise
            return False

    def _connect(self) -> None:
        self._pid = os.getpid()
        self._database = sqlite3.connect(self._path, timeout=PATIENCE, check_same_thread=False)
        self._database.text_factory = lambda raw: raw.decode("utf-8", "replace")  # else a damaged text stops a query
        self._database.execute("PRAGMA synchronous = FULL")

    def _connected(self) -> sqlite3.Connection:
        if self._pid != os.getpid():
            self._parents = self._database  # a forked child may not even close it
            self._connect()
        return self._database

    def _damaged(self, what: str, number: int) -> None:
        self.num_damaged += number
        _log.warning("%s: %s damaged and left out; what is lost is paid again", self.folder, what)

    def _take_over(self) -> None:
        """Read, once, what an earlier version kept: per model a folder of Parquet files and journals."""
        for path in sorted([*self.folder.glob("*/calls-*.parquet"), *self.folder.glob("*/journal-*.jsonl")]):
            calls: dict[str, Kept] = {}
            bad = 0
            for row in _former_rows(path):
                try:
                    given = Generation(str(row["text"]), row["log_prob"], int(row["num_tokens"]), bool(row["finished"]))
                    kept = Kept(given, int(row["num_prompt_tokens"]), float(row["seconds"]))
                    calls.setdefault(str(row["key"]), kept)
                except (KeyError, TypeError, ValueError):
                    bad += 1
            if bad:
                self._damaged(f"{bad} lines of {path.name}", bad)
            self.put(calls)
            path.rename(path.with_name(f"{path.name}.read"))
            _log.info("%s: %d calls of an earlier version were read into %s", path, len(calls), self._path.name)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what SQLite or the disk says into an error of ours."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError, OSError) as problem:
            cure = cure_of(problem, self.folder) or "Check the disk"
            if _is_damage(problem):
                cure = "Run again: a damaged store is set aside, and what is lost is paid again"
            elif "locked" in str(problem):
                cure = f"Another process writes for longer than {PATIENCE:.0f} s: end it and run again"
            raise ArtifactError(f"the call store in {self.folder} cannot be used: {problem}. {cure}") from problem


def _row(key: str, kept: Kept) -> list[Any]:
    one = kept.generation
    # + 0.0: SQLite does not tell -0.0 from 0.0.
    log_prob = None if one.log_prob is None else float(one.log_prob) + 0.0
    row = [key, one.text, log_prob, int(one.num_tokens), int(one.finished), int(kept.num_prompt_tokens)]
    row.append(float(kept.seconds) + 0.0)
    return [*row, _digest(row)]


def _digest(row: list[Any]) -> str:
    return hashlib.blake2b(repr(row).encode("utf-8", "replace"), digest_size=8).hexdigest()


def _is_damage(problem: Exception) -> bool:
    # SQLite's message quotes a damaged schema, which Python then fails to decode.
    return isinstance(problem, UnicodeDecodeError) or getattr(problem, "sqlite_errorcode", 0) & 0xFF in DAMAGED


def _is_on_network(folder: Path) -> bool:
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return False
    own = [(len(place), kind) for place, kind in mounts if folder.resolve().is_relative_to(place)]
    return max(own, default=(0, ""))[1].startswith(NETWORK)


def _former_rows(path: Path) -> Iterator[Any]:
    """Yield the rows of a Parquet file, or the lines of a journal; None for those that are torn."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            yield from pq.read_table(path, partitioning=None).to_pylist()
        except (pa.ArrowException, OSError):
            yield None
        return
    for line in path.read_bytes().splitlines():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            yield None
