"""Files that are whole or not there; telling a full or read-only disk from other failures, and what to do about it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from kgqa_core.errors import ArtifactError, KgqaError, shorten

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# How a full disk reads where a library raises an error of its own, or an OSError without a number: safetensors and
# DuckDB; a quota; numpy; DuckDB when it spills; SQLite.
FULL_TEXT = re.compile(
    r"no space left on device|quota exceeded|\d+ requested and \d+ written|failed to offload data"
    r"|database or disk is full",
    re.IGNORECASE,
)
TOO_LARGE_TEXT = re.compile(r"could not write .*file too large", re.IGNORECASE | re.DOTALL)  # DuckDB
REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST})
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a place beside ``path`` for a file or a folder, which gets that name once the context ends well.

    So nobody sees half of it, and work that is done twice, even at the same time, does no harm: of two files the last
    counts, of two folders the first, and equal work gives equal bytes.
    """
    partial = path.with_name(f".{path.name}.{uuid4().hex[:12]}.partial")
    try:
        yield partial
        try:
            partial.replace(path)
        except OSError:
            if not (partial.is_dir() and path.is_dir()):  # else the same work got there first
                raise
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)


def cure_of(problem: Exception, root: Path) -> str | None:
    """Return what a user can do where ``root`` cannot be written, or None where ``problem`` is something else."""
    if is_full(problem):
        free = shutil.disk_usage(_existing(root)).free
        return f"The disk is full ({free / 2**20:.0f} MiB free now). Free some space or set KGQA_HOME to another disk"
    if is_too_large(problem):
        return (
            "A file outgrew what this process (`ulimit -f` shows it) or the file system allows. Raise the limit or set "
            "KGQA_HOME to another disk"
        )
    code = problem.errno if isinstance(problem, OSError) else None
    if code in REFUSED and _is_under(problem, root):
        return "Check the permissions, or set KGQA_HOME to a folder that can be written"
    if code in NO_LOCKS:
        return "The file system has no file locks. Set KGQA_HOME to a local disk"
    return None


def is_full(problem: BaseException) -> bool:
    """Does this error, or one that it was raised from, come from a full disk?"""
    if isinstance(problem, OSError) and problem.errno in FULL:
        return True
    if not isinstance(problem, KgqaError) and FULL_TEXT.search(str(problem)):  # ours quote what users wrote
        return True
    return problem.__cause__ is not None and is_full(problem.__cause__)


def is_too_large(problem: BaseException) -> bool:
    """Does this error, or one that it was raised from, come from a file that may not grow any more?"""
    if isinstance(problem, OSError) and problem.errno == errno.EFBIG:
        return True
    if not isinstance(problem, KgqaError) and TOO_LARGE_TEXT.search(str(problem)):
        return True
    return problem.__cause__ is not None and is_too_large(problem.__cause__)


def _is_under(problem: Exception, root: Path) -> bool:
    """Is ``problem`` about a file of ``root``? An input that may not be read is another matter."""
    name = getattr(problem, "filename", None)
    if not isinstance(name, str | os.PathLike):
        return False
    path = Path(name)  # relative where shutil walks a folder of ours
    return not path.is_absolute() or path.is_relative_to(root) or root.is_relative_to(path)


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


# ------ The artifact store: ``<root>/<stage>/<fingerprint>/`` folders that are either complete or not there.


MANIFEST = "manifest.json"
NOT_CONTENT = frozenset({"tracking.json", MANIFEST})  # hold times: two equal builds differ in them
JOURNAL = "journal"  # a folder in the work folder from which a stage that was killed goes on; no part of the artifact
DIGITS = 16  # hexadecimal digits of a fingerprint: 64 bits, readable in a path
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of an artifact."""

    name: str
    bytes: int
    sha256: str
    rows: int | None = None  # of a Parquet file


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an artifact is made of; its hash is the fingerprint."""

    stage: str
    version: int  # of the stage's code: raised whenever the same input would give other bytes
    config: Mapping[str, Any]  # the stage's own section
    inputs: Mapping[str, str]  # name -> content hash of an artifact or an external file

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the bytes of the artifact."""
        return hash_json(asdict(self))[:DIGITS]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A complete artifact."""

    folder: Path
    recipe: Recipe
    content: str  # hash of the files: later stages depend on this, so a rebuild that ends in equal content ends there
    files: tuple[FileEntry, ...]

    @property
    def fingerprint(self) -> str:
        """The fingerprint under which the artifact is stored."""
        return self.recipe.fingerprint


