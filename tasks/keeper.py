"""The program that ``kgqa up`` leaves running: it starts the services, and starts again what ends by itself.

It is the lease of every run, too. A run holds its lock for as long as its process lives (outbox.py), and a worker knows
the process of each run that it started: what neither has any more is marked Crashed, so that nothing waits for it.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kgqa_core.errors import KgqaError
from tasks.leftovers import past_proxies, process_started
from tasks.logs import JsonLines, wants_json
from tasks.mlflow_store import mask
from tasks.outbox import end_killed
from tasks.poller import Poller, poll_seconds
from tasks.runtime import NOT_STARTED, mark_crashed
from tasks.server import LOG_LINES_SHOWN
from tasks.services import (
    ENDS,
    KEEPER,
    MLFLOW,
    POLL_SECONDS,
    PREFECT,
    START_SECONDS,
    Services,
    Started,
    ask_prefect,
    command_of,
    end_others,
    healthy,
    is_ours,
    read_services,
    start,
    stop_all,
    worker_name,
)

ROUND_SECONDS = 3.0  # between two looks at the processes
RUNS_SECONDS = 15.0  # between two looks at the runs
ASK_SECONDS = 60.0  # between two looks at whether they answer: MLflow logs each
ANSWER_SECONDS = 30.0  # that such an answer may take: a server that is slow under load is not to be killed
HUNG_SECONDS = START_SECONDS  # that what runs may answer nothing: a start may take as long
PENDING_SECONDS = 60.0  # that a run may take from its worker's hands to a process
PATIENCE = 0.0, 3.0, 10.0, 60.0  # seconds before the first, second, ... start of what ended; the last for all later
CALM_SECONDS = 600.0  # what ran for so long starts again at once
MAX_LOG = 20_000_000  # bytes; then it is kept as NAME.log.1, and begins anew
TRIES = 3  # of a run that its worker could not start
GOING_ON = ("PENDING", "RUNNING", "CANCELLING")
_log = logging.getLogger(__name__)


class Keeper:
    """Starts the services of a home, and keeps them running until it is stopped."""

    def __init__(self, services: Services) -> None:
        self.services = replace(services, processes={KEEPER: Started(os.getpid(), process_started(os.getpid()) or "")})
        self.services.write()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._starts: dict[str, list[float]] = {}
        # Run and state -> when it was first seen without a process, by a clock that nobody sets.
        self._suspects: dict[tuple[str, str], float] = {}
        self._silent: dict[str, float] = {}  # what runs -> when it first had no answer, by the same clock
        self._tries: dict[str, int] = {}  # run -> how often it was given to a worker again
        self._since = datetime.now(UTC).isoformat()

    @property
    def home(self) -> Path:
        """The home whose services these are."""
        return Path(self.services.home)

    def start(self, name: str) -> None:
        """Start a service and write it down; what is left of it, such as a child that holds its port, ends before."""
        if name in self._children:
            end_others(self.services, of=self._children[name].pid)
        self._starts.setdefault(name, []).append(time.monotonic())  # a start that fails is not tried at once again
        self._children[name] = process = start(self.services, name)
        now = Started(process.pid, process_started(process.pid) or "")
        self.services = replace(self.services, processes={**self.services.processes, name: now})
        self.services.write()

    def start_all(self) -> None:
        """Start everything in order: servers, pools and deployments, workers. KgqaError where one does not answer."""
        for name in self.services.own:
            self.start(name)
        self._wait_for(PREFECT)
        self._deploy()
        self._wait_for(MLFLOW)
        for pool in self.services.pools:
            self.start(f"worker-{pool}")
        self.services = replace(self.services, ready=True)
        self.services.write()

    def _wait_for(self, name: str) -> None:
        until = time.monotonic() + START_SECONDS
        while not healthy(self.services, name):
            child, address = self._children.get(name), getattr(self.services, name)
            if child is not None and child.poll() is not None:
                tail = self.services.log(name).read_text(encoding="utf-8", errors="replace").splitlines()
                raise KgqaError("\n".join([*tail[-LOG_LINES_SHOWN:], f"{name} ended with code {child.returncode}"]))
            if time.monotonic() > until or (child is None and name not in self.services.own):
                raise KgqaError(f"{name} does not answer at {mask(address)}")
            time.sleep(POLL_SECONDS)

    def _deploy(self) -> None:
        _, environment = command_of(self.services, f"worker-{''.join(self.services.pools[:1])}")
        command = [sys.executable, "-m", "tasks.deployments", self.services.deployments, *self.services.pools]
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        log = self.services.log("deployments")
        log.parent.mkdir(parents=True, exist_ok=True)  # where the servers are somebody else's, it is the first
        log.write_text(mask(done.stdout + done.stderr), encoding="utf-8")  # it shows addresses of Prefect's UI
        if done.returncode:
            said = mask(done.stderr or done.stdout).splitlines()[-LOG_LINES_SHOWN:]
            raise KgqaError("\n".join([*said, f"{self.services.deployments} cannot be deployed"]))

    def keep(self) -> None:
        """Look after everything, for ever."""
        dumps = Poller(self.home, Path(self.services.deployments), lambda event: self._ask("events", [event]))
        regularly = {self.end_lost_runs: RUNS_SECONDS, self.give_again: RUNS_SECONDS, self.end_hung: ASK_SECONDS}
        regularly |= {dumps.poll: poll_seconds()}
        done = dict.fromkeys(regularly, -math.inf)
        while True:
            for name, child in list(self._children.items()):
                if child.poll() is not None and self._may_start(name):
                    _log.warning("%s ended with code %d and is started again", name, child.returncode)
                    self._attempt(self.start, name)
                self._rotate(self.services.log(name))
            self._rotate(self.services.log(KEEPER))
            if read_services(self.home) != self.services:  # a full disk took no note of a start
                self._attempt(self.services.write)
            for work, seconds in regularly.items():
                if time.monotonic() - done[work] >= seconds:
                    self._attempt(work)
                    done[work] = time.monotonic()
            time.sleep(ROUND_SECONDS)

    def end_hung(self) -> None:
        """Kill what runs and has answered nothing for HUNG_SECONDS: the next round starts it again.

        A worker's runs go on without it.
        """
        for name, child in self._children.items():
            if child.poll() is not None or healthy(self.services, name, ANSWER_SECONDS):
                self._silent.pop(name, None)
            elif time.monotonic() - self._silent.setdefault(name, time.monotonic()) >= HUNG_SECONDS:
                _log.warning("%s runs, has answered nothing for %d s, and is killed", name, HUNG_SECONDS)
                child.kill()
                del self._silent[name]

    def _attempt(self, work: Callable[..., object], *of: str) -> None:
        """Do what a Prefect that is away or a full disk may hinder: the next look tries again."""
        try:
            work(*of)
        except Exception as problem:
            what = " ".join((work.__name__, *of))
            _log.warning(
                "cannot look after services, runs and dumps (%s): %s: %s",
                what,
                type(problem).__name__,
                mask(str(problem)),
            )

    def _may_start(self, name: str) -> bool:
        """Say whether what ended may start again: at once, then less and less often."""
        now = time.monotonic()
        recent = [when for when in self._starts[name] if now - when < CALM_SECONDS]
        self._starts[name] = recent
        wait = PATIENCE[min(len(recent), len(PATIENCE)) - 1] if recent else 0.0
        return not recent or now - recent[-1] >= wait

    def _rotate(self, log: Path) -> None:
        with suppress(OSError):
            if log.stat().st_size > MAX_LOG:
                shutil.copyfile(log, log.with_suffix(".log.1"))
                os.truncate(log, 0)  # processes append to it

    # ------ Runs.

    def end_lost_runs(self) -> None:
        """Mark the runs whose process is gone as Crashed; one that never got a process is given to a worker again."""
        for run in end_killed(self.home, mark_crashed):
            _log.warning("run %s was killed", run)
        now, lost = time.monotonic(), {(run["id"], run["state"]["id"]): run for run in self._lost_runs()}
        self._suspects = {one: self._suspects.get(one, now) for one in lost}
        for (run_id, state), since in self._suspects.items():
            run = lost[run_id, state]
            if run["infrastructure_pid"] and now > since:  # seen twice: its worker had time to tell how it ended
                _log.warning("run %s has no process any more", run["name"])
                mark_crashed(run_id)
            elif not run["infrastructure_pid"] and now - since > PENDING_SECONDS:
                _log.warning("run %s never got a process and is scheduled again", run["name"])
                self._schedule(run_id)

    def give_again(self) -> None:
        """Schedule runs again that their worker could not start, up to TRIES times each.

        Where Prefect is too busy to answer, its worker gives a run up as Crashed. Those of before this keeper stay.
        """
        wanted = {"work_pools": {"name": {"any_": self.services.pools}}, "sort": "END_TIME_DESC", "limit": 100}
        crashed = {"state": {"type": {"any_": ["CRASHED"]}}, "end_time": {"after_": self._since}}
        found = self._ask("flow_runs/filter", wanted | {"flow_runs": crashed})
        for run in [one for one in found if str(one["state"]["message"]).startswith(NOT_STARTED)]:
            tried = self._tries.get(run["id"], 0)
            if tried < TRIES:
                self._tries[run["id"]] = tried + 1
                _log.warning("run %s could not be started and is scheduled again", run["name"])
                self._schedule(run["id"])

    def _schedule(self, run_id: str) -> None:
        self._ask(f"flow_runs/{run_id}/set_state", {"state": {"type": "SCHEDULED"}, "force": True})

    def _lost_runs(self) -> Iterable[dict[str, Any]]:
        for pool in self.services.pools:
            workers = self._ask(f"work_pools/{pool}/workers/filter", {})
            if any(one["status"] == "ONLINE" and one["name"] != worker_name(self.services, pool) for one in workers):
                continue  # of another machine, perhaps: its processes cannot be seen from here
            wanted = {"work_pools": {"name": {"any_": [pool]}}, "flow_runs": {"state": {"type": {"any_": GOING_ON}}}}
            for run in self._ask("flow_runs/filter", wanted):
                if pid := run["infrastructure_pid"]:
                    lost = pid.isdigit() and not is_ours(self.services, int(pid))
                else:  # one that runs is at work, and Prefect could not note in which process
                    lost = run["state"]["type"] == "PENDING"
                if lost:
                    yield run

    def _ask(self, what: str, body: Any) -> Any:
        return ask_prefect(self.services, what, body, timeout=20)


def main(home: Path, *, foreground: bool = False) -> None:
    """Start and keep the services that are noted in a home; in the foreground, its end is theirs."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if wants_json():
        logging.getLogger().handlers[0].setFormatter(JsonLines())
    logging.getLogger("httpx").setLevel(logging.WARNING)
    services = read_services(home)
    assert services is not None
    keeper = Keeper(services)
    os.environ |= {"PREFECT_API_URL": services.prefect, "PREFECT_LOGGING_LEVEL": "ERROR"}
    os.environ |= past_proxies(services.prefect, services.mlflow)  # for all that is started, too
    os.environ.setdefault("PREFECT_HOME", str(home / "prefect"))
    try:
        keeper.start_all()
        keeper.keep()
    except KgqaError as problem:
        sys.exit(f"{problem}")
    finally:
        if foreground:
            for sent in ENDS:  # a second one would leave half of everything running
                signal.signal(sent, signal.SIG_IGN)
            stop_all(home)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
