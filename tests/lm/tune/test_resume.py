"""A tuning that was killed goes on to the very curve and the very bytes that it would have had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kgqa_core.lm.tune.journal import STATE, TENSORS, Journal, State
from kgqa_core.lm.tune.run import tune
from kgqa_core.lm.tune.types import Phase, TuneRun, TuneSettings

SETTINGS = TuneSettings(
    max_steps=10,
    batch_size=4,
    micro_batch=2,
    rank=3,
    dropout=0.3,  # so random numbers have to go on too
    learning_rate=2e-2,
    max_length=250,
    path_tokens=("<PATH>",),
    phases=(Phase(0.4, {"plan": 1}), Phase(1.0)),
    num_evaluations=3,
    keep="best",
)


class Killed(Exception):
    """What ends a training in the middle, as far as this process can be killed."""


def curve_of(base: Path, examples: Path, folder: Path, *, until: int | None = None, **changed: object) -> list[object]:
    """Tune with a journal in ``folder`` and return the points told; stop as if killed after step ``until``."""
    points: list[object] = []

    def told(done: int, total: int) -> None:
        if done == until:
            raise Killed

    run = TuneRun(
        folder / "out",
        folder / "journal",
        on_point=lambda *point: points.append(point),
        progress=told,
        curve_every=1,
        save_every=0,
    )
    try:
        tune(base, examples, replace(SETTINGS, **changed), run)
    except Killed:
        return []
    return points


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by name."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("changed", [{}, {"tuning": "full", "learning_rate": 1e-3}], ids=["lora", "full"])
def test_a_stopped_tuning_goes_on_exactly(
    changed: dict[str, object], llama: Path, instructions: Path, tmp_path: Path
) -> None:
    whole = curve_of(llama, instructions, tmp_path / "whole", **changed)
    assert not curve_of(llama, instructions, tmp_path / "stopped", until=6, **changed)
    assert curve_of(llama, instructions, tmp_path / "stopped", **changed) == whole
    kind = "model" if changed else "adapter"
    assert files_of(tmp_path / "stopped" / "out" / kind) == files_of(tmp_path / "whole" / "out" / kind)


def test_a_finished_tuning_is_not_done_again(llama: Path, instructions: Path, tmp_path: Path) -> None:
    whole = curve_of(llama, instructions, tmp_path)
    before = files_of(tmp_path / "out" / "adapter")
    (tmp_path / "out").rename(tmp_path / "old")
    started = time.process_time()
    assert curve_of(llama, instructions, tmp_path) == whole
    assert time.process_time() - started < 3
    assert files_of(tmp_path / "out" / "adapter") == before


@pytest.mark.slow
def test_other_settings_begin_anew(llama: Path, instructions: Path, tmp_path: Path) -> None:
    curve_of(llama, instructions, tmp_path / "one", until=6)
    other = curve_of(llama, instructions, tmp_path / "one", seed=5)
    assert other == curve_of(llama, instructions, tmp_path / "fresh", seed=5)


def state_of(step: int) -> State:
    """Return a state such as the journal keeps."""
    moments = {"step": torch.tensor(float(step)), "exp_avg": torch.arange(3.0) / 7}
    optimizer = {"state": {0: moments}, "param_groups": [{"lr": 0.1 / 3, "params": [0]}]}
    random = {"cpu": torch.get_rng_state()[None]}
    return State(step, {"a.b": torch.ones(2, 3) / 3}, optimizer, {"last_epoch": step}, random, {"points": []})


def test_the_journal_is_safetensors_and_json_to_the_last_digit(tmp_path: Path) -> None:
    Journal(tmp_path, "me", 0).save(state_of(7))
    folder = tmp_path / "step-00000007"
    assert sorted(file.name for file in folder.iterdir()) == [STATE, TENSORS]
    assert json.loads((folder / STATE).read_text())["step"] == 7
    found = Journal(tmp_path, "me", 0).load()
    assert found is not None
    expected = state_of(7)
    assert found.weights["a.b"].equal(expected.weights["a.b"])
    assert found.optimizer["param_groups"] == expected.optimizer["param_groups"]
    assert found.optimizer["state"][0]["exp_avg"].equal(expected.optimizer["state"][0]["exp_avg"])
    assert found.random["cpu"].equal(expected.random["cpu"])
    assert (found.step, found.scheduler, found.notes) == (7, {"last_epoch": 7}, {"points": []})


def test_a_damaged_state_falls_back_to_the_one_before(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "me", 0)
    for step in (1, 2, 3):
        journal.save(state_of(step))
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    whole = (tmp_path / "step-00000003" / TENSORS).read_bytes()
    (tmp_path / "step-00000003" / TENSORS).write_bytes(whole[:-5])
    found = journal.load()
    assert found is not None and found.step == 2
    assert Journal(tmp_path, "another", 0).load() is None


DRIVER = """
import json, sys
from pathlib import Path
from tests.lm.tune.test_resume import curve_of
base, examples, folder = map(Path, sys.argv[1:])
print(json.dumps(curve_of(base, examples, folder)))
"""


@pytest.mark.slow
def test_kill_9_and_again_gives_the_same_curve_and_bytes(llama: Path, instructions: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRIVER, str(llama), str(instructions), str(tmp_path / "killed")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment)
    states = tmp_path / "killed" / "journal" / "states"
    until = time.monotonic() + 240
    while not list(states.glob("step-0000000[5-9]")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -9
    again = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    whole = curve_of(llama, instructions, tmp_path / "whole")
    assert [tuple(point) for point in json.loads(again.stdout.splitlines()[-1])] == whole
    assert files_of(tmp_path / "killed" / "out" / "adapter") == files_of(tmp_path / "whole" / "out" / "adapter")
