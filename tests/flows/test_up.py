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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from tasks.services import Services, read_services
from tests.conftest import PROJECT, TOWNS, write_jsonl
from tests.processes import assert_nothing_runs, free_port, processes_of, wait_for

CONFIG = """\
dataset: {name: rivers, source: embedded}
encoder: {kind: hash, dim: 31}
explorer: {steps: STEPS, width: 13, edge_budget: 7, epochs: EPOCHS, batch_size: 128}
gate: {share: 0.2, min_lift: -100, max_seconds: 60}
"""


@dataclass
class Up:
    """A home whose services run, and one run configuration."""

    home: Path
    conf: Path
    deployments: Path
    ports: tuple[int, int]

    def kgqa(self, *arguments: str, code: int = 0) -> str:
        """Run a command; return what it prints, errors too."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PREFECT_"))}
        ours |= {"KGQA_HOME": str(self.home), "PYTHONPATH": str(PROJECT), "PREFECT_WORKER_QUERY_SECONDS": "2"}
        ours |= {"KGQA_POLL_SECONDS": "4", "KGQA_LOGS": "json"}
        command = [sys.executable, "-m", "flows.cli", *arguments]
        done = subprocess.run(command, cwd=PROJECT, env=ours, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout + done.stderr if code else done.stdout

    def up(self, code: int = 0) -> str:
        ports = ("--prefect-port", str(self.ports[0]), "--mlflow-port", str(self.ports[1]))
        pools = ("--worker", "kgqa-cpu", "--worker", "kgqa-gpu")
        return self.kgqa("up", *ports, *pools, "--deployments", str(self.deployments), "--json", code=code)

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
                if problem.code != 503 or not left:  # a locked SQLite: Prefect's own client asks again, too
                    raise
                time.sleep(0.5)
            except TimeoutError:  # as long as SQLite is locked for longer; what is only read may be asked again
                if not left or not (data is None or what.endswith("/filter")):
                    raise

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


def write_deployments(folder: Path) -> None:
    """Write those of prefect.yaml, but ``rebuild-shards`` waits for a dump of this folder."""
    deployed = yaml.safe_load((PROJECT / "prefect.yaml").read_text(encoding="utf-8"))
    for one in deployed["deployments"]:
        for trigger in one.get("triggers", ()):
            one["parameters"]["config"] = str(folder / "dump.yaml")
            trigger["match"] = {"prefect.resource.id": "kgqa.dataset.dump"}
    (folder / "prefect.yaml").write_text(yaml.safe_dump(deployed), encoding="utf-8")
    (folder / "dump.yaml").write_text(TOWNS.replace("towns", "dump"), encoding="utf-8")
    (folder / "triples.tsv").write_text(triples(30), encoding="utf-8")
    asked = ({"question": f"where does b{n} flow", "topics": [f"b{n}"], "answers": [f"sea{n}"]} for n in range(30))
    write_jsonl(folder / "questions.jsonl", asked)


def triples(num: int) -> str:
    return "".join(f"b{n}\tflows_into\tsea{n}\n" for n in range(num))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    here = Up(folder / "home", folder / "rivers.yaml", folder / "prefect.yaml", (free_port(), free_port()))
    here.write()
    write_deployments(folder)
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

    deployed = {one["name"]: one for one in up.ask("deployments/filter", limit=9)}
    assert deployed.keys() == {"nightly", "rebuild-shards", "evaluate-all", "train"}
    (nightly,) = deployed["nightly"]["schedules"]
    assert (nightly["active"], nightly["schedule"]["cron"]) == (True, "0 3 * * *")
    slots = {pool: up.ask(f"work_pools/{pool}")["concurrency_limit"] for pool in ("kgqa-cpu", "kgqa-gpu")}
    assert slots == {"kgqa-cpu": None, "kgqa-gpu": 1}  # two trainings never share a card
    run = up.trigger()
    assert up.wait(run, "COMPLETED", "FAILED", "CRASHED") == "COMPLETED"
    first = up.json("history")
    assert [move["kind"] for move in first["moves"]] == ["promoted"]
    assert up.aliases() == {"champion": "1"}
    (elsewhere,) = up.ask("flow_runs/filter", deployments={"name": {"any_": ["train"]}})  # that pool has a live worker
    assert (elsewhere["state_type"], elsewhere["parameters"]["config"]) == ("COMPLETED", str(up.conf))

    told = up.ask("logs/filter", logs={"flow_run_id": {"any_": [run]}})  # our messages are at the run, and are JSON
    assert any("is promoted: " in line["message"] for line in told)
    lines = up.services.log("worker-kgqa-cpu").read_text(encoding="utf-8").splitlines()
    written = [json.loads(line) for line in lines if line.startswith("{")]
    assert run in {line["flow_run_id"] for line in written if "is promoted: " in line["message"]}

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


@pytest.mark.slow
def test_a_dump_that_is_new_and_whole_is_built_once(up: Up) -> None:
    up.up()

    def builds() -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = up.ask("flow_runs/filter", deployments={"name": {"any_": ["rebuild-shards"]}})
        return runs

    wait_for((up.home / "run" / "dumps.json").exists, "the first look")
    dump = up.deployments.with_name("triples.tsv")
    for num in range(30, 38):  # it grows for eight seconds, that is at two polls
        dump.write_text(triples(num), encoding="utf-8")
        time.sleep(1)
    assert builds() == []
    (run,) = wait_for(builds, "the run that the event starts")
    assert up.wait(run["id"], "COMPLETED", "FAILED", "CRASHED") == "COMPLETED"
    assert list((up.home / "artifacts" / "graph").glob("*/manifest.json"))
    time.sleep(12)
    assert len(builds()) == 1
