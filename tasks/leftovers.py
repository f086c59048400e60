"""Processes beside ours: one at a time through a lock, and children that outlive us by accident.

A child is written down when it is started, and ended by the next start where its owner is gone. A process is known by
its id *and* its start time, so that a recycled id is never taken for the process that had it.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from kgqa_core.errors import KgqaError

POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0  # between asking a process to end and ending it


@contextmanager
def exclusive_lock(path: Path, *, timeout: float) -> Iterator[None]:
    """Hold the lock file ``path``; the kernel frees it when its owner ends, however it ends.

    Raises ``KgqaError`` where another process holds it for longer than ``timeout`` seconds.
    """
    until = time.monotonic() + timeout
    with path.open("a", encoding="utf-8") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as problem:
                if time.monotonic() > until:
                    raise KgqaError(
                        f"Another run has held {str(path)!r} for more than {timeout:.0f} s. Wait for it or end it, "
                        "then run again."
                    ) from problem
                time.sleep(POLL_SECONDS)
        yield


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One child process, and the process that needs it."""

    pid: int
    started: str  # as process_started(pid) gave it
    owner_pid: int
    owner_started: str
    host: str  # a home folder can be shared; process ids cannot
    log: str  # name of its log file, beside this record

    def path(self, folder: Path) -> Path:
        """Return where this record lives inside ``folder``."""
        return folder / f"process-{self.pid}.json"


def process_started(pid: int) -> str | None:
    """Return a text that no later process with the same ``pid`` will have; None where none is running.

    A process that has ended but was not yet waited for (a zombie) counts as not running.
    """
    if platform.system() == "Linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        # The second field, the command, may hold blanks and brackets: count from its end.
        state, *fields = stat[stat.rindex(")") + 1 :].split()
        return None if state in "ZX" else f"{boot}:{fields[18]}"
    listed = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    state, _, started = listed.partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def write_process_record(folder: Path, pid: int, log: Path) -> ProcessRecord:
    """Write down in ``folder`` that this process started ``pid``, which logs to ``log``."""
    owner = os.getpid()
    record = ProcessRecord(
        pid=pid,
        started=process_started(pid) or "",
        owner_pid=owner,
        owner_started=process_started(owner) or "",
        host=platform.node(),
        log=log.name,
    )
    path = record.path(folder)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(record), sort_keys=True), encoding="utf-8")
    partial.replace(path)
    return record


def forget_process(folder: Path, record: ProcessRecord) -> None:
    """Remove the record and the log of a process that has ended."""
    record.path(folder).unlink(missing_ok=True)
    (folder / record.log).unlink(missing_ok=True)


def end_leftovers(folder: Path) -> list[int]:
    """End the processes recorded in ``folder`` whose owner is gone, forget them, and return their ids."""
    ended = []
    for path in sorted(folder.glob("process-*.json")):
        record = _read_process_record(path)
        if record is None:
            path.unlink(missing_ok=True)
            continue
        if record.host != platform.node() or process_started(record.owner_pid) == record.owner_started:
            continue
        if record.started and process_started(record.pid) == record.started:
            end_process(record.pid, record.started)
            ended.append(record.pid)
        forget_process(folder, record)
    return ended


def end_process(pid: int, started: str) -> None:
    """End process ``pid``, politely first, unless it is another one than that which ``started`` names."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        if process_started(pid) != started:
            return
        try:
            os.kill(pid, sent)
        except ProcessLookupError:
            return
        _wait_until_gone(pid, started)


def _wait_until_gone(pid: int, started: str) -> None:
    """Return once the process is gone, or after ``GRACE_SECONDS``."""
    until = time.monotonic() + GRACE_SECONDS
    while process_started(pid) == started and time.monotonic() < until:
        time.sleep(POLL_SECONDS)


def _read_process_record(path: Path) -> ProcessRecord | None:
    """Return the record at ``path``, or None where it is none (records are renamed into place, never half-written)."""
    try:
        return ProcessRecord(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
