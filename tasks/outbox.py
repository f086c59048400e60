"""The outbox of a home: one note per run of a flow, until it has ended and MLflow was told about it.

A note is written when a run starts, again when a stage is made, and when the run ends. Its lock is held for as long as
the run lives, and the kernel frees it however the run ends. So a note without an end whose lock is free is of a run
that was killed. Notes are delivered in the order in which runs started, by tracking.py.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kgqa_core.artifacts import exclusive_lock
from kgqa_core.errors import KgqaError, shorten
from kgqa_core.run.inputs import write_note
from kgqa_core.run.pipeline import StageOutcome
from tasks.leftovers import flow_lock, is_free
from tasks.mlflow_store import mask
from tasks.run_content import FlowRun, RunStatus, SweepContent

ERROR_CHARACTERS = 500
REFUSALS = (400, 404)  # statuses that stay: what is told is wrong, or what it belongs to is gone
REFUSED = ".refused"  # in place of .json: a note that is set aside
ENDED, ENDED_BYTES = "runs/ended.jsonl", 1_000_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Note:
    """What is known of one run of a flow."""

    run: FlowRun
    tracked: bool  # is MLflow to be told of it?
    stages: tuple[StageOutcome, ...] = ()  # in the order of the run; where it was killed, those that it had by then
    sweep: SweepContent | None = None  # of a sweep, all that MLflow is told

    def path(self, home: Path) -> Path:
        """Return its place: names sort by the start of the run."""
        return home / "outbox" / f"{self.run.started_ms:013d}-{self.run.id}.json"


_adapter = cache(lambda: TypeAdapter(Note))


class OpenNote:
    """The note of a run that is going on."""

    def __init__(self, home: Path, note: Note, *, locked: bool) -> None:
        self.home, self.note = home, note
        self._locked = locked  # else others would take the run for dead: its note is written when it ended

    def write(self) -> None:
        """Write the note of a run that is going on."""
        if self._locked:
            write(self.home, self.note)

    def has(self, stages: Sequence[StageOutcome]) -> None:
        """Write down which stages the run has by now."""
        self.note = replace(self.note, stages=tuple(stages))
        self.write()

    def shows(self, report: Path) -> None:
        """Write down where the run's report is."""
        self.note = replace(self.note, run=replace(self.note.run, report=str(report)))
        self.write()


@contextlib.contextmanager
def noted(home: Path, run: FlowRun, *, tracked: bool) -> Iterator[OpenNote]:
    """Keep a note of a run for as long as the context lasts; how the context ends is how the run ended.

    A disk that takes no note is a warning: the run is worth more than its note.
    """
    note = Note(replace(run, status="RUNNING"), tracked)
    path, error = note.path(home), ""
    status: RunStatus = "FINISHED"
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive_lock(path.with_suffix(".lock"), timeout=0))
            locked = True
        except (OSError, KgqaError) as problem:
            _log.warning("this run has no note in %s until it ends: %s", path.parent, problem)
            locked = False
        held = OpenNote(home, note, locked=locked)
        held.write()
        try:
            yield held
        except BaseException as problem:
            status = "FAILED" if isinstance(problem, Exception) else "KILLED"
            error = _said(problem)
            raise
        finally:
            ended = replace(held.note.run, status=status, error=error, ended_ms=round(time.time() * 1000))
            held.note = replace(held.note, run=ended)
            log_end(home, ended)
            write(home, held.note) if tracked else remove(home, held.note)


def _said(problem: BaseException) -> str:
    said = f"{type(problem).__name__}: {problem}" if str(problem) else f"ended by {type(problem).__name__}"
    return mask(said.encode(errors="backslashreplace").decode())[:ERROR_CHARACTERS]  # a name may hold half a character


def log_failure(home: Path, id: str, name: str, began: float, problem: Exception) -> None:
    """Add a line about a run that failed, unless its note did."""
    if all(ended["id"] != id for ended in read_ended(home)):
        started, ended = round(began * 1000), round(time.time() * 1000)
        log_end(home, FlowRun(id, name, *[""] * 5, started, "FAILED", ended, _said(problem)))


def log_end(home: Path, run: FlowRun) -> None:
    """Add a line about how a run ended to the list of the last runs; a full disk is a warning."""
    ended = run.ended_ms or run.started_ms
    told = {"name": run.name, "id": run.id, "status": run.status, "ended_ms": ended, "error": run.error}
    line = json.dumps({**told, "seconds": (ended - run.started_ms) / 1000}, ensure_ascii=False)
    path = home / ENDED
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.stat().st_size > ENDED_BYTES:
            path.replace(path.with_suffix(".jsonl.1"))
        with path.open("a", encoding="utf-8") as stream:
            stream.write(f"\n{line}\n")  # what a full disk cut short takes no other line with it
    except OSError as problem:
        _log.warning("cannot note the end of the run in %s: %s", path, problem)


