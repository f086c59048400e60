"""A build on a local cluster, killed as a whole at random points and built again: the same bytes, and nothing left."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.freebase.world import World
from benchmarks.freebase_dump import BYTES_PER_TRIPLE, draw_topics, write_dump
from tests.conftest import PROJECT, write_jsonl
from tests.nsm import line
from tests.processes import TIMEOUT, assert_nothing_runs, rubble, visible_files, wait_for_stage

pytestmark = pytest.mark.slow

NUM_KILLS = 3
COMMAND = "from flows.cli import app; app()"
# What the command does, without Prefect and its server: two thirds of the time of so small a build.
STAGES = """
import sys
from pathlib import Path
from kgqa_core.config_file import read_config
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline
if __name__ == "__main__":
    ensure(Pipeline(read_config(Path(sys.argv[2]), sys.argv[4::2])), ["questions"])
"""
GRAPHS = {
    "triples": "graph: {format: tsv, path: triples.tsv, max_reject_ratio: 0.1}",
    "dump": "graph: {format: freebase, path: dump, cvt_is_hop: false, max_reject_ratio: 0.1}",
}
RUN = """\
dataset:
  name: killed
  source: files
  GRAPH
  questions: {format: FORMAT, path: questions.jsonl, max_reject_ratio: 1}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, width: 7, edge_budget: 5, epochs: 1}
tracking: {enabled: false}
"""
ON_WORKERS = ["--set", "cluster.fan_out_bytes=1"]

Start = Callable[..., "subprocess.Popen[str]"]


def write_triples(folder: Path) -> None:
    """Write triples of two chunks of 8 MiB, few of them, of long labels; and questions about some of short ones."""
    tail = "a long label " * 20
    lines = (f"e{n % 5_003} {tail}\tr{n % 17}\te{n * n % 7_919} {tail}\n" for n in range(23_999))
    parts = (f"part {n}\tfollowed_by\tpart {n + 1}\n" for n in range(31))
    (folder / "triples.tsv").write_text("".join([*lines, *parts, "no triple\n"]), encoding="utf-8")
    asked = ({"question": f"what follows part {n} ?", "answers": [f"part {n + 1}"]} for n in range(31))
    write_jsonl(folder / "questions.jsonl", asked)


def write_dumps(folder: Path) -> None:
    """Write a dump of two files, some of it malformed, and questions about entities of the first."""
    size = 1_000_000
    for seed in range(2):
        write_dump(folder / "dump" / f"{seed}.nt.gz", plain_bytes=size, seed=seed, malformed_share=1e-3)
    topics = draw_topics(World(size // BYTES_PER_TRIPLE, 0), 31)
    asked = (line(f"q{n}", f"what is {n} ?", [topic], [topic], []) for n, topic in enumerate(topics))
    write_jsonl(folder / "questions.jsonl", asked)


class Run(NamedTuple):
    """A run configuration, and the files that an undisturbed build of it makes."""

    file: Path
    home: Path
    expected: dict[str, str]


@pytest.fixture(scope="module", params=GRAPHS)
def undisturbed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Run:
    """A run on triples, and one on a dump; both built, without workers."""
    folder = tmp_path_factory.mktemp(request.param)
    (write_triples if request.param == "triples" else write_dumps)(folder)
    text = RUN.replace("GRAPH", GRAPHS[request.param])
    text = text.replace("FORMAT", "jsonl" if request.param == "triples" else "nsm")
    (folder / "killed.yaml").write_text(text, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "KGQA_HOME": str(folder / "home")}
    command = [sys.executable, "-c", STAGES, "build", str(folder / "killed.yaml")]
    subprocess.run(command, env=environment, check=True, timeout=TIMEOUT)
    expected = visible_files(folder / "home")
    assert len(expected) > 10
    return Run(folder / "killed.yaml", folder / "home", expected)


@pytest.fixture
def build(start: Callable[..., Any], undisturbed: Run, server: str, tmp_path: Path) -> Start:
    """Start ``kgqa build`` in a home and a process group of its own."""

    def start_build(home: Path, *settings: str, code: str = STAGES) -> subprocess.Popen[str]:
        with (tmp_path / "log.txt").open("a") as log:
            streams = {"stdout": log, "stderr": log, "start_new_session": True}
            environment = {"KGQA_HOME": str(home), "PREFECT_API_URL": server}
            run: subprocess.Popen[str] = start(code, "build", undisturbed.file, *settings, env=environment, **streams)
        return run

    return start_build


def finish(run: subprocess.Popen[str], log: Path) -> None:
    """Wait for a build that goes well."""
    assert run.wait(TIMEOUT) == 0, log.read_text()


def test_killed_at_random_points_a_build_ends_with_the_bytes_of_one_that_was_not(
    build: Start, undisturbed: Run, tmp_path: Path
) -> None:
    log, expected = tmp_path / "log.txt", undisturbed.expected
    timed = build(tmp_path / "timed", *ON_WORKERS)
    wait_for_stage(timed, tmp_path / "timed")
    began = time.monotonic()
    finish(timed, log)
    seconds = time.monotonic() - began
    assert visible_files(tmp_path / "timed") == expected  # two workers or none

    home, chance, left_half_made = tmp_path / "home", random.Random(11), 0
    for number in range(NUM_KILLS):
        run = build(home, *ON_WORKERS, code=COMMAND if number == NUM_KILLS - 1 else STAGES)
        with suppress(AssertionError):  # all that was left is done already
            wait_for_stage(run, home)
        kill_at = time.monotonic() + seconds * (number + chance.random()) / (NUM_KILLS + 1)
        while run.poll() is None and time.monotonic() < kill_at:
            time.sleep(0.01)
        assert not run.poll(), log.read_text()  # it runs, or has ended well
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait(20)
        left_half_made += bool(rubble(home))
        assert_nothing_runs(home)
        visible = visible_files(home)
        assert visible.items() <= expected.items()
        if number % 2:  # begin anew; else the next run goes on from here
            for folder in {Path(name).parent for name in visible}:
                shutil.rmtree(home / folder)
    assert left_half_made
    finish(build(home, *ON_WORKERS, code=COMMAND), log)
    assert visible_files(home) == expected
    assert not rubble(home)
    assert not list((home / "run" / "dask").rglob("worker-*"))
    assert_nothing_runs(home)


@pytest.mark.parametrize("undisturbed", ["dump"], indirect=True)
def test_where_files_may_not_grow_a_build_says_so_and_goes_on_when_they_may(
    build: Start, undisturbed: Run, tmp_path: Path
) -> None:
    """A full disk that needs no root: no file of the process or its workers may be larger than a limit."""
    log, expected = tmp_path / "log.txt", undisturbed.expected
    largest = max((undisturbed.home / name).stat().st_size for name in expected)
    home, limit = tmp_path / "home", int(4096 * (largest / 4096) ** random.Random(5).random())
    limited = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    run = build(home, *ON_WORKERS, code=limited + STAGES)
    assert run.wait(TIMEOUT) == 1
    said = log.read_text().splitlines()[-1]
    assert "ArtifactError: cannot write the artifact of stage" in said
    assert "ulimit -f" in said or "The disk is full" in said
    assert visible_files(home).items() <= expected.items()
    assert_nothing_runs(home)
    finish(build(home), log)
    assert visible_files(home) == expected
    assert not rubble(home)
