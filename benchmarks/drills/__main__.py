"""The drills, each of which says what came of it and fails where something was lost."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.drills.full_memory import full_memory
from benchmarks.drills.load import load, wait_until
from benchmarks.drills.runs import CONF, LIMIT, MODEL, Home, kill_group, running
from benchmarks.drills.scheduled import ENDED, scheduled
from kgqa_core.artifacts import write_json
from tasks.leftovers import process_started
from tasks.release import Releases
from tasks.server import prefect_server
from tests.processes import free_port, processes_of, serving

Found = dict[str, Any]


def kills(folder: Path, server: str, points: int, seed: int = 0) -> Found:
    """kill -9 of the flow and all its processes at random points: the same bytes and the same alias as without."""
    undisturbed = Home(folder / "undisturbed", server)
    undisturbed_seconds, expected = undisturbed.finish(), undisturbed.outcome()
    seconds = undisturbed_seconds
    chance, found = random.Random(seed), list[Found]()
    todo, tried = chance.sample(range(points), points), 0  # spread over the run, also where the series is cut short
    while todo:
        home, tried = Home(folder / f"killed-{tried}", server), tried + 1
        run, began = home.start(), time.monotonic()
        when = seconds * (todo[-1] + chance.random()) / points
        while run.poll() is None and time.monotonic() - began < when:
            time.sleep(0.01)
        if run.poll() is not None:  # the machine is less busy than before: no kill, the same point again
            seconds = min(seconds, time.monotonic() - began)
            home.finish(run)  # which fails where the run did
            continue
        kill_group(run)
        before = home.made_at()
        home.finish()
        after = home.made_at()
        repeated = [name for name, made in before.items() if after[name] != made]
        same, left = home.outcome() == expected, home.left_running()
        if repeated or not same or left:
            raise RuntimeError(
                f"killed at {when:.1f} s: made again: {repeated}; the same outcome: {same}; left: {left}"
            )
        todo.pop()
        shutil.rmtree(home.folder)
        found.append({"at_seconds": round(when, 1), "stages_done": len(before)})
        print(f"killed at {when:.1f} s, {len(before)} stages done: the same outcome", flush=True)
    whole = len(expected[0])
    return {
        "undisturbed_seconds": round(undisturbed_seconds, 1),
        "artifacts": whole,
        "points": found,
        "same": len(found),
    }


def two_at_once(folder: Path, server: str, points: int) -> Found:
    """Two retrainings at once in one home: one outcome, one promotion."""
    alone = Home(folder / "alone", server)
    alone.finish()
    home = Home(folder / "two", server)
    both = [home.start() for _ in range(2)]
    codes = [run.wait(600) for run in both]
    moves = [move.kind for move in Releases(home.folder, MODEL).moves()]
    if any(codes) or home.outcome() != alone.outcome() or moves != ["promoted"]:
        raise RuntimeError(f"codes {codes}, moves {moves}: {home.log[-3000:]}")
    return {"codes": codes, "moves": moves, "same": True}


def mlflow_away(folder: Path, server: str, points: int) -> Found:
    """MLflow is away for two runs and comes back: all are told, in order, once."""
    from mlflow import MlflowClient

    port = free_port()
    address = f"http://127.0.0.1:{port}"
    home = Home(folder / "away", server, mlflow=address)
    for epochs in (1, 2):
        home.finish(home.start("--set", f"explorer.epochs={epochs}"))
    waited = len(list((home.folder / "outbox").glob("*.json")))
    store = [f"sqlite:///{folder / 'mlflow.db'}", "--default-artifact-root", (folder / "files").as_uri()]
    command = [str(Path(sys.executable).with_name("mlflow")), "server", "--port", str(port), "--workers", "1"]
    quiet = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # three processes that nobody here needs
    started = serving(
        [*command, "--no-serve-artifacts", "--backend-store-uri", *store], port, folder / "mlflow.log", env=quiet
    )
    with started:
        home.finish(home.start("--set", "explorer.epochs=2"))
        client = MlflowClient(address, address)
        (experiment,) = client.search_experiments(filter_string="name = 'drill'")
        runs = client.search_runs([experiment.experiment_id], "tags.kind = 'flow'", order_by=["start_time"])
        created = [run.data.tags["flow_run_id"] for run in runs]
        alias = home.alias()
    left = len(list((home.folder / "outbox").glob("*.json")))
    if (waited, len(set(created)), len(created), left) != (2, 3, 3, 0) or alias is None:
        raise RuntimeError(f"{waited} waited, {len(created)} were told, {left} wait still, alias {alias}")
    return {"waited": waited, "told": len(created), "left": left}


def sigterm(folder: Path, server: str, points: int) -> Found:
    """SIGTERM in the middle of a training: a clean stop, a run that is KILLED in MLflow, and one that goes on."""
    from mlflow import MlflowClient

    home = Home(folder / "sigterm")  # a server of its own, which has to end, too
    run = home.start("--set", "explorer.epochs=60")
    wait_until(lambda: any((home.folder / "artifacts").glob("explorer/*.work")))
    time.sleep(1)
    began = time.monotonic()
    run.send_signal(signal.SIGTERM)
    code, seconds = run.wait(120), time.monotonic() - began
    before, left = home.made_at(), home.left_running()
    home.finish(home.start("--set", "explorer.epochs=60"))
    again = [name for name, made in before.items() if home.made_at()[name] != made]
    client = MlflowClient(f"sqlite:///{home.folder / 'mlflow' / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'drill'")
    runs = client.search_runs([experiment.experiment_id], "tags.kind = 'flow'", order_by=["start_time"])
    told = [one.info.status for one in runs]
    if left or again or told != ["KILLED", "FINISHED"]:
        raise RuntimeError(f"left running: {left}; made again: {again}; MLflow: {told}")
    return {"code": code, "stopped_after_seconds": round(seconds, 1), "stages_kept": len(before), "mlflow": told}


def rollback(folder: Path, server: str, points: int) -> Found:
    """A rollback while a challenger is judged: the run does not undo it, says why, and the next one judges anew."""
    from flows.gated import move_champion
    from kgqa_core.config_file import read_config

    home, third = Home(folder / "rollback", server), ("--set", "explorer.epochs=3")
    config = read_config(CONF, [f"runtime.home={home.folder}"])
    home.finish()
    first = home.champion()
    home.finish(home.start("--set", "explorer.epochs=1"))
    move_champion(config, None, "whatever the gate said")
    second, judged = home.champion(), set((home.folder / "artifacts" / "gate-answers").glob("*"))
    run = home.start(*third)
    while run.poll() is None and set((home.folder / "artifacts" / "gate-answers").glob("*")) == judged:
        time.sleep(0.01)
    move_champion(config, None, "a drill", back=True)
    code, before = run.wait(600), home.made_at()
    after = home.champion()
    home.finish(home.start(*third))
    again = [name for name, made in before.items() if home.made_at()[name] != made]
    moves = [move.kind for move in Releases(home.folder, MODEL).moves()]
    if code != 3 or after != first or second == first or again:
        raise RuntimeError(f"code {code}, champions {first} {second} {after}, made again {again}: {home.log[-2000:]}")
    return {"code": code, "champion_stays": after == first, "moves": moves, "made_again": again}


def server_killed(folder: Path, server: str, points: int) -> Found:
    """kill -9 of both servers of `kgqa up` during a run of its worker: they start again, and the run ends well."""
    from tasks.services import read_services

    with running(folder, Path(__file__).parents[2] / "prefect.yaml") as (home, ask):
        deployment = ask("deployments/name/retrain/nightly")["id"]
        asked = {"parameters": {"config": str(CONF)}}
        run = ask(f"deployments/{deployment}/create_flow_run", **asked, state={"type": "SCHEDULED"})["id"]

        def state() -> str:
            return str(ask(f"flow_runs/{run}")["state"]["type"])

        wait_until(lambda: state() in ENDED or any((home.folder / "artifacts").glob("graph/*")))
        if (now := state()) in ENDED:
            raise RuntimeError(f"the run is {now} before the servers are killed")
        services = read_services(home.folder)
        assert services is not None
        for name in ("prefect", "mlflow"):
            assert process_started(services.processes[name].pid) == services.processes[name].started
            os.kill(services.processes[name].pid, signal.SIGKILL)
        began = time.monotonic()
        wait_until(lambda: state() in ENDED, LIMIT)
        found = {"run": state(), "after_seconds": round(time.monotonic() - began, 1), "champion": home.champion()}
        found["waiting_for_mlflow"] = len(list((home.folder / "outbox").glob("*.json")))
        if found["run"] != "COMPLETED" or not found["champion"]:
            raise RuntimeError(f"{found}")
        return found


DRILLS: dict[str, Callable[..., Found]] = {
    one.__name__: one
    for one in (kills, two_at_once, mlflow_away, sigterm, rollback, server_killed, scheduled, load, full_memory)
}


def main() -> None:
    """Run the named drills, all by default, and print what came of each as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drills", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*DRILLS, []], metavar="NAME", help=", ".join(DRILLS))
    parser.add_argument(
        "--points",
        type=int,
        default=30,
        help="at which `kills` kills, runs of `scheduled`, seconds of `load` (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, help="write what was found there, as well")
    options = parser.parse_args()
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory() as name, prefect_server(Path(name) / "server") as server:
        for drill in options.names or DRILLS:
            folder = Path(name) / drill
            folder.mkdir()
            try:
                found[drill] = DRILLS[drill](folder, server, options.points)
            finally:
                for process in processes_of(folder):  # of a drill that failed
                    with suppress(ProcessLookupError):  # it ended meanwhile
                        os.kill(process, signal.SIGKILL)
            print(json.dumps({drill: found[drill]}), flush=True)
            if options.out:
                write_json(options.out, found)


if __name__ == "__main__":
    main()
