"""The loss is that of the targets alone, however examples share a pass; and a killed training goes on exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from kgqa_core.lm.folders import load
from kgqa_core.lm.tune import STATE, TENSORS, tune
from kgqa_core.lm.tune_data import Tokens, collate, passes_of, read_tokens, target_nll, write_tokens
from tests.lm.tiny_models import make_job

EXAMPLES = np.array([0, 4, 1, 17, 6, 9])


@pytest.fixture
def opened(any_model: Path, instructions: Path, tmp_path: Path) -> tuple[Any, Tokens]:
    """A model in double precision and the examples in its tokens."""
    loaded = load(any_model)
    write_tokens([instructions], loaded.tokenizer, tmp_path / "tokens", max_length=250)
    return loaded.model.double(), read_tokens(tmp_path / "tokens")


def alone(model: Any, tokens: Tokens, example: int) -> torch.Tensor:
    """Return an example's mean loss per target token, read alone and whole."""
    text = torch.tensor(np.asarray(tokens.tokens[tokens.starts[example] : tokens.starts[example + 1]], np.int64))
    asked = int(tokens.num_prompt[example])
    return cross_entropy(model(input_ids=text[None]).logits[0, asked - 1 : -1], text[asked:])


def test_examples_together_have_the_losses_that_they_have_alone(opened: tuple[Any, Tokens]) -> None:
    model, tokens = opened
    batch = collate(tokens, EXAMPLES, 1 / tokens.num_targets[EXAMPLES], pad=0)
    loss = (target_nll(model, batch, torch.float32) * batch["weights"]).sum()
    together = torch.autograd.grad(loss, list(model.parameters()))
    expected = torch.stack([alone(model, tokens, example) for example in EXAMPLES]).sum()
    apart = torch.autograd.grad(expected, list(model.parameters()))
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("per_example", [False, True])
def test_a_steps_passes_add_up_to_rogs_objective(opened: tuple[Any, Tokens], per_example: bool) -> None:
    """RoG Eq. 7 by hand: each example's log-likelihood by its weight (a plan's is 1/|Z*|), in the step's mean."""
    model, tokens = opened
    assert len(set(tokens.weights[EXAMPLES].tolist())) > 1
    means = torch.stack([alone(model, tokens, example) for example in EXAMPLES]).detach().numpy()
    counted = np.ones(len(EXAMPLES)) if per_example else tokens.num_targets[EXAMPLES]
    expected = (means * tokens.weights[EXAMPLES] * counted).sum() / counted.sum()
    total = 0.0
    for rank in range(2):
        passes = list(passes_of(tokens, EXAMPLES.reshape(1, 3, 2, 1), rank=rank, pad=0, per_example=per_example))
        assert len(passes) == 3
        for one in passes:
            total += float((target_nll(model, one, torch.float32).detach() * one["weights"]).sum())
    assert total == pytest.approx(expected, rel=1e-6)


class Killed(Exception):
    """What ends a training in the middle, as far as this process can be killed."""


def curve_of(base: Path, examples: Path, folder: Path, *, until: int | None = None, **changed: Any) -> list[object]:
    """Tune with a journal in ``folder`` and return the points told; stop as if killed after step ``until``."""
    points: list[object] = []
    phases = [{"until": 0.4, "weights": {"plan": 1.0}}, {"until": 1.0}]
    shape = {"max_steps": 10, "micro_batch": 2, "dropout": 0.3, "phases": phases, "keep": "best", **changed}
    how = {"path_tokens": ("<PATH>",), "journal": folder / "journal", "curve_every": 1, "save_every": 0}

    def progress(done: int, total: int) -> None:
        if done == until:
            raise Killed

    try:
        tune(make_job(base, examples, folder / "out", **how, **shape), lambda *point: points.append(point), progress)
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


def test_states_are_safetensors_and_json_and_a_damaged_one_falls_back_to_the_one_before(
    llama: Path, instructions: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = curve_of(llama, instructions, tmp_path / "whole")
    curve_of(llama, instructions, tmp_path / "one", until=6)
    states = tmp_path / "one" / "journal" / "states"
    folders = sorted(states.glob("step-*"))
    assert [folder.name for folder in folders] == ["step-00000005", "step-00000006"]
    assert sorted(file.name for file in folders[1].iterdir()) == [STATE, TENSORS]
    assert json.loads((folders[1] / STATE).read_text())["notes"]["step"] == 6
    assert all(file.suffix in (".safetensors", ".json") for file in states.rglob("*") if file.is_file())
    (folders[1] / TENSORS).write_bytes((folders[1] / TENSORS).read_bytes()[:-5])
    assert curve_of(llama, instructions, tmp_path / "one") == whole
    assert "cannot go on from" in caplog.text


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


DRIVER = """
import json, sys
from pathlib import Path
from tests.lm.test_tune_loop import curve_of
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
