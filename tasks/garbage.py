"""What a home needs no more: artifacts, releases, lock files, and what killed processes left behind.

Needed is what the last runs of every configuration made, what accepted builds hold, what a release that is kept holds,
what MLflow's aliases name, what is pinned, and whatever any of these was made of. Call stores, encodings, and the
databases of MLflow and Prefect are left alone: answers of a language model were paid for, and the databases have
commands of their own.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from kgqa_core.artifacts import JOURNAL, MANIFEST, Artifact, read_artifact, read_note, written_whole
from kgqa_core.errors import InputError, KgqaError, nearest, shorten
from kgqa_core.run.inputs import FETCHED, known_files, write_note
from kgqa_core.run.pipeline import StageOutcome
from kgqa_core.run.stages import known_stages
from tasks.leftovers import flow_lock, is_free
from tasks.mlflow_store import named_by_aliases
from tasks.outbox import read_notes
from tasks.release import Releases, champion_of

_log = logging.getLogger(__name__)
HISTORY, PINS = "history", "pins.txt"
NEAR = 5  # names in an error
RUNS_NOTED = 50  # of each configuration
JOURNAL_DAYS = 30.0  # that what a killed stage finished waits for the next run
PARTIAL_DAYS = 1 / 24  # older than any write takes
SCRATCH = {  # of commands and runs that were killed; a name with more before it is half-deleted
    "reports/seen/*": "pages that were viewed",
    "run/spent/*": "what a run had spent",
    "run/*sql-*": "what a query spilled",
    ".*export-*": "half-made export",
}


@dataclass(frozen=True, slots=True)
class Garbage:
    """One file or folder that nothing needs."""

    path: Path
    kind: str  # "artifact explorer", "release", "lock file", ...
    bytes: int  # that the disk gets back: a file with several names counts with the last of them, if all go


def note_run(home: Path, name: str, outcomes: Sequence[StageOutcome]) -> None:
    """Note what a finished run of a configuration is made of."""
    made = sorted("/".join(outcome.artifact.folder.parts[-2:]) for outcome in outcomes)
    before = [one for one in read_history(home, name) if one != made]  # a run with nothing new is no other run
    write_note(history_file(home, name), [*before, made][-RUNS_NOTED:])


def history_file(home: Path, name: str) -> Path:
    """Return the note of what the last runs of a configuration are made of."""
    return home / "runs" / HISTORY / f"{name}.json"


def read_history(home: Path, name: str) -> list[list[str]]:
    """Return the artifacts, ``stage/fingerprint``, of each of the last runs; nothing where they are not noted."""
    try:
        found = json.loads(history_file(home, name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []


def pin(home: Path, name: str) -> None:
    """Keep an artifact (by its fingerprint), a release (by its id), or all that a run's history names.

    The beginning of an id is enough where it is the only such one; InputError for what is not there.
    """
    runs = {path.stem for folder in (HISTORY, "builds") for path in (home / "runs" / folder).glob("*.json")}
    folders = [*(home / "artifacts").glob("*/*"), *(folder for folder, _ in _releases(home))]
    ids = {folder.name for folder in folders if folder.is_dir() and _is_whole(folder)}
    found = [name] if name in runs else sorted(one for one in ids if one.startswith(name))
    if len(found) != 1:
        near = found[:NEAR] or nearest(name, runs | ids, NEAR) or sorted(runs)[:NEAR]
        what = f"{len(found)} artifacts and releases begin so" if found else "no run, release or artifact is called so"
        raise InputError(f"cannot pin {shorten(name)}: {what}; near are {', '.join(near) or 'none'}")
    before = read_pins(home)
    if found[0] not in before:
        with written_whole(home / PINS) as partial:
            partial.write_text("".join(f"{one}\n" for one in [*before, found[0]]), encoding="utf-8")


def read_pins(home: Path) -> list[str]:
    """Return what is pinned, a name per line; names may hold spaces."""
    try:
        lines = (home / PINS).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    return [name for line in lines if (name := line.strip())]


def find_garbage(home: Path, *, last: int, days: float, run: str | None = None) -> list[Garbage]:
    """Return what nothing needs and is older than some days; ``run``: of what one configuration made alone.

    ``last`` runs of each configuration are kept, and as many releases, beside the champion and the one before it.
    """
    before = time.time() - days * 86400
    artifacts = {f"{one.recipe.stage}/{one.folder.name}": one for one in _artifacts(home)}
    releases = dict(_releases(home))
    kept = _kept_releases(home, releases, last)
    needed = _needed(home, artifacts, last, [releases[folder] for folder in kept])
    mine = set(artifacts) if run is None else {name for made in read_history(home, run) for name in made}
    dead = [one.folder for name, one in artifacts.items() if name in mine and name not in needed]
    found = [(folder, f"artifact {folder.parent.name}") for folder in dead]
    found += [(f, "release") for f in releases if f not in kept and run in (None, releases[f].get("run"))]
    if run is None:
        found += [*_unused_inputs(home, [artifacts[name].folder for name in needed]), *_leftovers(home)]
    names = Counter[tuple[int, int]]()
    return [Garbage(path, kind, _size(path, names)) for path, kind in found if _age_of(path) <= before]


def collect(home: Path, found: Iterable[Garbage]) -> int:
    """Delete what was found, and return the bytes that are free now; KgqaError while a run is at work."""
    freed = 0
    for one in found:
        if at_work := runs_at_work(home):
            raise KgqaError(
                f"runs are at work, and may need what is there: {', '.join(at_work)}. Nothing more is deleted"
            )
        if one.kind == "release" and champion_of(Releases(home, one.path.parent.name).moves()) == one.path.name:
            continue  # somebody promoted it since it was found
        if one.path.is_dir():
            gone = one.path.with_name(f".{one.path.name}.{uuid4().hex[:12]}.partial")  # at once: nobody sees half of it
            one.path.rename(gone)
            shutil.rmtree(gone)
            freed += one.bytes
        elif one.kind != "lock file" or is_free(one.path):
            one.path.unlink(missing_ok=True)
            freed += one.bytes
    return freed


def runs_at_work(home: Path) -> list[str]:
    """Return the runs whose process lives, by name: their notes' locks are held."""
    notes = (note for note in read_notes(home) if note.run.status == "RUNNING")
    return [note.run.name for note in notes if not is_free(note.path(home).with_suffix(".lock"))]


