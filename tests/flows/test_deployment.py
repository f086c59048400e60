"""The scheduled deployment of prefect.yaml, by a started server and a real worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]
QUICK_RUN = """
dataset: {name: deployed, source: embedded}
encoder: {kind: hash}
explorer: {steps: 2, width: 8, edge_budget: 2, epochs: 1, batch_size: 256}
tracking: {enabled: false}
"""


def prefect(*arguments: str) -> str:
    """Run the prefect command of this environment and return what it prints."""
    command = [str(Path(sys.executable).with_name("prefect")), "--no-prompt", *arguments]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def ask_server(url: str, path: str, body: dict[str, Any]) -> Any:
    """POST to the server's REST API."""
    request = urllib.request.Request(
        f"{url}/{path}", json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def test_a_worker_runs_the_scheduled_retrain_once(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, run_file = tmp_path / "home", tmp_path / "quick.yaml"
    run_file.write_text(QUICK_RUN, encoding="utf-8")
    monkeypatch.setenv("PREFECT_API_URL", server)
    monkeypatch.setenv("KGQA_HOME", str(home))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]))
    ask_server(server, "work_pools/", {"name": "kgqa-cpu", "type": "process"})
    prefect("deploy", "--all")
    (deployment,) = ask_server(server, "deployments/filter", {})
    (schedule,) = deployment["schedules"]
    assert schedule["active"]
    assert schedule["schedule"]["cron"] == "0 3 * * *"

    asked = {"parameters": {"config": str(run_file)}, "state": {"type": "SCHEDULED"}}
    created = ask_server(server, f"deployments/{deployment['id']}/create_flow_run", asked)["id"]
    prefect("worker", "start", "--pool", "kgqa-cpu", "--run-once")

    begun = {"any_": ["COMPLETED", "FAILED", "CRASHED", "RUNNING"]}
    mine = {"deployments": {"id": {"any_": [deployment["id"]]}}, "flow_runs": {"state": {"type": begun}}}
    (run,) = ask_server(server, "flow_runs/filter", mine)
    assert (run["id"], run["state_type"]) == (created, "COMPLETED"), run["state"]
    wanted = {"key": {"any_": ["results"]}, "flow_run_id": {"any_": [created]}}
    (results,) = ask_server(server, "artifacts/filter", {"artifacts": wanted})
    assert "template control" in str(results["data"])
    stages = {folder.name for folder in (home / "artifacts").iterdir()}
    assert stages == {"dataset", "graph", "questions", "encodings", "explorer", "controls", "evaluation"}
