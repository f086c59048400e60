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

from tasks.server import prefect_server

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


def ask_server(url: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """POST to the server's REST API."""
    request = urllib.request.Request(
        f"{url}/{path}", json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        found: list[dict[str, Any]] = json.load(response)
    return found


def test_a_worker_runs_the_scheduled_retrain_once(
    used_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, run_file = used_home, tmp_path / "quick.yaml"
    run_file.write_text(QUICK_RUN, encoding="utf-8")
    monkeypatch.setenv("KGQA_HOME", str(home))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]))
    with prefect_server(home) as url:
        prefect("work-pool", "create", "kgqa-cpu", "--type", "process")
        prefect("deploy", "--all")
        (deployment,) = ask_server(url, "deployments/filter", {})
        (schedule,) = deployment["schedules"]
        assert schedule["active"]
        assert schedule["schedule"]["cron"] == "0 3 * * *"

        prefect("deployment", "run", "retrain/nightly", "--param", f"config={run_file}")
        prefect("worker", "start", "--pool", "kgqa-cpu", "--run-once")

        begun = {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED", "RUNNING"]}}}
        (run,) = ask_server(url, "flow_runs/filter", {"flow_runs": begun})
        assert run["state_type"] == "COMPLETED", run["state"]
        (results,) = ask_server(url, "artifacts/filter", {"artifacts": {"key": {"any_": ["results"]}}})
        assert "template control" in str(results["data"])
    stages = {folder.name for folder in (home / "artifacts").iterdir()}
    assert stages == {"dataset", "graph", "questions", "encodings", "explorer", "controls", "evaluation"}
