"""Small gzip files: read as they are, or unpacked beside the parts of a build. Dumps have a reader of their own."""

from __future__ import annotations

import gzip
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from kgqa_core.errors import InputError, shorten

COPY_BYTES = 2**20


@contextmanager
def open_maybe_gzip(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to be read as bytes, through gzip where its name ends in .gz.

    Raises InputError, wherever that shows, where the gzip is truncated, damaged or none.
    """
    if path.suffix != ".gz":
        with path.open("rb") as file:
            yield file
        return
    try:
        with gzip.open(path, "rb") as packed:
            yield cast("IO[bytes]", packed)
    except EOFError as error:
        raise InputError(f"{path}: the gzip is truncated. Was the file copied whole?") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: not a usable gzip ({shorten(str(error))}). Was the file copied whole?") from error


def unpack(path: Path, folder: Path) -> Path:
    """Write the text of a gzip into ``folder``, under its name without .gz, and return where; errors as above."""
    plain = folder / path.stem
    with open_maybe_gzip(path) as packed, plain.open("wb") as out:
        shutil.copyfileobj(packed, out, COPY_BYTES)
    return plain