# ------ What is needed.


def _needed(home: Path, artifacts: dict[str, Artifact], last: int, releases: list[dict[str, Any]]) -> set[str]:
    """Return the needed artifacts, ``stage/fingerprint``, with all that they were made of."""
    pins = read_pins(home)
    stages = {artifact.fingerprint: name for name, artifact in artifacts.items()}
    names = {path.stem for path in (home / "runs" / HISTORY).glob("*.json")}
    wanted = {name for run in names for made in read_history(home, run)[0 if run in pins else -last :] for name in made}
    notes = [*(home / "runs").glob("*.json"), *(home / "runs" / "accepted").glob("*.json")]
    fingerprints = {one for path in notes for one in read_note(path).values() if isinstance(one, str)}
    fingerprints |= {one for one in stages if one.startswith(tuple(pins))}
    fingerprints |= {one for release in releases for one in release["stages"].values()}
    for note in (home / "runs" / "builds").glob("*.json"):
        builds = _accepted_builds(note)[0 if note.stem in pins else -last :]
        fingerprints |= {one for stages in builds for one in stages.values()}
    fingerprints |= {outcome.artifact.fingerprint for note in read_notes(home) for outcome in note.stages}
    if (served := named_by_aliases(home)) is None:
        _log.warning("MLflow does not say which models its aliases name: all graphs and explorers stay")
        served = {one.fingerprint for one in artifacts.values() if one.recipe.stage in ("graph", "explorer")}
    wanted |= {stages[one] for one in fingerprints | served if one in stages}
    # Of a stage's artifacts of one content those that are wanted count: the others would keep their own inputs, too.
    made: dict[str, dict[str, str]] = {one: {"": name} for one, name in stages.items()}
    for name in sorted(artifacts, key=wanted.__contains__):
        made.setdefault(artifacts[name].content, {})[artifacts[name].recipe.stage] = name
    wanted |= {name for one in fingerprints | served for name in made.get(one, {}).values()}
    todo, needed = list(wanted & artifacts.keys()), set[str]()
    while todo:
        name = todo.pop()
        if name not in needed:
            needed.add(name)
            todo += [one for value in artifacts[name].recipe.inputs.values() for one in made.get(value, {}).values()]
    kept = {artifacts[name].content for name in needed} | {artifacts[name].fingerprint for name in needed}
    for name, artifact in artifacts.items():  # comparisons of builds, of sweeps, verdicts: of no run's stages
        inputs = set(artifact.recipe.inputs.values())
        if artifact.recipe.stage not in known_stages() and inputs <= kept:
            needed.add(name)
    return needed


