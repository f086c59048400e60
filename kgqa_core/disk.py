"""Files that are whole or not there; telling a full or read-only disk from other failures, and what to do about it."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from kgqa_core.errors import KgqaError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# How a full disk reads where a library raises an error of its own, or an OSError without a number: safetensors and
# DuckDB; a quota; numpy; DuckDB when it spills.
FULL_TEXT = re.compile(
    r"no space left on device|quota exceeded|\d+ requested and \d+ written|failed to offload data", re.IGNORECASE
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
