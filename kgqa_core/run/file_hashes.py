"""Content hashes of the user's own files, so that a file that did not change is not read again."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from kgqa_core.artifacts import hash_file, write_json

_log = logging.getLogger(__name__)
SETTLED_NS = 2 * 10**9  # the coarsest clock of a file system: within one tick a file can change unseen
LARGE_BYTES = 2 * 10**9  # from here on hashing takes seconds, and whoever waits is told


class FileHashes:
    """Hashes of external files, remembered in one JSON file by path, size and modification time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = self._read()

    def hash(self, file: Path) -> str:
        """Return the SHA-256 of ``file``, from memory where its size and modification time are unchanged.

        Raises:
            OSError: it cannot be read.
        """
        key, stamp = str(file.resolve()), _stamp(file)
        known = self._known.get(key)
        if isinstance(known, list) and known[:2] == stamp and len(known) == 3:
            return str(known[2])
        if stamp[0] >= LARGE_BYTES:
            _log.info("reading %s (%.1f GB) once, to know its content", file, stamp[0] / 1e9)
        digest = hash_file(file)
        if _stamp(file) == stamp and time.time_ns() - stamp[1] > SETTLED_NS:
            self._remember(key, [*stamp, digest])
        return digest

    def _remember(self, key: str, entry: list[Any]) -> None:
        self._known = {**self._read(), key: entry}  # others write too; a lost race costs one more hashing
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._path, self._known)
        except OSError as problem:  # a full or read-only disk: the hash itself is right
            _log.debug("%s is not remembered: %s", key, problem)

    def _read(self) -> dict[str, Any]:
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]