def hash_json(value: object) -> str:
    """Return the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False, default=dict).encode()).hexdigest()


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, read as a stream."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class ArtifactStore:
    """Artifacts under one root folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, recipe: Recipe) -> Artifact | None:
        """Return the artifact of ``recipe`` if it is complete and every file has its recorded size."""
        return read_artifact(self.root / recipe.stage / recipe.fingerprint)

    def find_content(self, stage: str, content: str) -> Artifact | None:
        """Return a complete artifact of ``stage`` with this content hash, whatever recipe it was made by."""
        for manifest in sorted((self.root / stage).glob(f"*/{MANIFEST}")):
            folder = manifest.parent
            if not folder.suffix and (artifact := read_artifact(folder)) and artifact.content == content:
                return artifact
        return None

    def build(self, recipe: Recipe, write: Callable[[Path], None]) -> tuple[Artifact, bool]:
        """Return the artifact of ``recipe``, calling ``write(folder)`` to make it where it is missing.

        Args:
            recipe: what the artifact is made of.
            write: fills an empty folder; called with the lock held.

        Returns:
            the artifact, and whether it was made now.

        Raises:
            ArtifactError: when the disk is full or the folder cannot be written; the rubble is removed.
        """
        if found := self.find(recipe):
            return found, False
        final = self.root / recipe.stage / recipe.fingerprint
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            with _lock(final.with_suffix(".lock")):
                if found := self.find(recipe):  # another run made it while this one waited
                    return found, False
                return self._make(recipe, final, write), True
        except Exception as problem:
            cure = cure_of(problem, self.root)
            if cure is None:
                raise
            reason = shorten(str(problem.__cause__ or problem))
            raise ArtifactError(
                f"cannot write the artifact of stage {recipe.stage!r} under {self.root}: {reason}. "
                f"{cure}, then run again: finished stages are kept."
            ) from problem

    def _make(self, recipe: Recipe, final: Path, write: Callable[[Path], None]) -> Artifact:
        work = final.with_suffix(".work")
        _clear_rubble(final.parent, work)
        if final.exists():  # it lost files
            _log.warning("removing the incomplete artifact %s", final)
            shutil.rmtree(final)
        if work.exists():  # a killed run's
            going_on = (work / JOURNAL).is_dir()
            _log.warning("%s the incomplete artifact %s", "going on with" if going_on else "removing", work)
            _empty(work)
        try:
            work.mkdir(exist_ok=True)  # inside: a signal may come right behind it
            write(work)
            shutil.rmtree(work / JOURNAL, ignore_errors=True)
            _write_manifest(work, recipe)
        except BaseException:
            _empty(work)
            raise
        work.rename(final)
        _sync(final.parent)
        made = read_artifact(final)
        assert made is not None
        return made


def _empty(work: Path) -> None:
    """Remove what a killed or failed run left in its work folder, all but a journal."""
    if not (work / JOURNAL).is_dir():
        shutil.rmtree(work, ignore_errors=True)
        return
    for entry in work.iterdir():
        if entry.is_dir() and entry.name != JOURNAL:
            shutil.rmtree(entry)
        elif not entry.is_dir():
            entry.unlink()


def read_artifact(folder: Path) -> Artifact | None:
    """Return the artifact in ``folder``, or None where it is absent, has no manifest, or a file lost its size.

    Raises:
        ArtifactError: the folder cannot be looked into. It is not taken for damaged: a damaged one is built anew.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = tuple(FileEntry(**entry) for entry in manifest["files"])
        artifact = Artifact(folder, Recipe(**manifest["recipe"]), manifest["content"], files)
        faults = [entry.name for entry in files if not _is_whole(folder, entry)]
        if artifact.content != _hash_content(files) or artifact.fingerprint != folder.name:
            faults.append(MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):
        faults = [MANIFEST]
    except OSError as problem:
        raise ArtifactError(f"cannot read the artifact {folder}: {problem}. Check its permissions and disk.") from None
    if faults:
        _log.warning("artifact %s is damaged: %s is missing or not as it was written", folder, faults[0])
        return None
    return artifact


def write_json(path: Path, value: object) -> None:
    """Write JSON through a temporary file and a rename, so that no reader sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            json.dump(value, stream, indent=1, sort_keys=True, ensure_ascii=False, default=dict)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_manifest(folder: Path, recipe: Recipe) -> None:
    """Write the manifest once every file and folder that it names is on the disk."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [
        FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, hash_file(path), _num_rows(path))
        for path in paths
    ]
    for path in (*paths, *(path for path in folder.rglob("*") if path.is_dir())):
        _sync(path)
    listed = [asdict(entry) for entry in files]
    manifest = {"recipe": asdict(recipe), "content": _hash_content(files), "files": listed}
    write_json(folder / MANIFEST, manifest)
    _sync(folder)


def _hash_content(files: Iterable[FileEntry]) -> str:
    """Return the hash of the files' names and bytes, whatever order they are in."""
    return hash_json(sorted((entry.name, entry.sha256) for entry in files if entry.name not in NOT_CONTENT))


def _is_whole(folder: Path, entry: FileEntry) -> bool:
    path = folder / entry.name
    return path.is_file() and path.stat().st_size == entry.bytes


def _num_rows(path: Path) -> int | None:
    if path.suffix != ".parquet":
        return None
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the kernel frees it when its owner dies, however it dies."""
    with path.open("a+", encoding="utf-8") as stream:
        if not _try_lock(stream):
            stream.seek(0)
            _log.warning("waiting for another run that is making this artifact: %s", stream.read().strip())
            fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        stream.truncate()
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        json.dump(owner, stream)
        stream.flush()
        yield


def _try_lock(stream: IO[str]) -> bool:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _clear_rubble(stage_folder: Path, ours: Path) -> None:
    """Remove what killed runs left of artifacts that nobody is making: work folders without journal or live lock.

    Our own lock is not tried: where locks belong to processes (NFS), closing a second handle would free it.
    """
    for work in stage_folder.glob("*.work"):
        if work == ours or (work / JOURNAL).is_dir():
            continue
        with suppress(OSError), work.with_suffix(".lock").open("a", encoding="utf-8") as stream:
            if _try_lock(stream):
                _log.info("removing what a killed run left: %s", work)
                shutil.rmtree(work)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
