"""The whole flow for real: Prefect with its server, killed, interrupted, run twice at once, and run again."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.artifacts import MANIFEST
from kgqa_core.config import RunConfig
from kgqa_core.run.pipeline import Pipeline
from tests.conftest import with_home
from tests.processes import TIMEOUT, assert_nothing_runs, rubble, wait_for, wait_for_stage

pytestmark = pytest.mark.slow

KEYS = ["dataset", "graph", "questions", "encodings", "explorer-seed0", "controls", "evaluation-seed0"]
HEAVY = {"torch", "transformers", "dask", "distributed", "mlflow", "matplotlib"}

RETRAIN = """
import json, resource, sys
from pathlib import Path
from flows.run import run_flow
from kgqa_core.config_file import read_config

summary = run_flow("retrain", read_config(Path(sys.argv[1]), [f"runtime.home={sys.argv[2]}"]))
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
found = {
    "built": summary.built,
    "report": summary.markdown,
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "cpu_seconds": sum(one.ru_utime + one.ru_stime for one in used),
}
print(json.dumps(found), flush=True)
"""
# What ends a run, and in which stage (Ctrl-C: test_cli_run). A run that is stopped politely leaves nothing half made.
ENDS = [(signal.SIGTERM, "encodings"), (signal.SIGKILL, "explorer-seed0"), (signal.SIGKILL, "evaluation-seed0")]

Retrain = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def retrain(start: Callable[..., Any], tiny_config: RunConfig, server: str) -> Retrain:
    """Start the flow on the run of all tests, in a home of its own, on the server of all tests or one of its own."""

    def begin(home: Path, *, own_server: bool = False, **options: Any) -> subprocess.Popen[str]:
        environment = {"KGQA_HOME": str(home)} | ({} if own_server else {"PREFECT_API_URL": server})
        file = tiny_config.runtime.home.parent / "tiny.yaml"
        run: subprocess.Popen[str] = start(RETRAIN, file, home, env=environment, **options)
        return run

    return begin


def run_in(config: RunConfig, home: Path) -> Pipeline:
    """Return the run of all tests, in another home."""
    return Pipeline(with_home(config, home))


def finish(run: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a run that goes well, and return what it says."""
    output, errors = run.communicate(timeout=TIMEOUT)
    assert run.returncode == 0, errors
    said: dict[str, Any] = json.loads(output.splitlines()[-1])
    return said


def contents(config: RunConfig, home: Path) -> dict[str, str]:
    """Return the content hash of every stage."""
    pipeline = run_in(config, home)
    return {key: pipeline.artifact(key).content for key in pipeline.specs}


def done_by(config: RunConfig, home: Path) -> dict[str, int]:
    """Return when each stage that is done was done: a stage that is made again has another time."""
    found = {key: run_in(config, home).find(key) for key in KEYS}
    return {key: (artifact.folder / MANIFEST).stat().st_mtime_ns for key, artifact in found.items() if artifact}


def test_retrain_builds_every_stage_once_and_a_second_run_does_nothing(
    retrain: Retrain, tiny_config: RunConfig, used_home: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    first = finish(retrain(used_home, own_server=True))
    assert first["built"] == KEYS
    assert "template control" in first["report"]
    # Another process, through Prefect: the same bytes.
    assert contents(tiny_config, used_home) == contents(tiny_config, tiny_config.runtime.home)
    assert_nothing_runs(used_home)

    before = {path: path.stat().st_mtime_ns for path in (used_home / "artifacts").rglob("*")}
    second = finish(retrain(used_home))
    assert second["built"] == []
    assert second["report"] == first["report"]
    assert not HEAVY & set(second["modules"])
    assert {path: path.stat().st_mtime_ns for path in (used_home / "artifacts").rglob("*")} == before
    for name, run in (("first, server included", first), ("second", second)):
        record_testsuite_property(f"CPU seconds of the run, {name}", round(run["cpu_seconds"], 1))


def test_killed_or_stopped_anywhere_a_run_goes_on_and_ends_as_if_nothing_had_happened(
    retrain: Retrain, tiny_config: RunConfig, used_home: Path
) -> None:
    chance, left_half_made = random.Random(7), 0
    done: dict[str, int] = {}
    for number, (sent, key) in enumerate(ENDS):
        run = retrain(used_home, own_server=number == 1)  # which ends with the run, however it ends
        wait_for_stage(run, used_home, key.partition("-")[0])
        if sent == signal.SIGKILL:
            kill_at = time.monotonic() + chance.uniform(0, 1)
            while time.monotonic() < kill_at and key not in done_by(tiny_config, used_home):
                time.sleep(0.01)
        run.send_signal(sent)
        run.communicate(timeout=60)
        assert run.returncode != 0
        assert_nothing_runs(used_home)
        left_half_made += bool(rubble(used_home))
        assert sent == signal.SIGKILL or not rubble(used_home)
        before, done = done, done_by(tiny_config, used_home)
        assert set(KEYS[: KEYS.index(key)]) <= done.keys()
        assert before.items() <= done.items()  # it went on; it did not begin anew
    assert left_half_made
    assert finish(retrain(used_home))["built"] == [key for key in KEYS if key not in done]
    assert done.items() <= done_by(tiny_config, used_home).items()
    assert contents(tiny_config, used_home) == contents(tiny_config, tiny_config.runtime.home)
    assert not rubble(used_home)


def test_two_runs_at_once_make_every_stage_once_and_both_end_well(
    retrain: Retrain, tiny_config: RunConfig, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    runs = [retrain(home), retrain(home)]
    one, other = (finish(run) for run in runs)
    assert sorted(one["built"] + other["built"]) == sorted(KEYS)
    assert one["report"] == other["report"]
    assert contents(tiny_config, home) == contents(tiny_config, tiny_config.runtime.home)


def test_ctrl_c_reaches_a_run_that_waits_for_another(
    tiny_copy: RunConfig, retrain: Retrain, start: Callable[..., Any], tmp_path: Path
) -> None:
    """The second of two runs sits in the lock: it must be possible to stop it there."""
    home, folder = tiny_copy.runtime.home, Pipeline(tiny_copy).artifact("controls").folder
    (folder / "scores.json").unlink()
    holder = start(
        "import fcntl, sys, time; stream = open(sys.argv[1], 'a'); fcntl.flock(stream, fcntl.LOCK_EX); "
        "print('held', flush=True); time.sleep(300)",
        folder.with_suffix(".lock"),
    )
    assert holder.stdout.readline() == "held\n"
    with (tmp_path / "errors").open("w") as errors:
        run = retrain(home, stderr=errors)
        wait_for(lambda: "waiting for another run" in (tmp_path / "errors").read_text(), "the second run waits")
        run.send_signal(signal.SIGINT)
        assert run.wait(60) != 0
    assert_nothing_runs(home)
