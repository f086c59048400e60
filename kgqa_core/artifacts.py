"""The artifact store: ``<root>/<stage>/<fingerprint>/`` folders that are either complete or not there.

Beside it stand the ways to write any file whole, and to tell what a user can do where the disk does not take it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import random
import re
import shutil
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from kgqa_core.errors import ArtifactError, KgqaError, shorten

MANIFEST = "manifest.json"
NOT_CONTENT = frozenset({"tracking.json", MANIFEST})  # hold times: two equal builds differ in them
JOURNAL = "journal"  # a folder in the work folder from which a stage that was killed goes on; no part of the artifact
DIGITS = 16  # hexadecimal digits of a fingerprint: 64 bits, readable in a path
POLL_SECONDS = 0.05
BLOCK_BYTES = 4 * 2**20  # a larger file has a checksum per block
TO_SAVE_BYTES = 4 * 2**20  # a buffer of 1 MiB and a header
SAMPLED_BLOCKS = 4  # of each large file, that are checked when an artifact is opened
_log = logging.getLogger(__name__)
_warn_once = lru_cache(maxsize=2**10)(_log.warning)  # of an artifact that a run looks for several times

# How a full disk reads where a library raises an error of its own, or an OSError without a number: safetensors and
# DuckDB; a quota; numpy; DuckDB when it spills; SQLite. Then how DuckDB says that a file may not grow.
FULL = (
    r"no space left on device|quota exceeded|\d+ requested and \d+ written|failed to offload|database or disk is full"
)
TOO_LARGE = r"could not write .*file too large"
DISK_CURE = "The disk is full ({free} MiB free now). Free some space or set KGQA_HOME to another disk"
SIZE_CURE = "A file outgrew what this process (`ulimit -f` shows it) or the file system allows. Raise the limit or set "
SIZE_CURE += "KGQA_HOME to another disk"
TROUBLES = (({errno.ENOSPC, errno.EDQUOT}, FULL, DISK_CURE), ({errno.EFBIG}, TOO_LARGE, SIZE_CURE))
REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST})
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of an artifact."""

    name: str
    bytes: int
    sha256: str
    rows: int | None = None  # of a Parquet file
    blocks: tuple[int, ...] = ()  # CRC-32 of each block of a large file


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

    def build(
        self, recipe: Recipe, write: Callable[[Path], None], origins: Mapping[str, Any] | None = None
    ) -> tuple[Artifact, bool]:
        """Return the artifact of ``recipe``, and whether it was made now: by ``write``, which fills an empty folder.

        ``origins``: where its inputs were fetched from, which the manifest says and nothing depends on. Raises
        ArtifactError where the disk is full or the folder cannot be written; the rubble is removed.
        """
        if found := self.find(recipe):
            return found, False
        final = self.root / recipe.stage / recipe.fingerprint
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(final.with_suffix(".lock")):
                if found := self.find(recipe):  # another run made it while this one waited
                    return found, False
                return _make(recipe, final, write, origins), True
        except Exception as problem:
            cure = cure_of(problem, self.root)
            if cure is None:
                raise
            reason = shorten(str(problem.__cause__ or problem))
            raise ArtifactError(
                f"cannot write the artifact of stage {recipe.stage!r} under {self.root}: {reason}. "
                f"{cure}, then run again: finished stages are kept."
            ) from problem


def _make(recipe: Recipe, final: Path, write: Callable[[Path], None], origins: Mapping[str, Any] | None) -> Artifact:
    """Make an artifact in its work folder, and give it its name once it is whole; called with the lock held."""
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
        paths = sorted(work.rglob("*"))
        files = [_entry(work, path) for path in paths if path.is_file()]
        for path in paths:  # the manifest is written once all that it names is on the disk
            sync(path)
        listed = [asdict(entry) for entry in files]
        manifest = {"recipe": asdict(recipe), "content": _hash_content(files), "files": listed}
        manifest |= {"origins": origins} if origins else {}
        write_json(work / MANIFEST, {**manifest, "check": hash_json(manifest)})
        sync(work)
    except BaseException:
        _empty(work)
        raise
    try:
        work.rename(final)
    except OSError:
        if read_artifact(final) is None:
            raise
        _empty(work)  # a rollback put it back meanwhile, out of a release
    sync(final.parent)
    made = read_artifact(final)
    assert made is not None
    return made


def _empty(work: Path) -> None:
    """Remove what a killed or failed run left in its work folder, all but a journal."""
    if not (work / JOURNAL).is_dir():
        shutil.rmtree(work, ignore_errors=True)
        return
    for entry in work.iterdir():
        if not entry.is_dir():
            entry.unlink()
        elif entry.name != JOURNAL:
            shutil.rmtree(entry)


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


def _entry(folder: Path, path: Path) -> FileEntry:
    rows = None
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        rows = int(pq.read_metadata(path).num_rows)
    size, digest, blocks = path.stat().st_size, hashlib.sha256(), list[int]()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(BLOCK_BYTES), b""):  # read once for both
            digest.update(block)
            blocks.append(zlib.crc32(block))
    kept = tuple(blocks) if size > BLOCK_BYTES else ()
    return FileEntry(path.relative_to(folder).as_posix(), size, digest.hexdigest(), rows, kept)


def read_artifact(folder: Path) -> Artifact | None:
    """Return the artifact in ``folder``, or None where it is absent or damaged.

    Small files are read and compared with their hash, of large ones a few blocks. Raises ArtifactError where the folder
    cannot be looked into. That is no damage: a damaged one is built anew.
    """
    artifact, faults = inspect_artifact(folder)
    if faults:
        _warn_once("artifact %s is damaged: %s is missing or not as it was written", folder, faults[0])
    return None if faults else artifact


