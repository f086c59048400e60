"""Object storage, s3:// and gs://: inputs are fetched into the home, and again where they changed; exports go there.

pyarrow speaks with the stores. Endpoint and credentials are the environment's alone.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kgqa_core.artifacts import cure_of, exclusive_lock, sync, write_json, written_whole
from kgqa_core.errors import ArtifactError, ConfigError, InputError
from kgqa_core.run.inputs import FETCHED, NOTE, known_files, origin_of
from kgqa_core.run.pipeline import Pipeline

ENDPOINTS = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "gs": ("STORAGE_EMULATOR_HOST",)}
BLOCK_BYTES = 16 * 2**20  # each is a request of its own
NOTE_SECONDS = 5  # between two notes of what was fetched: one per object cost more than the objects
RETRY_SECONDS = 60  # with gs://; S3 is tried three times
NO_BUCKET = "NO_SUCH_BUCKET"
CHANGED = "was changed while it was fetched, and nothing of it is used. Run again"
# Error codes of stores, and what is told. Their own words may hold parts of a request, and are not repeated.
CODE = re.compile(r"AWS Error (\w+(?: \(HTTP status \d+\))?)|Status\((\w+)|(NO_SUCH_BUCKET)")
REASONS = {
    NO_BUCKET: "there is no such bucket",
    "NO_SUCH_KEY|NOT_FOUND": "there is no such object, and none below it",
    "DENIED|ACCESS_KEY|SIGNATURE|TOKEN|CREDENTIAL|UNAUTHENTICATED|40[13]": "access is denied. Are the credentials "
    "in the environment right (AWS_ACCESS_KEY_ID and so on, GOOGLE_APPLICATION_CREDENTIALS), and may they do this?",
    "NETWORK|TIMEOUT|UNAVAILABLE|DEADLINE": "the store does not answer. Is it up, and is the endpoint in the "
    "environment right (AWS_ENDPOINT_URL_S3, STORAGE_EMULATOR_HOST)? Run again",
    "41[26]": CHANGED,
    "": "the store failed. Run again",  # anything else
}


def open_store(scheme: str) -> Any:
    """Return pyarrow's file system of a scheme; endpoint and credentials are the environment's alone."""
    from pyarrow import fs

    name = next((one for one in ENDPOINTS[scheme] if os.environ.get(one)), "")
    given = os.environ.get(name, "")
    url = urlsplit(given if "://" in given else f"http://{given}")
    if url.scheme not in ("http", "https") or (name and not url.hostname) or re.search("[@?#]|[^/:]/.", given):
        raise ConfigError(f"{name} must be like https://HOST:PORT, without a user, a path or a query")
    endpoint = {"scheme": url.scheme, "endpoint_override": url.netloc} if name else {}
    try:
        if scheme == "s3":
            return fs.S3FileSystem(**endpoint)
        return fs.GcsFileSystem(anonymous=bool(name), retry_time_limit=timedelta(seconds=RETRY_SECONDS), **endpoint)
    except ImportError:
        raise ConfigError(f"this pyarrow was built without {scheme}://: install the one of PyPI") from None


@contextmanager
def told(address: str) -> Iterator[None]:
    """Raise InputError, in one line, where the store does not do with an address what it is asked to."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in (None, errno.ENOENT):
            raise  # of a disk
        found = CODE.search(str(problem))
        code = "NOT_FOUND" if isinstance(problem, FileNotFoundError) else found[0] if found else ""
        why = next(why for said, why in REASONS.items() if re.search(said, code))
        raise InputError(f"{address}: {why}") from None


def fetch_inputs(pipeline: Pipeline) -> bool:
    """Fetch what changed of the inputs of a run, and of those that it depends on; return whether there are any.

    Then its stages are to be looked for anew: files may have come and gone. Raises as ``fetch``.
    """
    others = {it.conf for spec in pipeline.specs.values() for it in spec.depends_on_run.values()}
    lent = [fetch_inputs(pipeline.other_run(conf)) for conf in others]
    for path in pipeline.fetched:
        fetch(path, pipeline.home, pipeline.progress)
    return bool(pipeline.fetched) or any(lent)