def read_ended(home: Path) -> list[dict[str, Any]]:
    """Return how the last runs ended, the latest last."""
    found = []
    for path in ((home / ENDED).with_suffix(".jsonl.1"), home / ENDED):
        with contextlib.suppress(OSError):
            for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
                with contextlib.suppress(ValueError):  # empty, or cut short by a kill
                    found.append(json.loads(line))
    return found


def write(home: Path, note: Note) -> None:
    """Write or replace a note; a full disk is a warning."""
    write_note(note.path(home), _adapter().dump_python(note, mode="json"))


def remove(home: Path, note: Note) -> None:
    """Remove a note that has done its duty."""
    for path in (note.path(home), note.path(home).with_suffix(".lock")):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def is_refusal(problem: Exception) -> bool:
    """Does MLflow refuse what it is told, such that it will do so each time?"""
    return getattr(problem, "get_http_status_code", lambda: 0)() in REFUSALS


def set_aside(home: Path, note: Note, problem: Exception) -> None:
    """Rename the note of a run that MLflow refuses, with a warning."""
    path = note.path(home)
    with contextlib.suppress(OSError):
        path.rename(path.with_suffix(REFUSED))
        path.with_suffix(".lock").unlink(missing_ok=True)
    said = mask(str(problem))[:ERROR_CHARACTERS]
    _log.warning("MLflow refuses run %s, which is set aside as %s: %s", note.run.name, path.with_suffix(REFUSED), said)


def read_notes(home: Path, suffix: str = ".json") -> list[Note]:
    """Return all notes, in the order in which their runs started; what is no note is set aside."""
    found = (_read_note(path) for path in sorted((home / "outbox").glob(f"*{suffix}")))
    return [note for note in found if note is not None]


def _read_note(path: Path) -> Note | None:
    """Return a note; None where it is gone, cannot be read now, or is none: then it gets another name."""
    try:
        return _adapter().validate_json(path.read_bytes())
    except FileNotFoundError:  # its run has ended, or another process delivered it
        pass
    except OSError as problem:  # too many open files, a disk that is away: the next look may read it
        _log.warning("the note %s cannot be read now: %s", path, problem)
    except ValidationError as problem:
        _log.warning("%s is no note of a run and is set aside: %s", path, shorten(str(problem)))
        with contextlib.suppress(OSError):
            path.rename(path.with_suffix(".unreadable"))
    return None


def waiting(home: Path) -> list[Note]:
    """Return the notes of runs that have ended and that MLflow is still to be told about."""
    return [note for note in read_notes(home) if note.tracked and note.run.status != "RUNNING"]


def refused(home: Path) -> list[Note]:
    """Return the notes that are set aside: MLflow refused what they say."""
    return read_notes(home, REFUSED)


def killed(home: Path) -> list[Note]:
    """Return the notes of runs whose process was killed: they have no end, and nobody holds their lock."""
    return list(_locked_dead(home))


def left_names(home: Path) -> dict[str, list[str]]:
    """Return the names of the runs that were killed, that wait for MLflow, and that it refused."""
    left = {"killed": killed(home), "waiting": waiting(home), "refused": refused(home)}
    return {what: [note.run.name for note in notes] for what, notes in left.items()}


def _locked_dead(home: Path) -> Iterator[Note]:
    """Yield the note of each run that was killed, while its lock is held."""
    for seen in [note for note in read_notes(home) if note.run.status == "RUNNING"]:
        path = seen.path(home)
        with contextlib.suppress(OSError, KgqaError), exclusive_lock(path.with_suffix(".lock"), timeout=0):
            if not path.exists():  # another process was first
                remove(home, seen)
            elif (note := _read_note(path)) and note.run.status == "RUNNING":  # else it has ended since the first look
                yield note


def end_killed(home: Path, tell: Callable[[str], None]) -> list[str]:
    """Give an end to the notes of runs that were killed; return their ids.

    ``tell`` is called with each before, unless another process is at work on that run: Prefect started it once more.
    Where it raises OSError or KgqaError, that note waits for the next look.
    """
    ended = []
    for note in _locked_dead(home):
        with contextlib.suppress(OSError, KgqaError):
            last_seen = round(note.path(home).stat().st_mtime * 1000)
            if is_free(flow_lock(home, note.run.id)):
                tell(note.run.id)
            ended.append(note.run.id)
            run = replace(note.run, status="KILLED", error="its process was killed", ended_ms=last_seen)
            log_end(home, run)
            write(home, replace(note, run=run)) if note.tracked else remove(home, note)
    return ended
