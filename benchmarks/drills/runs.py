"""A retraining of ``conf/drill.yaml`` in a home of its own, and what is left of it: files, release, alias."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import PROJECT
from kgqa_core.artifacts import NOT_CONTENT, read_artifact
from tasks.release import Releases, champion_of
from tests.processes import free_port, processes_of

CONF = PROJECT / "conf" / "drill.yaml"
MODEL = "kgqa-drill"
GATE = "gate"  # its verdict holds seconds and megabytes that were measured
LIMIT = 600.0  # seconds that a run may take


@dataclass(frozen=True)
class Home:
    """A home, and the server of Prefect that its runs use; empty: each its own."""

    folder: Path
    server: str = ""
    mlflow: str = ""  # the store; empty: a file of the home's

    @property
    def environment(self) -> dict[str, str]:
        """What a run sees: nothing of the caller's servers."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PREFECT_"))}
        given = {"PREFECT_API_URL": self.server, "MLFLOW_TRACKING_URI": self.mlflow}
        named = {name: value for name, value in given.items() if value}
        return {**ours, **named, "KGQA_HOME": str(self.folder), "PYTHONPATH": str(PROJECT), "PYTHONSAFEPATH": "1"}

    def start(self, *settings: str) -> subprocess.Popen[str]:
        """Start a retraining, its own group of processes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "flows.cli", "run", str(CONF), *settings]
        with (self.folder / "drill.log").open("a") as log:
            streams: dict[str, Any] = {"stdout": log, "stderr": log, "start_new_session": True}
            return subprocess.Popen(command, cwd=PROJECT, env=self.environment, text=True, **streams)

    def finish(self, run: subprocess.Popen[str] | None = None) -> float:
        """Wait for a run (default: a new one) to end well, and return the seconds that it took."""
        began = time.monotonic()
        run = run or self.start()
        if code := run.wait(LIMIT):
            raise RuntimeError(f"the run ended with code {code}: {self.log[-3000:]}")
        return time.monotonic() - began

    @property
    def log(self) -> str:
        """What all runs said."""
        return (self.folder / "drill.log").read_text(encoding="utf-8", errors="replace")

    def artifacts(self) -> dict[str, dict[str, str]]:
        """Return the SHA-256 of every file of every finished artifact; RuntimeError where one is not whole.

        Of verdicts, which hold measured seconds, only that they are there.
        """
        found = {}
        for folder in sorted((self.folder / "artifacts").glob("*/*")):
            if folder.is_dir() and not folder.suffix and not folder.name.startswith("."):
                artifact = read_artifact(folder)
                if artifact is None:
                    raise RuntimeError(f"{folder} can be seen and is not whole")
                name = "/".join(folder.parts[-2:])
                measured = NOT_CONTENT if folder.parent.name != GATE else {entry.name for entry in artifact.files}
                found[name] = {entry.name: entry.sha256 for entry in artifact.files if entry.name not in measured}
        return found

    def made_at(self) -> dict[str, int]:
        """Return when every finished artifact was made."""
        places = {name: self.folder / "artifacts" / name / "manifest.json" for name in self.artifacts()}
        return {name: path.stat().st_mtime_ns for name, path in places.items()}

    def champion(self) -> str | None:
        """Return the release that is champion."""
        return champion_of(Releases(self.folder, MODEL).moves())

    def alias(self) -> str | None:
        """Return the fingerprint of the explorer that MLflow's alias names."""
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        store = self.mlflow or f"sqlite:///{self.folder / 'mlflow' / 'mlflow.db'}"
        try:
            named = MlflowClient(store, store).get_model_version_by_alias(MODEL, "champion")
        except MlflowException:
            return None
        return str(named.tags["fingerprint"])

    def outcome(self) -> tuple[Any, ...]:
        """Return all that has to be equal, however often a run was killed."""
        return self.artifacts(), self.champion(), self.alias()

    def left_running(self) -> dict[int, str]:
        """Return the processes that know this home, by id, after a moment to end."""
        until = time.monotonic() + 30
        while (found := processes_of(self.folder)) and time.monotonic() < until:
            time.sleep(0.2)
        return found


def kill_group(run: subprocess.Popen[str]) -> None:
    """Kill a run with all that it started, as a power cut would."""
    os.killpg(run.pid, signal.SIGKILL)
    run.wait(20)


@contextmanager
def running(
    folder: Path, deployments: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[Home, Callable[..., Any]]]:
    """Run `kgqa up` with these options in a home of its own; yield the home, and what asks Prefect's API.

    That waits for a server that starts again.
    """
    home, kgqa, ports = Home(folder / "services"), [sys.executable, "-m", "flows.cli"], (free_port(), free_port())
    told: dict[str, Any] = {
        "cwd": folder,
        "env": {**home.environment, **(environment or {})},
        "check": True,
        "stdout": subprocess.DEVNULL,
    }
    places = [
        "--prefect-port",
        str(ports[0]),
        "--mlflow-port",
        str(ports[1]),
        "--deployments",
        str(deployments),
        *options,
    ]
    subprocess.run([*kgqa, "up", *places], **told)

    def ask(what: str, method: str | None = None, **body: Any) -> Any:
        data = json.dumps(body).encode() if body else None
        url = f"http://127.0.0.1:{ports[0]}/api/{what}"
        for _ in range(120):
            try:
                asked = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
                with urllib.request.urlopen(asked, timeout=30) as reply:
                    return json.loads(reply.read() or "null")
            except OSError:
                time.sleep(1)  # it starts again
        raise RuntimeError(f"{url} does not answer")

    try:
        yield home, ask
    finally:
        subprocess.run([*kgqa, "down"], **told)
