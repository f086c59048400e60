"""The whole flow for real: Prefect with its server, killed, interrupted, run twice at once, and run again."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.artifacts import MANIFEST
from kgqa_core.config import RunConfig
from kgqa_core.config_file import read_config
from kgqa_core.run.pipeline import Pipeline
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


def done_by(pipeline: Pipeline) -> dict[str, int]:
    """Return when each stage that is done was done: a stage that is made again has another time."""
    found = {key: pipeline.find(key) for key in KEYS}
    return {key: (artifact.folder / MANIFEST).stat().st_mtime_ns for key, artifact in found.items() if artifact}


def folder_of(key: str) -> str:
    """Return the folder of the artifacts of a stage."""
    return key.partition("-")[0]


def test_killed_three_times_at_random_a_run_goes_on_and_ends_as_if_nothing_had_happened(
    retrain: Retrain, run_at: Callable[[Path], Pipeline], tiny_config: RunConfig, used_home: Path
) -> None:
    chance, left_half_made, done = random.Random(7), 0, {}
    for _ in range(3):
        run = retrain(used_home)
        # Between one stage's end and the next one's: every run gets further, none to the end, however fast it is.
        second = [key for key in KEYS if key not in done][1]
        wait_for_stage(run, used_home, folder_of(second))
        kill_at = time.monotonic() + chance.uniform(0, 2)
        while time.monotonic() < kill_at and second not in done_by(run_at(used_home)):
            time.sleep(0.01)
        run.send_signal(signal.SIGKILL)
        run.wait(20)
        left_half_made += bool(rubble(used_home))
        assert_nothing_runs(used_home)
        before, done = done, done_by(run_at(used_home))
        assert len(before) < len(done) < len(KEYS)
        assert before.items() <= done.items()  # it went on; it did not begin anew
    assert left_half_made
    assert finish(retrain(used_home))["built"] == [key for key in KEYS if key not in done]
    assert done.items() <= done_by(run_at(used_home)).items()
    assert contents(run_at(used_home)) == contents(Pipeline(tiny_config))
    assert not rubble(used_home)
    assert_nothing_runs(used_home)


def test_stopped_politely_a_run_leaves_no_rubble_and_goes_on(
    retrain: Retrain, run_at: Callable[[Path], Pipeline], tiny_config: RunConfig, used_home: Path
) -> None:
    for sent, key in ((signal.SIGINT, "explorer-seed0"), (signal.SIGTERM, "controls")):
        run = retrain(used_home)
        wait_for_stage(run, used_home, folder_of(key))
        run.send_signal(sent)
        run.communicate(timeout=60)
        assert run.returncode != 0
        assert_nothing_runs(used_home)
        assert not rubble(used_home)
        assert list(done_by(run_at(used_home))) == KEYS[: KEYS.index(key)]
    assert finish(retrain(used_home))["built"] == KEYS[5:]
    assert contents(run_at(used_home)) == contents(Pipeline(tiny_config))


def test_two_runs_at_once_make_every_stage_once_and_both_end_well(
    retrain: Retrain, run_at: Callable[[Path], Pipeline], tiny_config: RunConfig, used_home: Path
) -> None:
    home = used_home
    runs = [retrain(home), retrain(home)]
    one, other = (finish(run) for run in runs)
    assert sorted(one["built"] + other["built"]) == sorted(KEYS)
    assert one["report"] == other["report"]
    assert contents(run_at(home)) == contents(Pipeline(tiny_config))
    assert_nothing_runs(home)


def test_ctrl_c_reaches_a_run_that_waits_for_another(
    tiny_copy: RunConfig, tiny_config: RunConfig, prefect_folder: Path, start: Callable[..., Any], tmp_path: Path
) -> None:
    """The second of two runs sits in the lock: it must be possible to stop it there."""
    home, folder = tiny_copy.runtime.home, Pipeline(tiny_copy).artifact("controls").folder
    shutil.copytree(prefect_folder, home / "prefect")
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
