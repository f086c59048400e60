"""A model's key and the password of an MLflow server are planted, and looked for in every file that a run leaves."""

from __future__ import annotations

import base64
import logging
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

from tests import processes
from tests.flows.rivers import Run, write_run
from tests.lm.misbehaving import Script, serving

pytestmark = pytest.mark.slow

KEY, PASSWORD = "sk-Pl4nted/0123456789+abcdef", "Pl4ntedPassword9876"
REPEATED = "your key is ***"  # the server's words, with what stands in the key's place
SETTINGS = (
    "lm={kind: endpoint, url: '%s', model: tiny, key_variable: PLANTED_KEY, first_wait: 0.01, attempts: 2}",
    "systems={run: [cot, rog], max_traces: 50, rog: {plans: dense}}",
    "plans.planners=[dense]",
    "dense={max_steps: 2, num_unseen: 0}",
)


@pytest.fixture
def mlflow(used_home: Path) -> Iterator[str]:
    """The address, password and all, of an MLflow server, which keeps everything in the run's home."""
    port, home = processes.free_port(), used_home / "mlflow"
    home.mkdir()
    store = ("--backend-store-uri", f"sqlite:///{home / 'mlflow.db'}", "--artifacts-destination", str(home / "files"))
    command = [sys.executable, "-m", "mlflow", "server", *store, "--port", str(port), "--workers", "1"]
    quiet = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # three processes that nobody here needs
    with processes.serving(command, port, home / "server.log", cwd=home, env=quiet):
        yield f"http://ann:{PASSWORD}@127.0.0.1:{port}"


def run_with(run: Run, script: Script, mlflow: str, *more: str) -> tuple[int, str]:
    """Evaluate in a process of its own with both secrets in its environment; return its code and what it said."""
    settings = [part for one in (SETTINGS[0] % script.url, *SETTINGS[1:], *more) for part in ("--set", one)]
    # No Prefect server is given: the run's own keeps its database in the home, too.
    environment = run.environment | {"PLANTED_KEY": KEY, "MLFLOW_TRACKING_URI": mlflow, "KGQA_LOGS": "json"}
    command = [sys.executable, "-m", "flows.cli", "run", run.conf, *settings]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def contents(path: Path) -> bytes:
    """Return the bytes of a file, and what is packed in them: columns of Parquet, the data of a report's page."""
    raw = path.read_bytes()
    if path.suffix == ".parquet":
        raw += str(pq.read_table(path, partitioning=None).to_pydict()).encode()
    if path.suffix == ".html":
        packed = re.findall(rb'"(e[AF][A-Za-z0-9+/=]{60,})"', raw)
        assert packed
        raw += b"".join(zlib.decompress(base64.b64decode(one)) for one in packed)
    return raw


def places_of(secret: str, folder: Path) -> list[str]:
    """Return the files in which a secret stands; its first characters count, as a text may have been cut inside it."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and secret[:14].encode() in contents(path)]


def test_planted_secrets_are_found_nowhere_whatever_the_server_replies(
    used_home: Path, tmp_path: Path, mlflow: str
) -> None:
    run = write_run(tmp_path)
    with serving() as script:
        script.key = KEY
        script.behaviours.extend(["leaks 500", "leaks page", "leaks text"])
        code, said = run_with(run, script, mlflow)
        assert (code, len(script.behaviours)) == (0, 0), said
        script.behaviours.extend(["leaks 401"] * 9)
        code, failed = run_with(run, script, mlflow, "systems.run=[direct]")
        assert code == 7 and "Incorrect key: ***" in failed, failed
    for folder, kept in (("mlflow", "Incorrect key: "), ("prefect", "Incorrect key: "), ("cache/calls", REPEATED)):
        assert places_of(kept, used_home / folder), folder
    assert {Path(one).suffix for one in places_of(REPEATED, used_home)} >= {".parquet", ".html", ".db", ".sqlite"}
    for secret in (KEY, PASSWORD):
        assert places_of(secret, used_home) == []
        assert secret[:14] not in said + failed


def test_a_prefect_that_refuses_the_results_is_logged_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flows import pipeline

    said = list[logging.LogRecord]()

    def refuse(*_: str, **__: str) -> None:
        asked = httpx.Request("POST", "https://ann:s3cret@prefect.example/api/artifacts/")
        httpx.Response(401, request=asked).raise_for_status()

    monkeypatch.setattr(pipeline, "create_markdown_artifact", refuse)
    monkeypatch.setattr(logging.getLogger("flows.pipeline"), "handle", said.append)  # Prefect takes the root's away
    pipeline.show_results("rivers", None, "| hits1 |")
    (line,) = [record.getMessage() for record in said]
    assert "Prefect does not show the results: HTTPStatusError" in line and "https://***@prefect.example" in line