def inspect_artifact(folder: Path, *, whole: bool = False) -> tuple[Artifact | None, list[str]]:
    """Return the artifact that a folder's manifest describes, and the files that are not as it says.

    ``whole``: every byte is read, now. None, and no file, where there is no manifest. Raises as ``read_artifact``.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        check = manifest.pop("check", None)
        files = tuple(FileEntry(**{**entry, "blocks": tuple(entry.get("blocks", ()))}) for entry in manifest["files"])
        artifact = Artifact(folder, Recipe(**manifest["recipe"]), manifest["content"], files)
        faults = [entry.name for entry in files if not _is_intact(folder / entry.name, entry, whole)]
        is_whole = artifact.content == _hash_content(files) and check in (None, hash_json(manifest))
        return artifact, faults if is_whole and artifact.fingerprint == folder.name else [*faults, MANIFEST]
    except (FileNotFoundError, NotADirectoryError):
        return None, []
    except (AttributeError, ValueError, KeyError, TypeError):
        return None, [MANIFEST]
    except OSError as problem:
        raise ArtifactError(f"cannot read the artifact {folder}: {problem}. Check its permissions and disk.") from None


def _is_intact(path: Path, entry: FileEntry, whole: bool) -> bool:
    if not (path.is_file() and (status := path.stat()).st_size == entry.bytes):
        return False
    if whole or status.st_size <= BLOCK_BYTES:
        known = _hash_known if not whole else _hash_known.__wrapped__
        return known(path, status.st_mtime_ns, status.st_ino) == entry.sha256
    with path.open("rb") as stream:
        for number in random.sample(range(len(entry.blocks)), min(SAMPLED_BLOCKS, len(entry.blocks))):
            stream.seek(number * BLOCK_BYTES)
            if zlib.crc32(stream.read(BLOCK_BYTES)) != entry.blocks[number]:
                return False
    return True


@lru_cache(maxsize=2**14)
def _hash_known(path: Path, changed_ns: int, inode: int) -> str:
    """Return the hash of a small file, read once by a process unless it was written since."""
    return hash_file(path)


def hash_json(value: object) -> str:
    """Return the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False, default=dict).encode()).hexdigest()


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, read as a stream."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _hash_content(files: Iterable[FileEntry]) -> str:
    return hash_json(sorted((entry.name, entry.sha256) for entry in files if entry.name not in NOT_CONTENT))


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


def read_note(path: Path) -> dict[str, Any]:
    """Return a JSON object of ours; empty where there is none, or rubbish."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: Path, value: object) -> None:
    """Write JSON, which is on the disk before it has its name."""
    with written_whole(path) as partial, partial.open("w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=1, sort_keys=True, ensure_ascii=False, default=dict)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())


def write_tensors(path: Path, tensors: Mapping[str, Any], metadata: dict[str, str] | None = None) -> None:
    """Write torch's tensors as safetensors; raise MemoryError where memory is too full for it."""
    from safetensors.torch import save_file

    arrays = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    bytearray(TO_SAVE_BYTES)  # Python raises where memory is full; the library is Rust's, and would end the process
    save_file(arrays, path, metadata=metadata)


def sync(path: Path) -> None:
    """Return once a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def exclusive_lock(path: Path, *, timeout: float | None = None) -> Iterator[None]:
    """Hold the lock file ``path``, which says who does; the kernel frees it when its owner ends, however it ends.

    Raises ``KgqaError`` where another process holds it for longer than ``timeout`` seconds; None: waits for ever.
    """
    with path.open("a+", encoding="utf-8") as stream:
        if not _try_lock(stream):
            stream.seek(0)
            owner = stream.read().strip()
            if timeout is None:
                _log.warning("waiting for another run, which holds %s: %s", path, owner)
                fcntl.flock(stream, fcntl.LOCK_EX)
            until = time.monotonic() + (timeout or 0)
            while timeout is not None and not _try_lock(stream):
                if time.monotonic() > until:
                    held = f"Another run {owner} has held {str(path)!r} for more than {timeout:.0f} s"
                    raise KgqaError(f"{held}. Wait for it or end it, then run again.")
                time.sleep(POLL_SECONDS)
        stream.seek(0)
        stream.truncate()
        since = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        json.dump({"host": socket.gethostname(), "pid": os.getpid(), "since": since}, stream)
        stream.flush()
        yield


def _try_lock(stream: IO[str]) -> bool:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def cure_of(problem: Exception, root: Path) -> str | None:
    """Return what a user can do where ``root`` cannot be written, or None where ``problem`` is something else."""
    cause: BaseException | None = problem
    while cause is not None:
        code = cause.errno if isinstance(cause, OSError) else None
        text = "" if isinstance(cause, KgqaError) else str(cause)  # ours quote what users wrote
        for codes, texts, cure in TROUBLES:
            if code in codes or re.search(texts, text, re.IGNORECASE | re.DOTALL):
                existing = next(folder for folder in (root, *root.parents) if folder.exists())
                return cure.format(free=shutil.disk_usage(existing).free // 2**20)
        cause = cause.__cause__
    code = problem.errno if isinstance(problem, OSError) else None
    name = getattr(problem, "filename", None)
    if code in REFUSED and isinstance(name, str | os.PathLike):  # an input that may not be read is another matter
        path = Path(name)  # relative where shutil walks a folder of ours
        if not path.is_absolute() or path.is_relative_to(root) or root.is_relative_to(path):
            return "Check the permissions, or set KGQA_HOME to a folder that can be written"
    return "The file system has no file locks. Set KGQA_HOME to a local disk" if code in NO_LOCKS else None
