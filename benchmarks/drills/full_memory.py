"""Training and answering in a process whose memory is really full.

``python -m benchmarks.drills.full_memory CONF STAGE MEGABYTES`` is that process. It first makes what the stage needs,
and walks one batch, which loads libraries and starts threads. From the second batch on it may grow by so many megabytes
only (``RLIMIT_DATA``), so that what fails is a batch.
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer

from benchmarks.measure import PROJECT, memory_bytes
from flows.cli_session import with_exit_code
from kgqa_core.config_file import read_config
from kgqa_core.explorer import explore
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline
from tests.processes import visible_files


def limit_from_the_second_batch(megabytes: int) -> None:
    """Let memory be full from the second walk of this process on."""
    walk, walked = explore.explore, 0

    def limited(*args: Any, **kwargs: Any) -> Any:
        nonlocal walked
        walked += 1
        if walked == 2:
            limit = memory_bytes("VmData") + megabytes * 2**20  # what the limit counts
            resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
        return walk(*args, **kwargs)

    explore.explore = limited


RUN = """\
dataset: {name: full, source: embedded, seed: 0}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, width: 256, edge_budget: 500, epochs: 2, batch_size: 512}
tracking: {enabled: false}
"""
TRIED = {"explorer": (40, 10, 3), "evaluation": (20, 4)}  # stage -> megabytes: from some that suffice to none
HALVED = "out of memory with"


def full_memory(folder: Path, prefect: str, points: int) -> dict[str, Any]:
    """Train and answer where memory is full: batches are halved, or one message says what to lower; nothing is half."""
    found = dict[str, Any]()
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
    conf = folder / "full.yaml"
    conf.write_text(f"{RUN}runtime: {{home: {folder / 'home'}}}\n", encoding="utf-8")
    for stage, tried in TRIED.items():
        for megabytes in tried:
            shutil.rmtree(folder / "home" / "artifacts" / stage, ignore_errors=True)
            command = [
                sys.executable,
                "-m",
                "benchmarks.drills.full_memory",
                str(conf),
                f"{stage}-seed0",
                str(megabytes),
            ]
            done = subprocess.run(command, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False)
            said = done.stderr.strip().splitlines()
            made = [name for name in visible_files(folder / "home") if f"/{stage}/" in name]  # each is as it should be
            is_ours = done.returncode == 1 and len(said) <= 3 and "ower " in done.stderr and not made
            if not (is_ours or (done.returncode == 0 and made)):
                raise RuntimeError(f"{stage}, {megabytes} MB: code {done.returncode}: {done.stderr[-2000:]}")
            halvings = done.stdout.count(HALVED)
            found[f"{stage}, {megabytes} MB"] = {"made": bool(made), "halvings": halvings, "said": said[-1:]}
    return found


@with_exit_code
def make(conf: Path, stage: str, megabytes: int) -> None:
    """Make the stage."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    run = Pipeline(read_config(conf))
    ensure(run, list(run.specs)[: list(run.specs).index(stage)])
    limit_from_the_second_batch(megabytes)
    ensure(run, [stage])


if __name__ == "__main__":
    typer.run(make)
