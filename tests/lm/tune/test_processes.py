"""Several processes, started by torchrun, tune as one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from kgqa_core.errors import ConfigError
from kgqa_core.lm.tune.launch import JOB, TOLD, tune_in_processes, write_job
from kgqa_core.lm.tune.processes import Processes, join_processes
from kgqa_core.lm.tune.run import tune
from kgqa_core.lm.tune.types import TuneRun, TuneSettings

SETTINGS = TuneSettings(max_steps=6, batch_size=8, rank=3, learning_rate=1e-2, max_length=250, num_evaluations=2)


def test_a_process_alone_needs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    alone = join_processes("cpu")
    assert alone == Processes(rank=0, count=1, device="cpu")
    assert alone.is_first and alone.agree(True) and not alone.agree(False)


@pytest.mark.slow
def test_two_processes_of_torchrun_tune_as_one_alone(llama: Path, instructions: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, float]] = []
    alone = TuneRun(tmp_path / "alone", on_point=lambda *point: told.append(point), curve_every=1)
    one = tune(llama, instructions, SETTINGS, alone)
    run = TuneRun(tmp_path / "two", tmp_path / "journal", curve_every=1)
    write_job(tmp_path / JOB, llama, [instructions], SETTINGS, run)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "-m", "kgqa_core.lm.tune", str(tmp_path / JOB)], env=environment, check=True)
    lines = [json.loads(line) for line in (tmp_path / TOLD).read_text().splitlines()]
    points = [line["point"] for line in lines if "point" in line]
    assert [point[:2] for point in points] == [list(point[:2]) for point in told]
    assert [point[2] for point in points] == pytest.approx([point[2] for point in told], rel=1e-3)
    assert lines[-1]["report"]["num_tokens"] == one.num_tokens
    weights = [load_file(tmp_path / name / "adapter" / "adapter_model.safetensors") for name in ("alone", "two")]
    for name, expected in weights[0].items():
        assert weights[1][name] == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_processes_that_were_killed_go_on_exactly(llama: Path, instructions: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, dropout=0.3)  # each process has random numbers of its own
    runs = {name: TuneRun(tmp_path / name, tmp_path / name / "journal", save_every=0) for name in ("whole", "stopped")}
    tune_in_processes(llama, instructions, settings, runs["whole"], processes=2)

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise Stop

    with pytest.raises(Stop):
        tune_in_processes(llama, instructions, settings, replace(runs["stopped"], progress=stop), processes=2)
    states = tmp_path / "stopped" / "journal" / "states"
    assert any(states.glob("step-0000000[1-5]"))
    report = tune_in_processes(llama, instructions, settings, runs["stopped"], processes=2)
    file = report.folder / "adapter_model.safetensors"
    assert file.read_bytes() == (tmp_path / "whole" / "adapter" / "adapter_model.safetensors").read_bytes()


@pytest.mark.slow
def test_errors_of_processes_are_errors_here(llama: Path, instructions: Path, tmp_path: Path) -> None:
    odd = replace(SETTINGS, batch_size=7, micro_batch=2)
    with pytest.raises(ConfigError, match="batch_size 7 must be a multiple of the number of processes"):
        tune_in_processes(llama, instructions, odd, TuneRun(tmp_path), processes=1)
    assert not (tmp_path / "adapter").exists()
