"""Local models: what is asked comes back; what cannot be used is refused, and why; what is told of a model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kgqa_core.artifacts import hash_file
from kgqa_core.errors import InputError
from kgqa_core.lm import local
from kgqa_core.lm.folders import ABOUT, Quantise, decode, encode_prompts, hash_model
from kgqa_core.lm.generate import read_prompts
from kgqa_core.lm.local import check_decoding, describe, open_local
from kgqa_core.lm.types import Decoding, Prompt
from tests.lm.tiny_models import make_any, make_qwen2

PROMPTS = [
    Prompt("who directed Heat ?"),
    Prompt("what does Bath Spa say about 42 trains , and the plan is what genre of film ?"),
    Prompt("x"),
    Prompt("Answer: the", system="the plan is drama"),
    Prompt("naïve"),
]
SHORT = Decoding(max_new_tokens=7)


def test_greedy_equals_transformers(any_model: Path) -> None:
    model = open_local(any_model)
    for prompt, texts in zip(PROMPTS, model.generate(PROMPTS, SHORT), strict=True):
        tokens = torch.tensor(encode_prompts(model.tokenizer, [prompt]))
        made = model.model.generate(tokens, max_new_tokens=7, do_sample=False, eos_token_id=model.ends, pad_token_id=0)
        assert texts[0].text == decode(model.tokenizer, [t for t in made[0, tokens.shape[1] :] if t not in model.ends])


ASKED, OPTIONS = [Prompt("the plan is"), Prompt("x")], [["drama", "Heat"], ["Heat"]]


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


@pytest.mark.parametrize("kind", ["qwen2", "mixtral", "qwen3_moe"])  # the latter two with fused experts
def test_an_adapted_model_scores_as_in_plain_peft(kind: str, tmp_path: Path) -> None:
    import peft
    import transformers

    base = make_any(tmp_path / kind, kind)
    adapter = make_adapter(base, tmp_path / "lora", target_modules="all-linear")
    model, plain = open_local(base, adapter=adapter), open_local(base)
    assert model.score(ASKED, OPTIONS)[0] != pytest.approx(plain.score(ASKED, OPTIONS)[0], abs=0.1)
    plain.model = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(base), adapter
    ).eval()
    for scores, known in zip(model.score(ASKED, OPTIONS), plain.score(ASKED, OPTIONS), strict=True):
        assert scores == pytest.approx(known, abs=1e-3)


def test_an_adapter_that_is_not_merged_is_asked_in_the_same_way(qwen2: Path, adapter: Path) -> None:
    model = open_local(qwen2, adapter=adapter, dtype="bfloat16")  # where adding it into the weights would round
    assert hasattr(model.model, "peft_config")
    merged = open_local(qwen2, adapter=adapter)
    assert not hasattr(merged.model, "peft_config")
    assert model.score(ASKED, OPTIONS)[1] == pytest.approx(merged.score(ASKED, OPTIONS)[1], rel=0.1)
    assert model.generate(ASKED, Decoding(max_new_tokens=3))[1][0].num_tokens > 0


def test_gpt2_has_adapters_too(gpt2: Path, tmp_path: Path) -> None:
    adapter = make_adapter(gpt2, tmp_path / "lora", target_modules=["c_attn"], fan_in_fan_out=True)
    assert open_local(gpt2, adapter=adapter).score(ASKED, OPTIONS) != open_local(gpt2).score(ASKED, OPTIONS)


def test_names_tell_base_and_adapter(qwen2: Path, adapter: Path, tmp_path: Path) -> None:
    name = open_local(qwen2, adapter=adapter).name
    assert name.startswith(open_local(qwen2).name + "+")
    copied = shutil.copytree(qwen2, tmp_path / "elsewhere")
    assert open_local(copied, adapter=shutil.copytree(adapter, tmp_path / "copied")).name == name
    (copied / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert open_local(copied, adapter=adapter).name != name


def test_an_adapter_of_another_base(gpt2: Path, qwen2: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be put on this model \(gpt2\): .*Target modules .*another base"):
        open_local(gpt2, adapter=adapter)
    with pytest.raises(InputError, match=r"cannot be put on this model \(qwen2\): .*size mismatch"):
        open_local(make_qwen2(tmp_path / "wider", hidden_size=32), adapter=adapter)
    deeper = make_qwen2(tmp_path / "deeper", num_hidden_layers=3)
    of_three = make_adapter(deeper, tmp_path / "of three", target_modules=["q_proj"])
    with pytest.raises(
        InputError, match=r"it changes .*model\.layers\.2\.self_attn\.q_proj, which this model \(qwen2\) has"
    ):
        open_local(qwen2, adapter=of_three)


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


@pytest.fixture
def folder(qwen2: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(qwen2, tmp_path / "model"))


def change_config(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def pickle_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"never read")


def leave_weights_out(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def forget_the_end(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token": None}))


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config.json": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "broken config.json": (lambda folder: (folder / "config.json").write_text('{"model_type": '), "not readable JSON"),
    "config.json is a list": (lambda folder: (folder / "config.json").write_text("[]"), "not a JSON object"),
    "unknown architecture": (lambda folder: change_config(folder, model_type="qwen22"), "nearest it knows is 'qwen2'"),
    "no head": (lambda folder: change_config(folder, architectures=["Qwen2Model"]), "cannot generate"),
    "encoder-decoder": (lambda folder: change_config(folder, is_encoder_decoder=True), "encoder-decoder"),
    "pickled": (pickle_weights, "pickled.*convert it once"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), r"no \*.safetensors"),
    "some weights": (leave_weights_out, "lacks 1 of its weights"),
    "half a file": (cut_weights, "not a model folder that transformers can read"),
    "other sizes": (lambda folder: change_config(folder, hidden_size=48), "not a model folder that transformers can"),
    "no tokenizer": (lambda folder: [(folder / name).unlink() for name in ("tokenizer.json", "tokenizer_config.json")],
                     "no tokenizer"),
    "no end token": (forget_the_end, "names no end token"),
}  # fmt: skip


@pytest.mark.parametrize("case", SPOILED)
def test_a_spoiled_folder_is_refused(folder: Path, case: str) -> None:
    spoil, message = SPOILED[case]
    spoil(folder)
    with pytest.raises(InputError, match=message):
        open_local(folder)


def test_a_folder_that_is_not_there_names_its_neighbour(folder: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'model'"):
        open_local(folder.with_name("modell"))


def test_other_formats_are_named(tmp_path: Path) -> None:
    (tmp_path / "llama-7b.gguf").write_bytes(b"")
    with pytest.raises(InputError, match=r"GGUF.*llama\.cpp"):
        open_local(tmp_path)


def test_a_tokenizer_of_another_model(folder: Path, llama: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(llama / name, folder / name)
    with pytest.raises(InputError, match="not from the same model"):
        open_local(folder)


def test_a_model_without_attention_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rwkv, which keeps no keys and values"):
        open_local(make_any(tmp_path / "rwkv", "rwkv"))


def test_what_trainers_leave_behind_is_no_weights(folder: Path) -> None:
    torch.save({}, folder / "training_args.bin")
    open_local(folder)


def test_quantisation_needs_a_library_and_a_gpu(qwen2: Path) -> None:
    with pytest.raises(InputError, match=r"bitsandbytes is not installed|needs a GPU"):
        open_local(qwen2, quantise="int4")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_dtypes(qwen2: Path, dtype: str) -> None:
    model = open_local(qwen2, dtype=dtype)  # type: ignore[arg-type]
    assert str(model.model.dtype) == f"torch.{dtype}"
    assert model.name != open_local(qwen2).name
    beam = Decoding(max_new_tokens=4, method="beam", num_beams=2, num_returns=2)
    assert len(model.generate([Prompt("x"), Prompt("the plan is")], beam)[1]) == 2


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(max_new_tokens=0),
        Decoding(num_returns=0),
        Decoding(num_returns=2),
        Decoding(num_beams=2),
        Decoding(method="beam", num_beams=2, num_returns=3),
        Decoding(method="sample", temperature=0.0),
        Decoding(method="sample", top_p=0.0),
        Decoding(stop=("",)),
        Decoding(method="best"),  # type: ignore[arg-type]
    ],
)
def test_decodings_without_sense(decoding: Decoding) -> None:
    with pytest.raises(InputError):
        check_decoding(decoding)


def test_facts_are_those_of_the_loaded_model(any_model: Path) -> None:
    told = describe(any_model)
    model = open_local(any_model)
    assert told["parameters"] == sum(weight.numel() for weight in model.model.parameters())
    assert told["weight_bytes"] == 4 * told["parameters"]
    assert (told["context"], told["vocabulary"], told["name"]) == (257, len(model.tokenizer), model.name)
    assert told["memory_bytes"] == told["weight_bytes"] + local.BATCH_SIZE * 257 * told["cache_bytes_per_token"]
    assert told["read_tokens_per_second"] and told["new_tokens_per_second"]


def test_the_cache_is_as_large_as_told(any_model: Path) -> None:
    cached, _ = read_prompts(open_local(any_model).model, [[5, 6, 7]])
    numbers = sum(layer.keys[:, :, :3].numel() + layer.values[:, :, :3].numel() for layer in cached.states.layers)
    assert describe(any_model)["cache_bytes_per_token"] == 4 * numbers // 3


def test_a_model_that_does_not_fit_is_described_unloaded(qwen2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "free_memory", lambda device: 1000)
    told = describe(qwen2)
    assert told["read_tokens_per_second"] is None and told["parameters"] > 1000


@pytest.mark.parametrize(("quantise", "bytes_per_weight"), [("none", 2), ("int8", 1), ("int4", 0.5)])
def test_quantisation_shrinks_matrices_but_not_tables(qwen2: Path, quantise: Quantise, bytes_per_weight: float) -> None:
    told = describe(qwen2, dtype="bfloat16", quantise=quantise, timed=False)
    model = open_local(qwen2).model
    layers = model.model.layers
    matrices = sum(weight.numel() for weight in layers.parameters() if weight.dim() == 2)
    assert told["weight_bytes"] == 2 * (told["parameters"] - matrices) + bytes_per_weight * matrices
