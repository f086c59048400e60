"""Files that a run reads: their hashes, and where those of object storage lie in a home.

Nothing here fetches them: ``tasks.objects`` does.

``fetched/ID/SCHEME/BUCKET/KEY`` is an input, a file or a folder. ``fetched/ID/note.json`` says what is known of each
file: ETag (with gs:// the generation), size and time there; size and time here.
"""

from __future__ import annotations

import errno
import logging
import stat
import time
from pathlib import Path
from typing import Any

from kgqa_core.addresses import STORES
from kgqa_core.artifacts import DIGITS, hash_file, hash_json, read_note, write_json
from kgqa_core.config import RunConfig
from kgqa_core.config_base import Section

_log = logging.getLogger(__name__)
SETTLED_NS = 2 * 10**9  # the coarsest clock of a file system: within one tick a file can change unseen
LARGE_BYTES = 2 * 10**9  # from here on hashing takes seconds, and whoever waits is told
FETCHED, NOTE = "fetched", "note.json"
INPUTS = ("graph", "questions", "path", "names", "files", "dev_ids", "plan_files")  # what of a dataset is looked into


def local_inputs(config: RunConfig) -> tuple[RunConfig, list[Path]]:
    """Return a configuration with paths in the place of addresses, and these paths, whether or not they exist."""
    found: dict[Path, None] = {}
    root = config.runtime.home / FETCHED

    def placed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: placed(one) for name, one in value.items()}
        if isinstance(value, Section):
            return value.model_copy(update={n: placed(one) for n in INPUTS if (one := getattr(value, n, None))})
        if isinstance(value, Path):
            if value.parts[0] in [f"{scheme}:" for scheme in STORES]:
                value = root.joinpath(hash_json(str(value))[:DIGITS], value.parts[0][:-1], *value.parts[1:])
            if value.is_relative_to(root):
                found[value] = None
        return value

    dataset = placed(config.dataset)
    return (config.model_copy(update={"dataset": dataset}) if found else config), [*found]


def origin_of(path: Path, home: Path) -> dict[str, str]:
    """Return address and ETag of what was fetched or is to be, the ETag empty then; of any other path nothing."""
    unit, *parts = path.relative_to(home / FETCHED).parts if path.is_relative_to(home / FETCHED) else ("",)
    if not parts:
        return {}
    address = f"{parts[0]}://{'/'.join(parts[1:])}"
    etag = known_files(home / FETCHED / unit).get(address, [""])[0]
    return {"address": address, "etag": str(etag)}


def known_files(unit: Path) -> dict[str, list[Any]]:
    """Return what is known of the files of a folder ``fetched/ID``, by address; nothing where there is no note."""
    found = read_note(unit / NOTE).get("files")
    return found if isinstance(found, dict) else {}


class FileHashes:
    """SHA-256 of external files, remembered in one JSON file by path, size and time: what is unchanged is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = read_note(path)
        self._new: dict[str, list[Any]] = {}
        self._unwritten = self._cost = 0.0  # seconds: of hashing since the note was written, and of writing it then

    def hash(self, file: Path) -> str:
        """Return the hash of ``file``, from memory where its size and modification time are unchanged; or OSError."""
        key, stamp = str(file.resolve()), _stamp(file)
        known = self._known.get(key)
        if isinstance(known, list) and known[:2] == stamp and len(known) == 3:
            return str(known[2])
        if stamp[0] >= LARGE_BYTES:
            _log.info("reading %s (%.1f GB) once, to know its content", file, stamp[0] / 1e9)
        started = time.monotonic()
        digest = hash_file(file)
        if _stamp(file) == stamp and time.time_ns() - stamp[1] > SETTLED_NS:
            self._known[key] = self._new[key] = [*stamp, digest]
            self._unwritten += time.monotonic() - started
            if self._unwritten >= self._cost:  # else many small files would cost more to note than to read
                started = time.monotonic()
                noted = read_note(self._path)  # others write too; a lost race costs a hashing
                write_note(self._path, {**noted, **self._new})
                self._unwritten, self._cost = 0.0, time.monotonic() - started
        return digest


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):  # a device or a pipe may never end
        raise OSError(errno.EINVAL, "it is no file but a folder, a device or a pipe")
    return [status.st_size, status.st_mtime_ns]


def write_note(path: Path, note: object) -> None:
    """Write a note that only spares work; where that fails it is logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, note)
    except OSError as problem:  # a full or read-only disk: the artifacts themselves are whole
        _log.warning("cannot write the note %s: %s", path, problem)