def _accepted_builds(note: Path) -> list[dict[str, str]]:
    """Return the builds that a run can go back to, as stage -> fingerprint; the one that readers had last is last."""
    lines = [line["stages"] for line in read_note(note).get("builds", []) if line["what"] != "refused"]
    return [stages for place, stages in enumerate(lines) if stages not in lines[place + 1 :]]


def _artifacts(home: Path) -> Iterator[Artifact]:
    for folder in sorted((home / "artifacts").glob("*/*")):
        if (
            folder.is_dir() and _is_whole(folder) and (artifact := read_artifact(folder))
        ):  # else it is damaged: the next run that needs it says so
            yield artifact


def _releases(home: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for manifest in sorted((home / "releases").glob("*/*/release.json")):
        if _is_whole(manifest.parent):
            yield manifest.parent, read_note(manifest) or {"stages": {}}


def _is_whole(folder: Path) -> bool:
    """Say whether a folder has a name of its own: one that is half-made or half-deleted begins with a dot."""
    return not folder.suffix and not folder.name.startswith(".")


def _kept_releases(home: Path, releases: dict[Path, dict[str, Any]], last: int) -> set[Path]:
    """Return the releases to keep: champion, the one before, who was refused last, the last ones, their parents."""
    pins, kept = tuple(read_pins(home)), set[Path]()
    for model in {folder.parent for folder in releases}:
        of = Releases(home, model.name)
        moves = of.moves()
        ids = [one for one in of.ids() if model / one in releases]
        names = {champion_of(moves), *ids[-last:], *(one for one in ids if one.startswith(pins))}
        with suppress(InputError):
            names.add(of.before_champion())
        with suppress(InputError):
            names.add(of.last_challenger())
        kept |= {model / name for name in names if name and model / name in releases}
    for folder in list(kept):
        parent = releases[folder].get("parent")  # perhaps of another model
        kept |= {other for other in releases if other.name == parent}
    return kept


def _unused_inputs(home: Path, needed: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the folders ``fetched/ID`` of which nothing needed was made; a run that wants one fetches it again."""
    manifests = [read_note(folder / MANIFEST) for folder in needed]
    origins = [origin for manifest in manifests for origin in manifest.get("origins", {}).values()]
    below, etags = {f"{one['address']}/" for one in origins}, {one["etag"] for one in origins} - {""}
    for unit in (home / FETCHED).glob("*"):
        # The same bytes at another address make nothing anew, so no manifest names that address.
        in_use = any(
            facts[0] in etags or any(f"{file}/".startswith(address) for address in below)
            for file, facts in known_files(unit).items()
        )
        if not in_use and is_free(unit / "lock"):
            yield unit, "fetched input"


# ------ What killed processes left.


def _leftovers(home: Path) -> Iterator[tuple[Path, str]]:
    """Yield lock files that nobody holds, half-made folders, and files half-written."""
    for lock in (home / "artifacts").glob("*/*.lock"):
        if not lock.with_suffix(".work").exists() and is_free(lock):
            yield lock, "lock file"
    for work in (home / "artifacts").glob("*/*.work"):
        waits = (work / JOURNAL).is_dir() and _age_of(work) > time.time() - JOURNAL_DAYS * 86400
        if not waits and is_free(work.with_suffix(".lock")):
            yield work, "half-made artifact"
    for folder in ("artifacts", "releases", "runs", "outbox"):
        for partial in (home / folder).rglob(".*.partial"):
            if _age_of(partial) < time.time() - PARTIAL_DAYS * 86400:
                yield partial, "half-written file"
    for pattern, kind in SCRATCH.items():
        for left in home.glob(pattern):
            if _age_of(left) < time.time() - PARTIAL_DAYS * 86400:
                yield left, kind
    for lock in (*(home / "outbox").glob("*.lock"), *flow_lock(home, "*").parent.glob("*.lock")):
        if not lock.with_suffix(".json").exists() and is_free(lock):
            yield lock, "lock file"
    for log in (home / "run").glob("prefect-*.log"):
        if log.name not in [read_note(path).get("log") for path in (home / "run").glob("process-*.json")]:
            yield log, "old log"


def _age_of(path: Path) -> float:
    """Return when something was made or, a folder, last changed; the future where it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return float("inf")


def _size(path: Path, names: Counter[tuple[int, int]]) -> int:
    """Return the bytes of the files whose last name goes with ``path``; ``names`` counts those that are gone."""
    num_bytes = 0
    for file in (path, *path.rglob("*")):
        with suppress(OSError):  # it went meanwhile
            status = file.stat()
            inode = status.st_dev, status.st_ino
            names[inode] += 1
            num_bytes += status.st_size if file.is_file() and names[inode] == status.st_nlink else 0
    return num_bytes
