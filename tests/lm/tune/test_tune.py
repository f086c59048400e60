"""From instruction data to an adapter that plain peft loads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kgqa_core.artifacts import hash_file
from kgqa_core.errors import ConfigError, KgqaError
from kgqa_core.instructions.types import Example
from kgqa_core.lm.folders import hash_model
from kgqa_core.lm.local import load, load_tokenizer, open_local
from kgqa_core.lm.tune.base import ABOUT
from kgqa_core.lm.tune.run import evaluation_steps, tune
from kgqa_core.lm.tune.types import Phase, TuneRun, TuneSettings
from kgqa_core.lm.types import Prompt
from tests.lm.tune.conftest import write_examples

SETTINGS = TuneSettings(max_steps=12, batch_size=4, rank=3, learning_rate=2e-2, max_length=250)


def test_a_tuned_adapter_says_what_it_was_taught(qwen2: Path, instructions: Path, tmp_path: Path) -> None:
    points: list[tuple[str, int, float]] = []
    settings = replace(SETTINGS, max_steps=30, learning_rate=4e-2)
    run = TuneRun(tmp_path, on_point=lambda *point: points.append(point))
    report = tune(qwen2, instructions, settings, run)
    assert report.folder == tmp_path / "adapter"
    train = [value for name, _, value in points if name == "train.loss"]
    assert len(train) == 3 and train[-1] < train[0] * 0.7 and report.train_loss == train[-1]
    dev = [(name, step) for name, step, _ in points if name.startswith("dev")]
    assert dev == [(f"dev.loss.{name}", step) for step in (10, 20, 30) for name in ("plan", "reason")]
    assert report.num_examples == {"plan": 24, "reason": 12}
    assert 0 < report.num_trainable < report.num_parameters
    asked, plan = [Prompt("plan enre of Heat")], [["<PATH>film.film.genre</PATH>"]]
    before = open_local(qwen2).score(asked, plan)[0][0]
    assert open_local(qwen2, adapter=report.folder).score(asked, plan)[0][0] > before + 10


def test_plain_peft_loads_the_adapter(any_model: Path, instructions: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    tune(any_model, instructions, SETTINGS, TuneRun(tmp_path))
    base = AutoModelForCausalLM.from_pretrained(any_model, dtype=torch.float32)
    text = torch.arange(9)[None] + 5
    before = base(input_ids=text).logits
    tuned = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert not torch.allclose(tuned(input_ids=text).logits, before, atol=1e-2)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == f"{any_model.name}-{hash_model(any_model, hash_file)[:12]}"
    assert config["target_modules"] == sorted(config["target_modules"])
    assert str(any_model.parent) not in "".join(file.read_text() for file in (tmp_path / "adapter").glob("*.json"))
    assert json.loads((tmp_path / "adapter" / ABOUT).read_text())["base_sha256"] == hash_model(any_model, hash_file)


@pytest.mark.parametrize("name", ["llama", "gpt2"])  # a head of its own, and one that is the embedding table
def test_new_tokens_are_learned_and_travel_with_the_adapter(
    name: str, request: pytest.FixtureRequest, instructions: Path, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base, marks = request.getfixturevalue(name), ("<PATH>", "<JOIN>", "</PATH>")
    assert len(load_tokenizer(base)("<PATH>")["input_ids"]) > 1
    report = tune(base, instructions, replace(SETTINGS, path_tokens=marks), TuneRun(tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(report.folder)
    assert [len(tokenizer(mark, add_special_tokens=False)["input_ids"]) for mark in marks] == [1, 1, 1]
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tuned = PeftModel.from_pretrained(model, report.folder).eval()
    ours = load(base, adapter=report.folder).model
    text = torch.tensor([tokenizer("<PATH>film<JOIN>genre</PATH>")["input_ids"]])
    torch.testing.assert_close(tuned(input_ids=text).logits, ours(input_ids=text).logits, rtol=1e-3, atol=1e-3)
    weights = tuned.state_dict()
    heads = [one for key, one in weights.items() if "trainable_tokens_delta" in key]
    assert {tuple(one.shape) for one in heads} == {(3, 24)}
    tied = model.config.tie_word_embeddings
    assert len({one.data_ptr() for one in heads}) == (1 if tied else 2)


def test_full_tuning_leaves_an_ordinary_model_folder(llama: Path, instructions: Path, tmp_path: Path) -> None:
    report = tune(llama, instructions, replace(SETTINGS, tuning="full", learning_rate=1e-3), TuneRun(tmp_path))
    assert report.folder == tmp_path / "model"
    assert report.num_trainable == report.num_parameters
    text = torch.arange(9)[None] + 5
    before, after = (load(folder).model(input_ids=text).logits for folder in (llama, report.folder))
    assert not torch.allclose(before, after, atol=1e-2)
    assert load_tokenizer(report.folder).get_vocab() == load_tokenizer(llama).get_vocab()
    assert str(llama.parent) not in (report.folder / "config.json").read_text()


def test_the_same_seed_gives_the_same_bytes(llama: Path, instructions: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, dropout=0.2, max_steps=5)
    for name, seed in (("first", 0), ("second", 0), ("third", 1)):
        tune(llama, instructions, replace(settings, seed=seed), TuneRun(tmp_path / name))
    first, second, third = ((tmp_path / name / "adapter") for name in ("first", "second", "third"))
    for file in sorted(first.iterdir()):
        assert file.read_bytes() == (second / file.name).read_bytes()
    assert (first / "adapter_model.safetensors").read_bytes() != (third / "adapter_model.safetensors").read_bytes()


def losses_of(base: Path, instructions: Path, folder: Path, **changed: object) -> list[float]:
    """Return the loss of each of a few steps."""
    points: list[tuple[str, int, float]] = []
    settings = replace(SETTINGS, **{"batching": "random", "max_steps": 6, "learning_rate": 5e-3, **changed})
    tune(base, instructions, settings, TuneRun(folder, on_point=lambda *point: points.append(point), curve_every=1))
    return [value for name, _, value in points if name == "train.loss"]


@pytest.fixture(scope="session")
def undivided(qwen2: Path, instructions: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of steps of one forward pass each."""
    return losses_of(qwen2, instructions, tmp_path_factory.mktemp("undivided"))


