"""Tells Prefect that a dump is new and whole: it is another than before, and was the same at two polls in a row.

The keeper of ``kgqa up`` polls. A deployment waits for its dump by a trigger on the event ``kgqa.dump.ready`` of the
resource ``kgqa.dataset.NAME`` (``rebuild-shards`` of prefect.yaml). What is watched are the files that its run
configuration reads: their sizes and times, never their content.
"""

from __future__ import annotations

import logging
import math
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from kgqa_core.addresses import STORES
from kgqa_core.artifacts import hash_json, read_note, write_json
from kgqa_core.config_file import read_config
from kgqa_core.errors import ConfigError, KgqaError, shorten

READY = "kgqa.dump.ready"
SECONDS, VARIABLE = 60.0, "KGQA_POLL_SECONDS"  # between two looks; another number
KNOWN = "run/dumps.json"  # what was told of each configuration last: a keeper that starts again tells nothing twice
_log = logging.getLogger(__name__)


def poll_seconds() -> float:
    """Return the seconds between two looks; ConfigError where the variable holds no such number."""
    given = os.environ.get(VARIABLE) or SECONDS
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"{VARIABLE} is {shorten(given)}; it must be a number of seconds, more than 0")
    return seconds


class Poller:
    """Watches the dumps that deployments wait for."""

    def __init__(self, home: Path, deployments: Path, emit: Callable[[dict[str, Any]], None]) -> None:
        """``emit`` hands an event to Prefect; where it raises, the event is emitted at the next poll."""
        self._note, self._deployments, self._emit = home / KNOWN, deployments, emit
        self._last: dict[str, str] = {}
        self._known: dict[str, str] = {}  # as the note, which a full disk may not take
        self._said: set[str] = set()

    def poll(self) -> list[str]:
        """Look once; return the datasets whose event was emitted. What is there at the very first look is known."""
        noted, ready = read_note(self._note), []
        self._known = known = {**noted, **self._known}
        try:
            for config, dataset, files in self._watched():
                state, of = state_of(files), str(config)  # two configurations may give one dataset different files
                now = hash_json(state)
                stable, self._last[of] = self._last.get(of) == now, now
                if known.get(of) == now or (of in known and not (stable and all(state.values()))):
                    continue
                if of in known:
                    _log.info("the dump of %s is new: %s", dataset, ", ".join(map(str, files)))
                    self._emit(event_of(dataset, config, files))
                    ready.append(dataset)
                known[of] = now
        finally:
            if known != noted:
                self._note.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._note, known)
        return ready

    def _watched(self) -> Iterator[tuple[Path, str, list[Path]]]:
        """Yield run configuration, dataset and files of each deployment that waits for a dump."""
        found = yaml.safe_load(self._deployments.read_text(encoding="utf-8")) or {}
        for one in found.get("deployments") or ():
            if any(READY in (trigger.get("expect") or ()) for trigger in one.get("triggers") or ()):
                config = self._deployments.parent / str((one.get("parameters") or {}).get("config"))
                try:
                    dataset = read_config(config).dataset
                    if not (files := list(paths_in(dataset.model_dump()))):
                        raise ConfigError(f"{config}: its dataset has no files on this machine")
                except KgqaError as problem:
                    if str(problem) not in self._said:
                        _log.warning("no dump is watched for %s: %s", one.get("name"), problem)
                    self._said.add(str(problem))
                    continue
                yield config, dataset.name, files


def paths_in(value: Any) -> Iterator[Path]:
    """Yield the paths in a section of a configuration, without those that are addresses of object storage."""
    if isinstance(value, Path):
        if value.parts[:1] not in [(f"{store}:",) for store in STORES]:
            yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from paths_in(one)


def state_of(files: list[Path]) -> dict[str, list[tuple[str, int, int]]]:
    """Return name, size and time of each file, or of all files of a folder; nothing where there is none."""
    found: dict[str, list[tuple[str, int, int]]] = {}
    for path in files:
        found[str(path)] = []
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            with suppress(OSError):  # it is being replaced
                if file.is_file():
                    status = file.stat()
                    found[str(path)].append((str(file), status.st_size, status.st_mtime_ns))
    return found


def event_of(dataset: str, config: Path, files: list[Path]) -> dict[str, Any]:
    """Return the event, as Prefect's API takes it."""
    resource = {"prefect.resource.id": f"kgqa.dataset.{dataset}", "prefect.resource.name": dataset}
    payload = {"config": str(config), "files": [str(file) for file in files]}
    when = datetime.now(UTC).isoformat()
    return {"id": str(uuid.uuid4()), "occurred": when, "event": READY, "resource": resource, "payload": payload}
