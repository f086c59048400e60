"""Adapters in peft's format: put on, told apart, refused where they do not belong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from kgqa_core.artifacts import hash_file
from kgqa_core.errors import InputError
from kgqa_core.lm.folders import ABOUT, hash_model
from kgqa_core.lm.local import open_local
from kgqa_core.lm.types import Decoding, Prompt
from tests.lm.tiny_models import make_qwen2

PROMPTS, OPTIONS = [Prompt("the plan is"), Prompt("x")], [["drama", "Heat"], ["Heat"]]


def make_adapter(base: Path, folder: Path, **options: Any) -> Path:
    import peft
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        tuned = peft.get_peft_model(
            model, peft.LoraConfig(r=3, init_lora_weights=False, task_type="CAUSAL_LM", **options)
        )
    tuned.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapter(qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(qwen2, tmp_path_factory.mktemp("adapters") / "lora", target_modules="all-linear")


def test_an_adapted_model_scores_as_in_plain_peft(qwen2: Path, adapter: Path) -> None:
    import peft
    import transformers

    model = open_local(qwen2, adapter=adapter)
    plain = open_local(qwen2)
    expected = plain.score(PROMPTS, OPTIONS)
    assert model.score(PROMPTS, OPTIONS)[0] != pytest.approx(expected[0], abs=0.1)
    plain.model = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(qwen2), adapter
    ).eval()
    for scores, known in zip(model.score(PROMPTS, OPTIONS), plain.score(PROMPTS, OPTIONS), strict=True):
        assert scores == pytest.approx(known, abs=1e-3)


def test_an_adapter_that_is_not_merged_is_asked_in_the_same_way(qwen2: Path, adapter: Path) -> None:
    model = open_local(qwen2, adapter=adapter, dtype="bfloat16")  # where adding it into the weights would round
    assert hasattr(model.model, "peft_config")
    merged = open_local(qwen2, adapter=adapter)
    assert not hasattr(merged.model, "peft_config")
    assert model.score(PROMPTS, OPTIONS)[1] == pytest.approx(merged.score(PROMPTS, OPTIONS)[1], rel=0.1)
    assert model.generate(PROMPTS, Decoding(max_new_tokens=3))[1][0].num_tokens > 0


def test_gpt2_has_adapters_too(gpt2: Path, tmp_path: Path) -> None:
    adapter = make_adapter(gpt2, tmp_path / "lora", target_modules=["c_attn"], fan_in_fan_out=True)
    assert open_local(gpt2, adapter=adapter).score(PROMPTS, OPTIONS) != open_local(gpt2).score(PROMPTS, OPTIONS)


def test_names_tell_base_and_adapter(qwen2: Path, adapter: Path, tmp_path: Path) -> None:
    name = open_local(qwen2, adapter=adapter).name
    assert name.startswith(open_local(qwen2).name + "+")
    copied = shutil.copytree(qwen2, tmp_path / "elsewhere")
    assert open_local(copied, adapter=shutil.copytree(adapter, tmp_path / "copied")).name == name
    (copied / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert open_local(copied, adapter=adapter).name != name


def test_an_adapter_of_another_architecture(gpt2: Path, adapter: Path) -> None:
    with pytest.raises(InputError, match=r"it changes model\.layers\.0.* which this model \(gpt2\) has not"):
        open_local(gpt2, adapter=adapter)


def test_an_adapter_of_another_width(adapter: Path, tmp_path: Path) -> None:
    wider = make_qwen2(tmp_path / "wider", hidden_size=32)
    with pytest.raises(InputError, match=r"for another base: .* is 24 wide .*, this model's 32"):
        open_local(wider, adapter=adapter)


def test_an_adapter_that_names_its_base(qwen2: Path, adapter: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(adapter, tmp_path / "own"))
    (own / ABOUT).write_text(json.dumps({"base_sha256": hash_model(qwen2, hash_file)}))
    open_local(qwen2, adapter=own)
    (own / ABOUT).write_text(json.dumps({"base_sha256": "0" * 64}))
    with pytest.raises(InputError, match="trained on a model of content 000000000000"):
        open_local(qwen2, adapter=own)


def test_folders_in_the_wrong_place(qwen2: Path, adapter: Path) -> None:
    with pytest.raises(InputError, match=r"is an adapter, no model. Give its base model"):
        open_local(adapter)
    with pytest.raises(InputError, match=r"no adapter: it has no adapter_config.json"):
        open_local(qwen2, adapter=qwen2)


def test_spoiled_adapters(qwen2: Path, adapter: Path, tmp_path: Path) -> None:
    spoiled = Path(shutil.copytree(adapter, tmp_path / "spoiled"))
    weights = spoiled / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    with pytest.raises(InputError, match="damaged"):
        open_local(qwen2, adapter=spoiled)
    weights.unlink()
    with pytest.raises(InputError, match="not saved whole"):
        open_local(qwen2, adapter=spoiled)
    (spoiled / "adapter_model.bin").write_bytes(b"never read")
    with pytest.raises(InputError, match="pickled"):
        open_local(qwen2, adapter=spoiled)
