"""A build on a local cluster, killed as a whole at random points and built again: the same bytes, and nothing left."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import TIMEOUT, assert_nothing_runs, rubble, visible_files, wait_for_stage

pytestmark = pytest.mark.slow

NUM_KILLS = 6
COMMAND = "from flows.cli import main; main()"
# What the command does, without Prefect and its server: two thirds of the time of so small a build.
STAGES = """
import sys
from pathlib import Path
import tasks.runtime
tasks.runtime.pipeline_task = lambda *name, **io: lambda function: function
from flows.stages import graph_stages
from kgqa_core.config_file import read_config
from kgqa_core.pipeline import Pipeline
if __name__ == "__main__":
    graph_stages(Pipeline(read_config(Path(sys.argv[2]), sys.argv[4::2])))
"""
RUN = """\
dataset:
  name: killed
  source: files
  graph: {format: tsv, path: triples.tsv, max_reject_ratio: 0.1}
  questions: {format: jsonl, path: questions.jsonl}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, width: 7, edge_budget: 5, epochs: 1}
tracking: {enabled: false}
"""
ON_WORKERS = ["--set", "cluster.fan_out_bytes=1"]

Build = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run whose graph takes three chunks of 8 MiB: few triples, of long labels."""
    tail = "a long label " * 20
    lines = (f"e{n % 5_003} {tail}\tr{n % 17}\te{n * n % 7_919} {tail}\n" for n in range(41_999))
    parts = "".join(f"part {n}\tfollowed_by\tpart {n + 1}\n" for n in range(31))
    (tmp_path / "triples.tsv").write_text("".join(lines) + parts + "no triple\n", encoding="utf-8")
    questions = (f'{{"question": "what follows part {n} ?", "answers": ["part {n + 1}"]}}\n' for n in range(31))
    (tmp_path / "questions.jsonl").write_text("".join(questions), encoding="utf-8")
    (tmp_path / "killed.yaml").write_text(RUN, encoding="utf-8")
    return tmp_path / "killed.yaml"


@pytest.fixture
def build(start: Callable[..., Any], run_file: Path, tmp_path: Path) -> Build:
    """Start ``kgqa build`` in a home and a process group of its own."""

    def start_build(home: Path, *settings: str, code: str = STAGES) -> subprocess.Popen[str]:
        with (tmp_path / "log.txt").open("a") as log:
            streams = {"stdout": log, "stderr": log, "start_new_session": True}
            run: subprocess.Popen[str] = start(
                code, "build", run_file, *settings, env={"KGQA_HOME": str(home)}, **streams
            )
        return run

    return start_build


def finish(run: subprocess.Popen[str], log: Path) -> None:
    """Wait for a build that goes well."""
    run.wait(TIMEOUT)
    assert run.returncode == 0, log.read_text()


def kill_group(run: subprocess.Popen[str]) -> None:
    """Kill a process that was started here and whatever it started in its group."""
    os.killpg(run.pid, signal.SIGKILL)
    run.wait(20)


def test_killed_at_random_points_a_build_ends_with_the_bytes_of_one_that_was_not(build: Build, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    finish(build(tmp_path / "undisturbed"), log)
    expected = visible_files(tmp_path / "undisturbed")
    assert len(expected) > 10

    timed = build(tmp_path / "timed", *ON_WORKERS)
    wait_for_stage(timed, tmp_path / "timed", "graph")
    began = time.monotonic()
    finish(timed, log)
    seconds = time.monotonic() - began
    assert visible_files(tmp_path / "timed") == expected  # two workers or none

    home, chance, left_half_made = tmp_path / "home", random.Random(11), 0
    for number in range(NUM_KILLS):
        run = build(home, *ON_WORKERS, code=COMMAND if number % 3 == 0 else STAGES)
        wait_for_stage(run, home, "graph")
        time.sleep(chance.uniform(0, 0.6 * seconds))
        kill_group(run)
        left_half_made += bool(rubble(home))
        assert visible_files(home).items() <= expected.items()
        assert_nothing_runs(home)
        for folder in {home / Path(name).parent for name in visible_files(home)}:
            shutil.rmtree(folder)  # it was faster than the one that was timed
    assert left_half_made > NUM_KILLS // 2
    finish(build(home, *ON_WORKERS, code=COMMAND), log)
    assert visible_files(home) == expected
    assert not rubble(home)
    assert not list((home / "run" / "dask").rglob("worker-*"))
    assert_nothing_runs(home)
