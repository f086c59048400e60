"""Children that outlive us by accident: written down when they start, and ended by the next start.

A process is known by its id *and* its start time, so that a recycled id is never taken for the process that had it.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kgqa_core.artifacts import write_json

POLL_SECONDS = 0.05
LOOPBACK = ("127.0.0.1", "::1", "localhost")
GRACE_SECONDS = 5.0  # between asking a process to end and ending it


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
    started, owner = process_started(pid) or "", os.getpid()
    record = ProcessRecord(pid, started, owner, process_started(owner) or "", platform.node(), log.name)
    write_json(record.path(folder), asdict(record))
    return record


def forget_process(folder: Path, record: ProcessRecord) -> None:
    """Remove the record and the log of a process that has ended."""
    record.path(folder).unlink(missing_ok=True)
    (folder / record.log).unlink(missing_ok=True)


def end_leftovers(folder: Path) -> list[int]:
    """End the processes recorded in ``folder`` whose owner is gone, forget them, and return their ids."""
    ended = []
    for path in sorted(folder.glob("process-*.json")):
        try:
            record = ProcessRecord(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # records are renamed into place, never half-written
            path.unlink(missing_ok=True)
            continue
        if record.host != platform.node() or process_started(record.owner_pid) == record.owner_started:
            continue
        if record.started and process_started(record.pid) == record.started:
            end_process(record.pid, record.started)
            ended.append(record.pid)
        forget_process(folder, record)
    return ended


def end_process(pid: int, started: str, *, grace: float = GRACE_SECONDS) -> None:
    """End process ``pid``, politely first, unless it is another one than that which ``started`` names."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        if process_started(pid) != started:
            return
        try:
            os.kill(pid, sent)
        except ProcessLookupError:
            return
        until = time.monotonic() + grace
        while process_started(pid) == started and time.monotonic() < until:
            time.sleep(POLL_SECONDS)


def flow_lock(home: Path, run_id: str) -> Path:
    """Return the lock that the one process of a flow's run holds while it works (runtime.py)."""
    return home / "run" / "flows" / f"{run_id}.lock"


def is_free(lock: Path) -> bool:
    """Say whether nobody holds a lock file."""
    try:
        with lock.open("r+", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return not lock.exists()
    return True


def past_proxies(*addresses: str) -> dict[str, str]:
    """Return the variables by which calls to servers on this machine stay away from a proxy, in both spellings."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    local = [host for address in addresses if (host := urlsplit(address).hostname) in LOOPBACK]
    hosts = ",".join(dict.fromkeys(filter(None, [*known.split(","), *local])))
    return dict.fromkeys(("no_proxy", "NO_PROXY"), hosts) if local else {}


def services_file(home: Path) -> Path:
    """Return the file in which ``kgqa up`` notes what it started (services.py)."""
    return home / "run" / "services.json"


def running_server(home: Path, name: str) -> str | None:
    """Return the address of the server, ``prefect`` or ``mlflow``, that ``kgqa up`` runs or uses for this home."""
    try:
        found = json.loads(services_file(home).read_text(encoding="utf-8"))
        keeper = found["processes"]["keeper"]
        return str(found[name]) if found["ready"] and process_started(keeper["pid"]) == keeper["started"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
