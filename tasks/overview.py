"""What an operator wants to see of a home at a glance: services, last runs, champions, drift, disk."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgqa_core.artifacts import read_note
from kgqa_core.errors import ArtifactError
from tasks.garbage import runs_at_work
from tasks.outbox import left_names, read_ended
from tasks.release import Releases, champion_of
from tasks.services import healthy, read_services

NUM_RUNS = 8
FOLDERS = ("artifacts", "releases", "cache", "mlflow", "prefect", "outbox", "runs", "run", "logs")


def overview(home: Path) -> dict[str, Any]:
    """Return everything, as ``kgqa status --json`` prints it."""
    services, problems = read_services(home), list[str]()
    return {
        "home": str(home),
        "services": {name: healthy(services, name) for name in services.names} if services else {},
        "runs": {"last": read_ended(home)[-NUM_RUNS:], "at_work": runs_at_work(home), **left_names(home)},
        "champions": list(champions(home, problems)),
        "drift": list(drift(home)),
        "disk": disk(home),
        "problems": problems,
    }


def champions(home: Path, problems: list[str]) -> Iterator[dict[str, Any]]:
    """Yield each model's champion, since when, and the last decision; ``problems`` gets what is damaged, or gone."""
    for folder in sorted((home / "releases").glob("*")):
        releases = Releases(home, folder.name)
        try:
            moves = releases.moves()
        except ArtifactError as problem:
            problems.append(str(problem))
            continue
        try:
            releases.champion()  # is it still there?
        except ArtifactError as problem:
            problems.append(str(problem))
        champion = champion_of(moves)
        since = next((move.when for move in reversed(moves) if move.kind != "refused"), None)
        last = moves[-1] if moves else None
        decision = {"kind": last.kind, "when": last.when, "release": last.to_release, "why": last.why} if last else None
        yield {"model": folder.name, "champion": champion, "since": since, "last": decision}


def drift(home: Path) -> Iterator[dict[str, Any]]:
    """Yield of each configuration what its last two builds differ in: triples, entities, questions."""
    for note in sorted((home / "runs").glob("*.json")):
        fingerprint = read_note(note).get("changes")
        changes = read_note(home / "artifacts" / "changes" / str(fingerprint) / "changes.json") if fingerprint else {}
        if changes:
            counts = {
                **{name: changes["graph"][name] for name in ("triples", "entities")},
                "questions": changes["questions"],
            }
            yield {"run": note.stem, **counts}


def disk(home: Path) -> dict[str, int]:
    """Return the bytes of each folder, a file with several names counted once, and what is free."""
    seen, sizes = set[tuple[int, int]](), dict[str, int]()
    for folder in FOLDERS:
        sizes[folder] = 0
        for path in (home / folder).rglob("*"):
            try:
                status = path.lstat()
            except OSError:  # it went meanwhile
                continue
            if path.is_file() and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                sizes[folder] += status.st_size
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    return {**sizes, "free": shutil.disk_usage(there).free}


def local_time(milliseconds: int) -> str:
    """Return a time as people here read it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(milliseconds / 1000))
