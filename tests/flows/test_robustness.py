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

from kgqa_core.config import RunConfig
from kgqa_core.config_file import read_config
from kgqa_core.pipeline import Pipeline
from tests.processes import TIMEOUT, assert_nothing_runs, rubble, wait_for_stage

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

Retrain = Callable[[Path], "subprocess.Popen[str]"]


@pytest.fixture
def retrain(start: Callable[..., Any], tiny_config: RunConfig) -> Retrain:
    """Start the flow on the run of all tests, in a home of its own."""
    run_file = tiny_config.runtime.home.parent / "tiny.yaml"
    return lambda home: start(RETRAIN, run_file, home, env={"KGQA_HOME": str(home)})


@pytest.fixture
def run_at(tiny_config: RunConfig) -> Callable[[Path], Pipeline]:
    """Open the run of all tests in another home."""
    run_file = tiny_config.runtime.home.parent / "tiny.yaml"
    return lambda home: Pipeline(read_config(run_file, [f"runtime.home={home}"]))


def finish(run: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a run that goes well, and return what it says."""
    output, errors = run.communicate(timeout=TIMEOUT)
    assert run.returncode == 0, errors
    said: dict[str, Any] = json.loads(output.splitlines()[-1])
    return said


def contents(pipeline: Pipeline) -> dict[str, str]:
    """Return the content hash of every stage."""
    return {key: pipeline.artifact(key).content for key in pipeline.specs}


def test_retrain_builds_every_stage_once_and_a_second_run_does_nothing(
    retrain: Retrain,
    run_at: Callable[[Path], Pipeline],
    tiny_config: RunConfig,
    tmp_path: Path,
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    home = tmp_path / "home"
    first = finish(retrain(home))
    assert first["built"] == KEYS
    assert "template control" in first["report"]
    assert contents(run_at(home)) == contents(Pipeline(tiny_config))  # another process, through Prefect: the same bytes
    assert_nothing_runs(home)

    before = {path: path.stat().st_mtime_ns for path in (home / "artifacts").rglob("*")}
    second = finish(retrain(home))
    assert second["built"] == []
    assert second["report"] == first["report"]
    assert not HEAVY & set(second["modules"])
    assert {path: path.stat().st_mtime_ns for path in (home / "artifacts").rglob("*")} == before
    assert_nothing_runs(home)
    for name, run in (("first", first), ("second", second)):
        record_testsuite_property(f"CPU seconds of the {name} run, server included", round(run["cpu_seconds"], 1))


def test_killed_three_times_at_random_a_run_goes_on_and_ends_as_if_nothing_had_happened(
    retrain: Retrain, run_at: Callable[[Path], Pipeline], tiny_config: RunConfig, tmp_path: Path
) -> None:
    home, chance, left_half_made = tmp_path / "home", random.Random(7), 0
    for _ in range(3):
        run = retrain(home)
        wait_for_stage(run, home)
        time.sleep(chance.uniform(0, 2))
        run.send_signal(signal.SIGKILL)
        run.wait(20)
        left_half_made += bool(rubble(home))
        assert_nothing_runs(home)
    assert left_half_made
    assert len(finish(retrain(home))["built"]) < len(KEYS)  # it went on; it did not begin anew
    assert contents(run_at(home)) == contents(Pipeline(tiny_config))
    assert not rubble(home)
    assert_nothing_runs(home)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_stopped_politely_a_run_leaves_no_rubble_and_goes_on(
    retrain: Retrain, run_at: Callable[[Path], Pipeline], tiny_config: RunConfig, tmp_path: Path, sent: signal.Signals
) -> None:
    home = tmp_path / "home"
    run = retrain(home)
    wait_for_stage(run, home, "explorer")
    run.send_signal(sent)
    run.communicate(timeout=60)
    assert run.returncode != 0
    assert_nothing_runs(home)
    assert not rubble(home)
    assert finish(retrain(home))["built"] == KEYS[4:]
    assert contents(run_at(home)) == contents(Pipeline(tiny_config))


def test_two_runs_at_once_make_every_stage_once_and_both_end_well(
    retrain: Retrain, run_at: Callable[[Path], Pipeline], tiny_config: RunConfig, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    runs = [retrain(home), retrain(home)]
    one, other = (finish(run) for run in runs)
    assert sorted(one["built"] + other["built"]) == sorted(KEYS)
    assert one["report"] == other["report"]
    assert contents(run_at(home)) == contents(Pipeline(tiny_config))
    assert_nothing_runs(home)


def test_ctrl_c_reaches_a_run_that_waits_for_another(
    tiny_copy: RunConfig, tiny_config: RunConfig, start: Callable[..., Any], tmp_path: Path
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
        run = start(RETRAIN, tiny_config.runtime.home.parent / "tiny.yaml", home, stderr=errors)
        until = time.monotonic() + TIMEOUT
        while "waiting for another run" not in (tmp_path / "errors").read_text():
            assert run.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) != 0
    assert_nothing_runs(home)
