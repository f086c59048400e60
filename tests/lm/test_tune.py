"""From instruction data to an adapter that plain peft loads; a killed training goes on exactly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from kgqa_core.artifacts import hash_file
from kgqa_core.errors import ConfigError, InputError, KgqaError
from kgqa_core.lm import tune_data, tune_loop
from kgqa_core.lm.folders import ABOUT, hash_model, load, load_tokenizer, tensor_shapes
from kgqa_core.lm.local import open_local
from kgqa_core.lm.tune import tune
from kgqa_core.lm.tune_data import TuneJob
from kgqa_core.lm.tune_journal import STATE, TENSORS
from kgqa_core.lm.tune_loop import target_nll
from kgqa_core.lm.types import Prompt
from tests.lm.tiny_models import Killed, Point, files_of, make_any, make_examples, make_job, told, write_examples


def test_a_tuned_adapter_says_what_it_was_taught(qwen2: Path, instructions: Path, tmp_path: Path) -> None:
    report, points = told(make_job(qwen2, instructions, tmp_path, max_steps=30, learning_rate=4e-2))
    assert report.folder == tmp_path / "adapter"
    train = [value for name, _, value in points if name == "train.loss"]
    assert len(train) == 3 and train[-1] < train[0] * 0.7 and report.train_loss == train[-1]
    dev = [(name, step) for name, step, _ in points if name.startswith("dev")]
    assert dev == [(f"dev.loss.{name}", step) for step in (10, 20, 30) for name in ("plan", "reason")]
    assert 0 < report.num_trainable < report.num_parameters and report.num_too_long == {}
    asked, plan = [Prompt("plan enre of Heat")], [["<PATH>film.film.genre</PATH>"]]
    before = open_local(qwen2).score(asked, plan)[0][0]
    assert open_local(qwen2, adapter=report.folder).score(asked, plan)[0][0] > before + 10


@pytest.mark.slow
def test_the_best_step_is_kept_also_where_a_stopped_training_goes_on(
    llama: Path, instructions: Path, tmp_path: Path
) -> None:
    """Dev is judged by a script: the second of four evaluations is the best."""
    scripted = iter([3.0, 1.0, 2.0, 4.0] * 2 + [2.0, 4.0])

    def judge(*args: Any, **options: Any) -> dict[str, float]:
        return {"plan": next(scripted), "reason": 1.0}

    shape = {"num_evaluations": 4, "max_steps": 8}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("kgqa_core.lm.tune.dev_losses", judge)
        last, _ = told(resumable(llama, instructions, tmp_path / "last", keep="last", **shape))
        best, _ = told(resumable(llama, instructions, tmp_path / "best", **shape))
        assert (last.kept_step, last.dev_losses["plan"]) == (8, 4.0)
        assert (best.kept_step, best.dev_losses["plan"]) == (4, 1.0)
        scripted = iter([3.0, 1.0, 2.0, 4.0])
        stopped = resumable(llama, instructions, tmp_path / "stopped", **shape)
        with pytest.raises(Killed):
            told(stopped, until=6)
        again, _ = told(stopped)
    assert again.kept_step == 4
    assert files_of(again.folder) == files_of(best.folder) != files_of(last.folder)


def test_an_instruction_counts_by_its_share_of_the_training(llama: Path, tmp_path: Path) -> None:
    """One rare example of ``reason`` gets worse while the many of ``plan`` get better: the later step is kept."""
    rare = [one for one in make_examples() if one.instruction == "reason"]
    few = [next(one for one in rare if one.split == split) for split in ("train", "dev")]
    examples = write_examples(
        tmp_path / "examples.parquet", [one for one in make_examples() if one.instruction == "plan"] + few
    )
    scripted = iter([{"plan": 2.0, "reason": 0.0}, {"plan": 1.5, "reason": 1.0}])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("kgqa_core.lm.tune.dev_losses", lambda *args, **options: next(scripted))
        report = tune(make_job(llama, examples, tmp_path, num_evaluations=2, max_steps=4))
    assert report.kept_step == 4


def test_plain_peft_loads_the_adapter(any_model: Path, instructions: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    tune(make_job(any_model, instructions, tmp_path))
    base = AutoModelForCausalLM.from_pretrained(any_model, dtype=torch.float32)
    text, sha256 = torch.arange(9)[None] + 5, hash_model(any_model, hash_file)
    before = base(input_ids=text).logits
    tuned = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert not torch.allclose(tuned(input_ids=text).logits, before, atol=1e-2)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == f"{any_model.name}-{sha256[:12]}"
    assert config["target_modules"] == sorted(config["target_modules"])
    assert str(any_model.parent) not in "".join(file.read_text() for file in (tmp_path / "adapter").glob("*.json"))
    assert json.loads((tmp_path / "adapter" / ABOUT).read_text())["base_sha256"] == sha256


def test_full_tuning_leaves_an_ordinary_model_folder(llama: Path, instructions: Path, tmp_path: Path) -> None:
    report = tune(make_job(llama, instructions, tmp_path, tuning="full", learning_rate=1e-3))
    assert report.folder == tmp_path / "model" and report.num_trainable == report.num_parameters
    text = torch.arange(9)[None] + 5
    before, after = (load(folder).model(input_ids=text).logits for folder in (llama, report.folder))
    assert not torch.allclose(before, after, atol=1e-2)
    assert load_tokenizer(report.folder).get_vocab() == load_tokenizer(llama).get_vocab()
    assert str(llama.parent) not in (report.folder / "config.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("divided", [{"micro_batch": 2}, {"micro_batch": 1, "gradient_checkpointing": True}])
def test_how_a_step_is_divided_changes_nothing_but_rounding(
    divided: dict[str, object], qwen2: Path, instructions: Path, tmp_path: Path
) -> None:
    settings = {"batching": "random", "max_steps": 6, "learning_rate": 5e-3, "curve_every": 1}
    curves = [
        [value for name, _, value in told(make_job(qwen2, instructions, tmp_path, **settings, **own))[1]
         if name == "train.loss"]
        for own in ({}, divided)
    ]  # fmt: skip
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("accumulated", [{}, {"micro_batch": 4}])
def test_a_pass_that_the_memory_does_not_hold_is_read_in_parts(
    accumulated: dict[str, Any], qwen2: Path, instructions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"batching": "random", "max_steps": 4, "learning_rate": 5e-3, **accumulated}
    plain = tune(make_job(qwen2, instructions, tmp_path / "plain", **settings))
    rows = list[int]()

    def tight(model: Any, inputs: dict[str, Any], precision: torch.dtype) -> torch.Tensor:
        """Run out of memory after a backward pass of some rows, as happens."""
        rows.append(len(inputs["input_ids"]))
        if model.training and rows[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return target_nll(model, inputs, precision)

    monkeypatch.setattr(tune_loop, "target_nll", tight)
    parts = tune(make_job(qwen2, instructions, tmp_path / "parts", **settings))
    assert parts.train_loss == pytest.approx(plain.train_loss, rel=1e-4)
    assert parts.dev_losses == pytest.approx(plain.dev_losses, rel=1e-3)
    assert max(rows[:4]) > 2 and rows.count(2) >= 4


def test_a_row_that_the_memory_does_not_hold_ends_the_training(
    qwen2: Path, instructions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(tune_loop, "target_nll", full)
    with pytest.raises(KgqaError, match=r"does not hold a step: set gradient_checkpointing, or lower max_length"):
        tune(make_job(qwen2, instructions, tmp_path))
    monkeypatch.setattr(tune_loop, "MOST_COPIED", 0)  # as of a large model whose weights are all tuned
    with pytest.raises(KgqaError, match=r"does not hold a step: lower micro_batch \(now \d+\), or set"):
        tune(make_job(qwen2, instructions, tmp_path / "full", tuning="full"))


@pytest.mark.slow
def test_bfloat16_products_still_learn(llama: Path, instructions: Path, tmp_path: Path) -> None:
    report = tune(make_job(llama, instructions, tmp_path, precision="bfloat16"))
    plain = tune(make_job(llama, instructions, tmp_path / "plain"))
    assert report.dev_losses == pytest.approx(plain.dev_losses, rel=0.1)


def test_a_loss_that_is_no_number_says_what_to_lower(llama: Path, instructions: Path, tmp_path: Path) -> None:
    with pytest.raises(KgqaError, match=r"became (nan|inf) in step \d+ of 12\. Lower learning_rate \(1e\+30\)"):
        tune(make_job(llama, instructions, tmp_path, learning_rate=1e30, gradient_norm=0.0))
    assert not (tmp_path / "adapter").exists()


def test_targets_that_cannot_be_tuned_are_refused_before_training(
    llama: Path, instructions: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"no LoRA weights for targets.*nowhere"):
        tune(make_job(llama, instructions, tmp_path, targets=("nowhere",)))
    mixtral = make_any(tmp_path / "mixtral", "mixtral")
    with pytest.raises(ConfigError, match=r"'all-linear' reach the fused experts of mixtral.*cannot be loaded again"):
        tune(make_job(mixtral, instructions, tmp_path))
    report = tune(make_job(mixtral, instructions, tmp_path, targets=("q_proj", "v_proj"), max_steps=1))
    load(mixtral, adapter=report.folder)


@pytest.mark.slow
def test_tuning_goes_on_from_an_adapter_and_names_it(qwen2: Path, instructions: Path, tmp_path: Path) -> None:
    """Its first loss is that of the adapter on the same batch, whether LoRA or all weights are tuned."""
    one = {"max_steps": 1, "curve_every": 1, "dropout": 0.0}
    first = told(make_job(qwen2, instructions, tmp_path / "first", max_steps=15))[0].folder
    settings = {**one, "adapter": first, "learning_rate": 1e-9}
    job = make_job(qwen2, instructions, tmp_path / "still", **settings)
    still = told(job)[0]
    adapted = load(qwen2, adapter=first)
    tune_data.write_tokens([instructions], adapted.tokenizer, tmp_path / "tokens", max_length=job.section.max_length)
    tokens = tune_data.read_tokens(tmp_path / "tokens")
    (batch,) = tune_data.passes_of(tokens, tune_data.draw_batches(tokens, job.section), rank=0, pad=0)
    with torch.no_grad():
        loss = tune_loop.target_nll(adapted.model, batch, torch.float32) @ batch["weights"]
    assert still.train_loss == pytest.approx(float(loss), abs=1e-5)
    asked, plan = [Prompt("plan enre of Heat")], [["<PATH>film.film.genre</PATH>"]]
    known = open_local(qwen2, adapter=first).score(asked, plan)[0][0]
    assert open_local(qwen2, adapter=still.folder).score(asked, plan)[0][0] == pytest.approx(known, abs=1e-3)
    full = told(make_job(qwen2, instructions, tmp_path / "full", tuning="full", **settings))[0]
    assert full.train_loss == pytest.approx(still.train_loss, abs=1e-5)
    anew = told(make_job(qwen2, instructions, tmp_path / "anew", **one))[0]
    assert still.train_loss < anew.train_loss - 0.5
    about = json.loads((still.folder / ABOUT).read_text())
    assert about["starts_from_sha256"] == hash_model(first, hash_file, is_adapter=True)


@pytest.mark.parametrize(
    "other", [{"rank": 5}, {"alpha": 7.0}, {"targets": ("q_proj", "v_proj")}, {"targets": ("q_proj",), "rank": 5}]
)
def test_a_section_of_another_form_than_the_adapter_it_starts_from_is_refused(
    other: dict[str, Any], qwen2: Path, instructions: Path, tmp_path: Path
) -> None:
    first = tune(make_job(qwen2, instructions, tmp_path / "first", max_steps=1)).folder
    with pytest.raises(ConfigError, match=r"goes on from the adapter .* of rank 3, alpha 32.0, targets .*make these"):
        tune(make_job(qwen2, instructions, tmp_path / "second", adapter=first, **other))
    turned = make_any(tmp_path / "another", "qwen2")
    with pytest.raises(InputError, match="is for another base"):
        tune(make_job(turned, instructions, tmp_path / "third", adapter=first))


def test_tuning_goes_on_from_an_adapter_that_lies_beside_its_model(
    qwen2: Path, instructions: Path, tmp_path: Path
) -> None:
    """The model's own weights were once taken for the adapter's, which then had another form than the section."""
    both = shutil.copytree(qwen2, tmp_path / "both")
    first = tune(make_job(qwen2, instructions, tmp_path / "first", max_steps=1)).folder
    shutil.copytree(first, both, dirs_exist_ok=True)
    assert tune(make_job(qwen2, instructions, tmp_path / "second", max_steps=1, adapter=both)).num_steps == 1
    assert tensor_shapes(both) == tensor_shapes(qwen2)


# ------ Going on


def resumable(base: Path, examples: Path, folder: Path, **changed: Any) -> TuneJob:
    """Return a job that keeps each state, with everything that a state must hold."""
    shape = {"max_steps": 10, "micro_batch": 2, "dropout": 0.3, **changed}
    how = {"journal": folder / "journal", "curve_every": 1, "save_every": 0}
    return make_job(base, examples, folder / "out", **how, **shape)


@pytest.fixture(scope="module")
def whole(llama: Path, instructions: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Point], Path]:
    """The points and the adapter of a training that nothing stopped."""
    report, points = told(resumable(llama, instructions, tmp_path_factory.mktemp("whole")))
    return points, report.folder


@pytest.mark.slow
def test_a_stopped_tuning_goes_on_exactly_and_a_finished_one_is_not_done_again(
    whole: tuple[list[Point], Path], llama: Path, instructions: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The newest of its states is damaged: it goes on from the one before."""
    job = resumable(llama, instructions, tmp_path)
    with pytest.raises(Killed):
        told(job, until=6)
    states = tmp_path / "journal" / "states"
    folders = sorted(states.glob("step-*"))
    assert [folder.name for folder in folders] == ["step-00000005", "step-00000006"]
    assert sorted(file.name for file in folders[1].iterdir()) == [STATE, TENSORS]
    assert json.loads((folders[1] / STATE).read_text())["notes"]["step"] == 6
    assert all(file.suffix in (".safetensors", ".json") for file in states.rglob("*") if file.is_file())
    (folders[1] / TENSORS).write_bytes((folders[1] / TENSORS).read_bytes()[:-5])
    assert told(job)[1] == whole[0] and "cannot go on from" in caplog.text
    assert files_of(job.tuned) == files_of(whole[1])
    job.out.rename(tmp_path / "old")
    started = time.process_time()
    assert told(job)[1] == whole[0] and time.process_time() - started < 3
    assert files_of(job.tuned) == files_of(whole[1])


