"""What an operator sees of runs in Prefect and MLflow: runs that finished, did nothing, failed, and were killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tasks.webhook import BLOCK, address
from tests.flows.rivers import Run, write_run
from tests.processes import post_json, wait_for_stage

pytestmark = pytest.mark.slow

KEYS = ["graph", "questions", "encodings", "explorer-seed0", "controls", "evaluation-seed0"]
NAMED = r"rivers \d{4}-\d\d-\d\d \d\d:\d\d"


def ask(run: Run, what: str, **body: Any) -> list[dict[str, Any]]:
    """POST to the Prefect server's REST API."""
    found: list[dict[str, Any]] = post_json(f"{run.server}/{what}", body)
    return found


def tasks_of(run: Run, flow_run: str, num: int) -> dict[str, str]:
    """Return the states of a flow run's tasks by name, once all are there: Prefect writes them down a little later."""
    until = time.monotonic() + 60
    while True:
        tasks = ask(run, "task_runs/filter", task_runs={"flow_run_id": {"any_": [flow_run]}})
        if len(tasks) >= num or time.monotonic() > until:
            assert len({task["name"] for task in tasks}) == len(tasks)
            return {task["name"]: task["state_name"] for task in tasks}
        time.sleep(0.2)


def in_mlflow(run: Run) -> list[Any]:
    """Return the runs of flows, in the order in which they started."""
    client = MlflowClient(f"sqlite:///{run.folder / 'home' / 'mlflow' / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'rivers'")
    return list(client.search_runs([experiment.experiment_id], "tags.kind = 'flow'", order_by=["start_time"]))


def waiting(run: Run) -> dict[str, list[str]]:
    """Return the names of runs that ``kgqa status`` says are not told about yet."""
    runs: dict[str, list[str]] = json.loads(run.kgqa_here("status", run.conf, "--json").stdout)["runs"]
    return runs


def test_the_address_of_a_webhook_may_be_a_secret_in_prefect(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.blocks.system import Secret
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.setenv("PREFECT_API_URL", server)
    assert address(tmp_path) == ""
    with temporary_settings({PREFECT_API_URL: server}):
        Secret(value="https://chat.example/T0psecret").save(BLOCK)
    assert address(tmp_path) == "https://chat.example/T0psecret"
    monkeypatch.setenv("KGQA_WEBHOOK", "https://other.example")
    assert address(tmp_path) == "https://other.example"


def test_runs_that_finish_do_nothing_fail_and_are_killed(tmp_path: Path, server: str) -> None:
    run = write_run(tmp_path, server)
    first, second = (json.loads(run.kgqa("run", run.conf, "--json").stdout) for _ in range(2))
    flow_runs = [one.data.tags["flow_run_id"] for one in in_mlflow(run)]
    assert tasks_of(run, flow_runs[0], 6) == dict.fromkeys(KEYS, "Completed")
    assert tasks_of(run, flow_runs[1], 6) == dict.fromkeys(KEYS, "Cached")
    names = {one["id"]: one["name"] for one in ask(run, "flow_runs/filter", flow_runs={"id": {"any_": flow_runs}})}
    for told, document in zip(in_mlflow(run), (first, second), strict=True):
        assert re.fullmatch(NAMED, told.info.run_name)
        assert re.fullmatch(NAMED, names[told.data.tags["flow_run_id"]])
        assert document["mlflow"]["page"].endswith(f"/runs/{told.info.run_id}")
        wanted = {"key": {"any_": ["results-rivers"]}, "flow_run_id": {"any_": [told.data.tags["flow_run_id"]]}}
        (results,) = ask(run, "artifacts/filter", artifacts=wanted)
        assert f"[This run in MLflow]({document['mlflow']['page']})" in results["data"]

    with (tmp_path / "questions" / "train.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"question": "which towns does River A pass?", "answers": ["Town 0"], "hops": 1}\n')
    command = [sys.executable, "-m", "flows.cli", "run", run.conf]
    with subprocess.Popen(command, env=run.environment, stderr=subprocess.PIPE, text=True) as process:
        wait_for_stage(process, tmp_path / "home", "encodings")
        process.kill()
    (name,) = waiting(run)["killed"]
    assert re.fullmatch(NAMED, name)
    away = run.environment | {"MLFLOW_TRACKING_URI": "postgresql://ann:planted@127.0.0.1:1/mlflow"}
    done = subprocess.run(command, env=away, capture_output=True, text=True, check=True)
    assert "was not told" in done.stderr
    assert '--backend-store-uri "$MLFLOW_TRACKING_URI"' in done.stdout
    assert "planted" not in done.stdout + done.stderr
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file() and b"planted" in path.read_bytes()] == []
    left = waiting(run)
    assert (left["killed"], len(left["waiting"]), left["waiting"][0]) == ([], 2, name)

    said = run.kgqa("run", run.conf, "--set", "dataset.questions.path=nothing.jsonl", "--json", code=3)
    assert (said.stdout, "nothing.jsonl" in said.stderr, "Traceback" in said.stderr) == ("", True, False)
    assert not any(waiting(run).values())
    found = in_mlflow(run)
    assert [told.info.status for told in found] == ["FINISHED", "FINISHED", "KILLED", "FINISHED", "FAILED"]
    killed, _, failed = found[2:]
    assert (killed.data.tags["stage.graph"], killed.data.tags["stage.questions"]) == ("skipped", "built")
    assert "nothing.jsonl" in failed.data.tags["error"]
    ids = [told.data.tags["flow_run_id"] for told in found]
    states = {one["id"]: one["state_name"] for one in ask(run, "flow_runs/filter", flow_runs={"id": {"any_": ids}})}
    assert [states[one] for one in ids] == ["Completed", "Completed", "Crashed", "Completed", "Failed"]
    wanted = {"key": {"any_": ["results-rivers"]}, "flow_run_id": {"any_": [ids[-1]]}}
    (last,) = ask(run, "artifacts/filter", artifacts=wanted)
    assert f"/runs/{failed.info.run_id})" in last["data"] and "FAILED: InputError" in last["data"]
    assert "Running" not in tasks_of(run, ids[2], 2).values()
    assert not list((tmp_path / "home" / "outbox").iterdir())