@pytest.mark.parametrize(
    "changed",
    [
        {"micro_batch": 2},
        {"micro_batch": 1, "gradient_checkpointing": True},
        {"batching": "packed"},
        {"batching": "packed", "micro_batch": 2},
    ],
    ids=lambda changed: "-".join(map(str, changed.values())),
)
def test_how_a_step_is_divided_changes_nothing_but_rounding(
    changed: dict[str, object], undivided: list[float], qwen2: Path, instructions: Path, tmp_path: Path
) -> None:
    assert losses_of(qwen2, instructions, tmp_path, **changed) == pytest.approx(undivided, rel=1e-3)


def test_the_best_weights_are_kept_where_that_is_asked(llama: Path, tmp_path: Path) -> None:
    train = [Example("plan", f"q{n}", "train", "", f"who {n}", "directed by", 1.0) for n in range(20)]
    misled = [replace(one, split="dev", target="42 trains") for one in train[:4]]  # the more is learned, the worse
    instructions = write_examples(tmp_path / "misled.parquet", train + misled)
    longer = replace(SETTINGS, max_steps=16, num_evaluations=8)
    points: list[tuple[str, int, float]] = []
    run = TuneRun(tmp_path, on_point=lambda *point: points.append(point))
    report = tune(llama, instructions, replace(longer, keep="best"), run)
    dev: dict[int, list[float]] = {}
    for name, step, value in points:
        if name.startswith("dev"):
            dev.setdefault(step, []).append(value)
    assert report.best_step == min(dev, key=lambda step: sum(dev[step]))
    assert report.best_step < 16
    assert list(report.dev_losses.values()) == dev[report.best_step]


def test_a_phase_draws_only_what_it_names(llama: Path, instructions: Path, tmp_path: Path) -> None:
    planning = replace(SETTINGS, phases=(Phase(1.0, {"plan": 1}),))
    report = tune(llama, instructions, planning, TuneRun(tmp_path / "plan"))
    joint = tune(llama, instructions, SETTINGS, TuneRun(tmp_path / "joint"))
    assert report.dev_losses["plan"] < joint.dev_losses["plan"]
    assert report.dev_losses["reason"] > joint.dev_losses["reason"]


def test_bfloat16_products_still_learn(llama: Path, instructions: Path, tmp_path: Path) -> None:
    report = tune(llama, instructions, replace(SETTINGS, precision="bfloat16"), TuneRun(tmp_path))
    plain = tune(llama, instructions, SETTINGS, TuneRun(tmp_path / "plain"))
    assert report.dev_losses == pytest.approx(plain.dev_losses, rel=0.1)


def test_a_loss_that_is_no_number_says_what_to_lower(llama: Path, instructions: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, learning_rate=1e30, gradient_norm=0.0)
    with pytest.raises(KgqaError, match=r"became (nan|inf) in step \d+ of 12\. Lower learning_rate \(1e\+30\)"):
        tune(llama, instructions, settings, TuneRun(tmp_path))
    assert not (tmp_path / "adapter").exists()


def test_targets_that_the_model_has_not_are_refused(llama: Path, instructions: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no LoRA weights for targets.*nowhere"):
        tune(llama, instructions, replace(SETTINGS, targets=("nowhere",)), TuneRun(tmp_path))


def test_evaluations_are_even_and_the_last_is_at_the_end() -> None:
    assert evaluation_steps(90, 3) == [30, 60, 90]
    assert evaluation_steps(2, 5) == [1, 2]
    assert evaluation_steps(7, 0) == [7]


@pytest.mark.gpu
@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_a_gpu_learns_in_bfloat16_what_a_cpu_learns(
    batching: str, qwen2: Path, instructions: Path, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, max_steps=30, batching=batching)
    found = {
        device: tune(qwen2, instructions, settings, TuneRun(tmp_path / device, device=device))
        for device in ("cpu", "cuda")
    }
    assert found["cuda"].dev_losses == pytest.approx(found["cpu"].dev_losses, rel=0.1)
    load(qwen2, adapter=found["cuda"].folder)


@pytest.mark.gpu
def test_a_tuning_on_a_gpu_goes_on_after_a_stop(llama: Path, instructions: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 7:
            raise Stop

    settings = replace(SETTINGS, dropout=0.3)
    run = TuneRun(tmp_path / "out", tmp_path / "journal", device="cuda", save_every=0)
    with pytest.raises(Stop):
        tune(llama, instructions, settings, replace(run, progress=stop))
    stopped = tune(llama, instructions, settings, run)
    whole = tune(llama, instructions, settings, TuneRun(tmp_path / "whole", device="cuda"))
    assert stopped.dev_losses == pytest.approx(whole.dev_losses, rel=1e-2)