@pytest.mark.slow
def test_a_stopped_tuning_of_all_weights_goes_on_exactly(llama: Path, instructions: Path, tmp_path: Path) -> None:
    stopped, undisturbed = (
        resumable(llama, instructions, tmp_path / name, tuning="full", learning_rate=1e-3) for name in ("a", "b")
    )
    with pytest.raises(Killed):
        told(stopped, until=6)
    assert told(stopped)[1] == told(undisturbed)[1] and files_of(stopped.tuned) == files_of(undisturbed.tuned)


@pytest.mark.slow
def test_another_seed_begins_anew(
    whole: tuple[list[Point], Path], llama: Path, instructions: Path, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        told(resumable(llama, instructions, tmp_path / "one"), until=6)
    largest = 2**63 - 1  # that a configuration takes; NumPy takes less
    other = told(resumable(llama, instructions, tmp_path / "one", seed=largest))[1]
    assert whole[0] != other == told(resumable(llama, instructions, tmp_path / "fresh", seed=largest))[1]


DRIVER = """
import json, sys
from pathlib import Path
from tests.lm.test_tune import resumable, told
print(json.dumps(told(resumable(*map(Path, sys.argv[1:])))[1]))
"""


@pytest.mark.slow
def test_kill_9_and_again_gives_the_same_curve_and_bytes(
    whole: tuple[list[Point], Path], llama: Path, instructions: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", DRIVER, str(llama), str(instructions), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment)
    states, until = tmp_path / "journal" / "states", time.monotonic() + 240
    while not list(states.glob("step-0000000[5-9]")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -9
    again = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert [tuple(point) for point in json.loads(again.stdout.splitlines()[-1])] == whole[0]
    assert files_of(tmp_path / "out" / "adapter") == files_of(whole[1])


# ------ Four bits, and GPUs


@pytest.mark.slow
def test_an_adapter_learns_over_a_base_in_four_bits(qwen2: Path, instructions: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="the base's four bits are those of bitsandbytes")
    job = make_job(qwen2, instructions, tmp_path, max_steps=20, learning_rate=4e-2, tuning="qlora")
    report, points = told(job)
    train = [value for name, _, value in points if name == "train.loss"]
    assert train[-1] < train[0] - 1 and report.folder == tmp_path / "adapter"
    asked, plan = [Prompt("plan enre of Heat")], [["<PATH>film.film.genre</PATH>"]]
    before = open_local(qwen2, quantise="int4").score(asked, plan)[0][0]
    assert open_local(qwen2, adapter=report.folder, quantise="int4").score(asked, plan)[0][0] > before + 5


@pytest.mark.gpu
def test_a_gpu_learns_in_bfloat16_what_a_cpu_learns(qwen2: Path, instructions: Path, tmp_path: Path) -> None:
    cpu, gpu = (
        tune(make_job(qwen2, instructions, tmp_path / device, max_steps=30, device=device))
        for device in ("cpu", "cuda")
    )
    assert gpu.dev_losses == pytest.approx(cpu.dev_losses, rel=0.1)
    load(qwen2, adapter=gpu.folder)


@pytest.mark.gpu
def test_a_tuning_on_a_gpu_goes_on_after_a_stop(llama: Path, instructions: Path, tmp_path: Path) -> None:
    options = {"dropout": 0.3, "device": "cuda", "save_every": 0}
    job = make_job(llama, instructions, tmp_path / "out", journal=tmp_path / "journal", **options)
    with pytest.raises(Killed):
        told(job, until=7)
    stopped, whole = tune(job), tune(make_job(llama, instructions, tmp_path / "whole", **options))
    assert stopped.dev_losses == pytest.approx(whole.dev_losses, rel=1e-2)
