"""Many short scheduled runs by a real worker under the real keeper: none is taken for dead while it lives.

Prefect's scheduler makes the runs, a worker of `kgqa up` starts them, and each holds a lease as every run of ours does.
Only what a run costs is spared: it is forked from a process that has loaded Prefect, and does nothing but wait. One in
`DEADLY` kills itself, so that a keeper that sees nothing does not pass.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

from benchmarks.drills.runs import running
from tasks.services import read_services

POOL, AT_ONCE = "kgqa-short", 8
DEPLOYMENTS, EVERY_SECONDS = 4, 8  # 30 runs a minute
FEW = {  # what is scheduled ahead: by default 100 runs of each, which SQLite takes minutes to write
    "PREFECT_SERVER_SERVICES_SCHEDULER_MAX_RUNS": "10",
    "PREFECT_SERVER_SERVICES_SCHEDULER_MIN_SCHEDULED_TIME": "PT1M",
    "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "20",
}
DEADLY = 50
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
LIMIT, GRACE = 7200.0, 180.0  # seconds; the latter for runs that the keeper schedules again
TAKEN_FOR_DEAD = ("was killed", "has no process any more")  # what the keeper says of a run that it ends

# Listens at a socket, and runs a flow in a fork of itself for each that asks, with the environment of who asks.
NURSERY = """\
import json, os, runpy, signal, socket, sys
import prefect.flow_engine, prefect.main, tasks.outbox

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen(64)
while True:
    asking, _ = listening.accept()
    if os.fork():
        asking.close()
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:  # tells how it ended
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        asking.sendall(str(code).encode())
        os._exit(0)
    listening.close()
    os.environ.clear()
    os.environ.update(json.loads(asking.makefile("rb").readline()))
    asking.close()
    sys.argv = ["prefect.engine"]
    runpy.run_module("prefect.engine", run_name="__main__")
    sys.exit(0)
"""
# What the worker starts: asks the nursery, waits, and ends as the run did.
ASK = """\
import json, os, socket, sys
asking = socket.socket(socket.AF_UNIX)
asking.connect(sys.argv[1])
asking.sendall(json.dumps(dict(os.environ)).encode() + b"\\n")
code = int(asking.recv(16))
os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)
"""
FLOW = """\
import os, signal, time
from pathlib import Path
from uuid import UUID

from prefect import flow
from prefect.runtime import flow_run

from tasks.outbox import noted
from tasks.run_content import FlowRun


@flow
def short():
    number = UUID(str(flow_run.id)).int
    told = dict.fromkeys(("dataset", "config_name", "config_hash", "config_text", "git_commit"), "")
    run = FlowRun(id=str(flow_run.id), name="short", started_ms=round(time.time() * 1000), **told)
    with noted(Path(os.environ["KGQA_HOME"]), run, tracked=False):
        time.sleep(number % 7)
        if number % DEADLY == 0:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def scheduled(folder: Path, server: str, points: int) -> dict[str, Any]:
    """Let `points` scheduled runs end, several at a time: all are Completed but those that killed themselves."""
    socket, command = folder / "nursery", [sys.executable, "-S", "-E", str(folder / "ask.py")]
    (folder / "nursery.py").write_text(NURSERY, encoding="utf-8")
    (folder / "ask.py").write_text(ASK, encoding="utf-8")
    (folder / "short.py").write_text(FLOW.replace("DEADLY", str(DEADLY)), encoding="utf-8")
    pool = {"name": POOL, "job_variables": {"command": f"{' '.join(command)} {socket}"}}
    deployed = [
        {
            "name": f"short-{number}",
            "entrypoint": f"{folder}/short.py:short",
            "work_pool": pool,
            "schedules": [{"interval": EVERY_SECONDS}],
        }
        for number in range(DEPLOYMENTS)
    ]
    (folder / "prefect.yaml").write_text(json.dumps({"deployments": deployed}), encoding="utf-8")  # JSON is YAML
    with running(folder, folder / "prefect.yaml", "--worker", POOL, environment=FEW) as (home, ask):
        ask(f"work_pools/{POOL}", method="PATCH", concurrency_limit=AT_ONCE)
        services = read_services(home.folder)
        assert services is not None
        environment = {**home.environment, "PREFECT_API_URL": services.prefect}
        nursery = subprocess.Popen([sys.executable, str(folder / "nursery.py"), str(socket)], env=environment)
        try:
            began, ended, names, told, enough = time.monotonic(), dict[str, str](), dict[str, str](), 0, 0.0
            while not are_enough(ended, points) or (wrong_in(ended) and time.monotonic() - began < enough + GRACE):
                enough = enough if are_enough(ended, points) else time.monotonic() - began
                if time.monotonic() - began > LIMIT:
                    raise RuntimeError(f"after {LIMIT:.0f} s {len(ended)} of {points} runs have ended")
                wanted = {"flow_runs": {"state": {"type": {"any_": ENDED}}}, "sort": "END_TIME_DESC", "limit": 200}
                found = ask("flow_runs/filter", **wanted)
                ended |= {run["id"]: run["state_type"] for run in found if run["auto_scheduled"]}
                names |= {run["id"]: run["name"] for run in found}
                if len(ended) // 100 > told:
                    told = len(ended) // 100
                    print(f"{len(ended)} runs after {time.monotonic() - began:.0f} s: {counts(ended)}", flush=True)
                time.sleep(5)
            seconds = time.monotonic() - began
        finally:
            nursery.terminate()
            nursery.wait(20)
        said = (home.folder / "logs" / "keeper.log").read_text(encoding="utf-8").splitlines()
    deadly, wrong = set(filter(kills_itself, ended)), wrong_in(ended)
    spared = [word for run in deadly for word in (run, names[run])]
    false = [line for line in said if line.endswith(TAKEN_FOR_DEAD) and not any(word in line for word in spared)]
    if wrong or false:
        raise RuntimeError(f"{counts(ended)}; wrong: {wrong}; the keeper said {false}")
    again, away = (sum(words in line for line in said) for words in ("is scheduled again", "cannot look after"))
    found = {"runs": len(ended), "states": counts(ended), "killed": len(deadly), "seconds": round(seconds)}
    return {**found, "scheduled_again": again, "prefect_did_not_answer": away}


def are_enough(ended: dict[str, str], points: int) -> bool:
    """Say whether so many runs have ended, and one of them by its own hand: without it a keeper need not look."""
    return len(ended) >= points and any(map(kills_itself, ended))


def kills_itself(run: str) -> bool:
    """Say whether a run ends by SIGKILL."""
    return UUID(run).int % DEADLY == 0


def wrong_in(ended: dict[str, str]) -> dict[str, str]:
    """Return the runs that did not end as they should."""
    return {run: was for run, was in ended.items() if was != ("CRASHED" if kills_itself(run) else "COMPLETED")}


def counts(ended: dict[str, str]) -> dict[str, int]:
    """Return how many runs ended in each state."""
    return dict(Counter(ended.values()))
