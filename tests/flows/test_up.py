"""`kgqa up`: servers, a real worker, deployments triggered through Prefect's API, and nothing left afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tasks.services import Services, read_services
from tests.conftest import PROJECT
from tests.processes import assert_nothing_runs, free_port, processes_of

CONFIG = """\
dataset: {name: rivers, source: embedded}
encoder: {kind: hash, dim: 31}
explorer: {steps: STEPS, width: 13, edge_budget: 7, epochs: EPOCHS, batch_size: 128}
gate: {share: 0.2, min_lift: -100, max_seconds: 60}
"""
PATIENCE = 300.0  # seconds; where nothing else runs, everything here takes a tenth of it


@dataclass
class Up:
    """A home whose services run, and one run configuration."""

    home: Path
    conf: Path
    ports: tuple[int, int]

    def kgqa(self, *arguments: str, code: int = 0) -> str:
        """Run a command; return what it prints, errors too."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PREFECT_"))}
        ours |= {"KGQA_HOME": str(self.home), "PYTHONPATH": str(PROJECT), "PREFECT_WORKER_QUERY_SECONDS": "2"}
        command = [sys.executable, "-m", "flows.cli", *arguments]
        done = subprocess.run(command, cwd=PROJECT, env=ours, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout + done.stderr if code else done.stdout

    def up(self, code: int = 0) -> str:
        ports = ("--prefect-port", str(self.ports[0]), "--mlflow-port", str(self.ports[1]))
        return self.kgqa("up", *ports, "--worker", "kgqa-cpu", "--worker", "kgqa-gpu", "--json", code=code)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.kgqa(*arguments, str(self.conf), "--json"))

    @property
    def services(self) -> Services:
        services = read_services(self.home)
        assert services is not None
        return services

    def write(self, *, steps: int = 2, epochs: int = 1) -> None:
        text = CONFIG.replace("STEPS", str(steps)).replace("EPOCHS", str(epochs))
        self.conf.write_text(text, encoding="utf-8")

    def ask(self, what: str, **body: Any) -> Any:
        """POST to Prefect's API, or GET where there is no body."""
        data = json.dumps(body).encode() if body else None
        address = f"http://127.0.0.1:{self.ports[0]}/api/{what}"
        request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
        for left in range(20, -1, -1):
            try:
                with urllib.request.urlopen(request, timeout=30) as response:
                    return json.load(response)
            except urllib.error.HTTPError as problem:
                if (
                    problem.code != 503 or not left
                ):  # SQLite is locked for a moment; Prefect's own client asks again, too
                    raise
                time.sleep(0.5)

    def trigger(self, deployment: str = "retrain/nightly") -> str:
        """Let a deployment run at once, and return the id of the run."""
        found = self.ask(f"deployments/name/{deployment}")
        asked = {"parameters": {"config": str(self.conf)}, "state": {"type": "SCHEDULED"}}
        return str(self.ask(f"deployments/{found['id']}/create_flow_run", **asked)["id"])

    def state(self, run: str) -> str:
        return str(self.ask(f"flow_runs/{run}")["state"]["type"])

    def wait(self, run: str, *states: str) -> str:
        return wait_for(lambda: (state := self.state(run)) in states and state, run)

    def aliases(self) -> dict[str, str]:
        model = MlflowClient(f"http://127.0.0.1:{self.ports[1]}").get_registered_model("kgqa-rivers")
        return {alias: str(version) for alias, version in model.aliases.items()}


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + PATIENCE
    while not (answer := condition()):
        assert time.monotonic() < until, what
        time.sleep(0.2)
    return answer


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    here = Up(folder / "home", folder / "rivers.yaml", (free_port(), free_port()))
    here.write()
    try:
        yield here
    finally:
        here.kgqa("down")
        assert_nothing_runs(here.home)


@pytest.mark.slow
def test_a_deployment_is_promoted_refused_and_rolled_back(up: Up) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", up.ports[1]))
        taken.listen()
        said = up.up(code=2)
    assert f"port {up.ports[1]} of 127.0.0.1 cannot be had" in said and "--mlflow-port" in said
    assert said.count("\n") == 1
    assert not processes_of(up.home)

    assert json.loads(up.up())["started_now"]
    again = json.loads(up.up())
    assert (again["up"], again["started_now"]) == (True, False)
    assert again["services"].keys() == {"prefect", "mlflow", "worker-kgqa-cpu", "worker-kgqa-gpu", "keeper"}
    listens = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True, check=False).stdout  # where there is ss
    for port in up.ports:
        assert f"0.0.0.0:{port}" not in listens and f"*:{port}" not in listens

    assert up.wait(up.trigger(), "COMPLETED", "FAILED", "CRASHED") == "COMPLETED"
    first = up.json("history")
    assert [move["kind"] for move in first["moves"]] == ["promoted"]
    assert up.aliases() == {"champion": "1"}
    (elsewhere,) = up.ask("flow_runs/filter", deployments={"name": {"any_": ["train"]}})  # that pool has a live worker
    assert (elsewhere["state_type"], elsewhere["parameters"]["config"]) == ("COMPLETED", str(up.conf))

    up.write(steps=1)  # what lies two steps away is out of reach: it has to be worse
    assert up.wait(up.trigger(), "COMPLETED", "FAILED", "CRASHED") == "COMPLETED"
    second = up.json("history")
    assert [move["kind"] for move in second["moves"]] == ["promoted", "refused"]
    assert second["champion"] == first["champion"]
    assert up.aliases() == {"champion": "1", "challenger": "2"}

    assert up.json("promote")["champion"] == second["moves"][-1]["to_release"]
    assert up.json("rollback")["champion"] == first["champion"]
    assert up.aliases()["champion"] == "1"


@pytest.mark.slow
def test_after_worker_and_flow_were_killed_the_next_run_starts_unaided(up: Up) -> None:
    up.up()
    up.write(epochs=200)
    killed = up.trigger()
    up.wait(killed, "RUNNING")
    wait_for(lambda: list((up.home / "run" / "datasets").glob("*.lock")), "the run of a dataset")
    flow = int(wait_for(lambda: up.ask(f"flow_runs/{killed}")["infrastructure_pid"], "its process"))
    before = up.services.processes["worker-kgqa-cpu"]
    for pid in (before.pid, flow):
        os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    up.write()
    following = up.trigger()
    up.wait(following, "RUNNING", "COMPLETED")
    assert time.monotonic() - began < 90
    assert up.wait(killed, "CRASHED")
    assert up.wait(following, "COMPLETED", "FAILED", "CRASHED") == "COMPLETED"
    assert up.services.processes["worker-kgqa-cpu"] != before
