"""The call store: no call is paid twice, whoever was killed meanwhile."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kgqa_core.addresses import mount_of
from kgqa_core.artifacts import cure_of
from kgqa_core.errors import ArtifactError
from kgqa_core.lm.types import Decoding, Generation, Prompt

KEY_VERSION = 1  # raise it when the meaning of a field of Prompt or Decoding moves
PATIENCE = 120.0  # seconds that one process waits for the commits of others
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
        shape += [decoding.temperature, 1.0, decoding.seed]  # 1.0: all of the probability mass
    elif decoding.method == "beam":
        shape += [decoding.num_beams]
    constraint = None if prompt.constraint is None else prompt.constraint.key
    parts = [KEY_VERSION, "text", model, prompt.system, prompt.text, constraint, *shape, index]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def score_key(model: str, prompt: Prompt, option: str) -> str:
    """Return the key of the log-likelihood of one option: SHA-256, hexadecimal."""
    parts = [KEY_VERSION, "score", model, prompt.system, prompt.text, option]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def later_seed(seed: int, first: int) -> int:
    """Return the seed of samples ``first``, ``first`` + 1, … of a request for ``seed``.

    Seed and number in one: servers draw sample i with seed + i, so 7 and 8 would share all samples but one. 31 bits:
    what every server takes.
    """
    digest = hashlib.sha256(json.dumps([KEY_VERSION, "seed", seed, first]).encode()).hexdigest()
    return int(digest[:8], 16) >> 1


class Kept(NamedTuple):
    """A call that went well, and what it cost when it was paid."""

    generation: Generation  # of a scored option: no text, and its log-likelihood
    num_prompt_tokens: int  # of the whole call; samples of one call each have all of it
    seconds: float  # of this text: samples of one call share its seconds


class CallStore:
    """The calls of all models at rest, in one SQLite file. Safe for threads, and for processes at the same time.

    A call is on the disk when ``put`` returns, so a kill at any point costs at most the calls in flight. Calls that
    failed are never in it. It only saves cost: it may be deleted while no process uses it.
    """

    def __init__(self, folder: Path) -> None:
        """Open the store in ``folder``, or begin one; raises ArtifactError where the disk or another process refuses.

        A damaged store stays where it is, and a new one takes its place: another process may have it open, and would
        remove the log of a new store of that name when it ends.
        """
        if former := [*folder.glob("*/calls-*.parquet"), *folder.glob("*/journal-*.jsonl")]:
            raise ArtifactError(
                f"{former[0].parent} holds calls as an earlier version kept them, which this one cannot read: delete "
                "that folder, and they are paid again"
            )
        self.folder, self._guard = folder, threading.RLock()
        with self._in_use():
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "lock").open("a", encoding="utf-8") as stream:  # two would begin, or set aside, at once
                fcntl.flock(stream, fcntl.LOCK_EX)
                numbers = [path.stem.removeprefix("calls-") for path in folder.glob("calls-*.sqlite")]
                number = max(map(int, filter(str.isdecimal, numbers)), default=1)
                while not self._is_sound(path := folder / f"calls-{number}.sqlite"):
                    self._database.close()
                    self._say_damaged(path.name)
                    number += 1

    def get(self, keys: Iterable[str]) -> dict[str, Kept]:
        """Return what is kept under those of ``keys`` that are known."""
        found, bad = dict[str, Kept](), []
        with self._in_use():
            query = "SELECT * FROM calls WHERE key IN (SELECT value FROM json_each(?))"
            for *row, digest in self._database.execute(query, [json.dumps(list(keys))]):
                if digest == _digest(row):
                    key, text, log_prob, num_tokens, finished, *cost = row
                    found[key] = Kept(Generation(text, log_prob, num_tokens, bool(finished)), *cost)
                else:
                    bad.append((row[0],))
            if bad:
                self._say_damaged(f"{len(bad)} calls")
                with self._database:
                    self._database.executemany("DELETE FROM calls WHERE key = ?", bad)
        return found

    def put(self, calls: Mapping[str, Kept]) -> dict[str, Kept]:
        """Keep ``calls``, all or none, on the disk when this returns; return what is kept under their keys from now on.

        Of a call that two processes paid, the text that was kept first stays for good, and both go on with it. Raises
        ArtifactError where the disk is full or refuses.
        """
        rows = []
        for key, (one, size, seconds) in calls.items():
            log_prob = None if one.log_prob is None else float(one.log_prob) + 0.0  # SQLite does not tell -0.0 from 0.0
            row = [key, one.text, log_prob, int(one.num_tokens), int(one.finished), int(size), float(seconds) + 0.0]
            rows.append([*row, _digest(row)])
        with self._in_use():
            before = self._database.total_changes
            with self._database:
                insert = "INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
                self._database.executemany(insert, rows)
            num_new = self._database.total_changes - before
        return dict(calls) if num_new == len(rows) else {**calls, **self.get(calls)}

    def __enter__(self) -> CallStore:
        return self

    def __exit__(self, *_: object) -> None:
        with self._in_use():
            self._database.close()

    def _is_sound(self, path: Path) -> bool:
        """Connect to a file; say whether it is a store of ours without damage."""
        try:
            self._database = sqlite3.connect(path, timeout=PATIENCE, check_same_thread=False)
            # Else a damaged text stops a query.
            self._database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self._database.execute("PRAGMA synchronous = FULL")
            # Machines that share a folder do not share the memory that a write-ahead log needs.
            mode = "DELETE" if mount_of(self.folder)[2].startswith(NETWORK) else "WAL"
            self._database.execute(f"PRAGMA journal_mode = {mode}")
            if not (tables := self._database.execute("SELECT sql FROM sqlite_master").fetchall()):
                self._database.execute(TABLE)
            check = self._database.execute("PRAGMA quick_check(1)").fetchone()
            return tables in ([], [(TABLE,)]) and check == ("ok",)
        except (sqlite3.Error, UnicodeDecodeError) as problem:
            if not _is_damage(problem):
                raise
            return False

    def _say_damaged(self, what: str) -> None:
        _log.warning("%s: %s damaged and left out; what is lost is paid again", self.folder, what)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Hold the connection, and turn what SQLite or the disk says into an error of ours."""
        try:
            with self._guard:
                yield
        except (sqlite3.Error, UnicodeDecodeError, OSError) as problem:
            cure = cure_of(problem, self.folder) or "Check the disk"
            if _is_damage(problem):
                cure = "Run again: a damaged store is set aside, and what is lost is paid again"
            elif "locked" in str(problem):
                cure = f"Another process writes for longer than {PATIENCE:.0f} s: end it and run again"
            raise ArtifactError(f"the call store in {self.folder} cannot be used: {problem}. {cure}") from problem


def _digest(row: list[Any]) -> str:
    return hashlib.blake2b(repr(row).encode("utf-8", "replace"), digest_size=8).hexdigest()


def _is_damage(problem: Exception) -> bool:
    # SQLite's message quotes a damaged schema, which Python then fails to decode.
    return isinstance(problem, UnicodeDecodeError) or getattr(problem, "sqlite_errorcode", 0) & 0xFF in DAMAGED