def fetch(local: Path, home: Path, progress: Callable[[str, int, int], None]) -> None:
    """Make ``local`` what its address holds now: what changed is fetched, what is there no more is deleted.

    A file has its name once it is whole. Raises InputError, ConfigError, and ArtifactError where the disk is full.
    """
    address = origin_of(local, home)["address"]
    scheme, _, key = address.partition("://")
    unit = home / FETCHED / local.relative_to(home / FETCHED).parts[0]
    try:
        unit.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(unit / "lock"), told(address):
            store, known, done, noted = open_store(scheme), known_files(unit), 0, time.monotonic()
            objects = {unit / scheme / one.path: one for one in _objects(store, key, address)}
            total = sum(one.size for one in objects.values())
            for path in {*local.rglob("*"), *unit.rglob(".*.partial")} - {*objects}:  # a killed fetch left the latter
                if not path.is_dir():
                    path.unlink()
            try:
                for path, one in objects.items():
                    name, there = f"{scheme}://{one.path}", [_version(store, one.path), one.size, one.mtime_ns]
                    if known.get(name) != [*there, *_facts(path)]:
                        for size in _copy(store, one, path, name, there[0]):
                            progress(f"fetching {address} (MiB)", (done + size) // 2**20, max(1, total // 2**20))
                        known[name] = [*there, *_facts(path)]
                        if time.monotonic() - noted > NOTE_SECONDS:
                            write_json(unit / NOTE, {"files": known})
                            noted = time.monotonic()
                    done += one.size
            finally:
                write_json(unit / NOTE, {"files": known})
    except OSError as problem:
        cure = cure_of(problem, home) or "Check the disk and its permissions"
        raise ArtifactError(f"{address}: cannot be kept in {unit}: {problem.strerror or problem}. {cure}") from problem


def upload(folder: Path, address: str, *, last: str, current: str) -> None:
    """Copy the files of a folder below an address, ``last`` after all others, then name the folder as ``current``.

    ``current`` is an object that holds the folder's name: readers look there first, so they never see half of it. What
    is there whole already is not written again. Raises InputError and ConfigError as ``fetch``.
    """
    scheme, _, key = address.partition("://")
    with told(address):
        store = open_store(scheme)
        if not store.get_file_info(f"{key}/{folder.name}/{last}").is_file:
            for file in sorted(folder.iterdir(), key=lambda one: (one.name == last, one.name)):
                _put(store, f"{key}/{folder.name}/{file.name}", file)
        with store.open_output_stream(f"{key}/{current}") as out:
            out.write(f"{folder.name}\n".encode())


def _put(store: Any, key: str, file: Path) -> None:
    """Write a file as an object, in blocks; a failure leaves no object, or the one of before."""
    with file.open("rb") as source, store.open_output_stream(key) as out:
        while block := source.read(BLOCK_BYTES):
            out.write(block)


def _objects(store: Any, key: str, address: str) -> list[Any]:
    """Return pyarrow's facts about the object of a key, or about all those below it."""
    from pyarrow.fs import FileSelector, FileType

    about = store.get_file_info(key)
    if about.type == FileType.File:
        return [about]
    if about.type == FileType.NotFound and store.get_file_info(key.partition("/")[0]).type == FileType.NotFound:
        raise OSError(NO_BUCKET)
    found = [one for one in store.get_file_info(FileSelector(key, recursive=True)) if one.type == FileType.File]
    for one in found:
        if {"", ".", ".."} & {*one.path.split("/")} or not one.path.isprintable():
            raise InputError(f"{address}: holds an object whose name can be no file's: {one.path!r:.200}")
    if not found:
        raise FileNotFoundError(key)
    return found


def _copy(store: Any, about: Any, path: Path, name: str, version: str) -> Iterator[int]:
    """Write an object to a file, and yield how many bytes are there; InputError where it changed meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as partial:
        with partial.open("wb") as out, store.open_input_stream(about.path, compression=None) as source:
            while block := source.read(BLOCK_BYTES):
                out.write(block)
                yield out.tell()
            whole = out.tell() == about.size
        if not whole or _version(store, about.path) != version:
            raise InputError(f"{name}: {CHANGED}")
        sync(partial)


def _version(store: Any, key: str) -> str:
    about = store.open_input_stream(key, compression=None).metadata()
    return next((about[name].decode().strip('"') for name in ("ETag", "generation") if name in about), "")


def _facts(path: Path) -> list[int]:
    """Return size and time of a file, which tell whether it was changed here."""
    return [(status := path.stat()).st_size, status.st_mtime_ns] if path.is_file() else []
