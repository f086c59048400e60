"""GGUF files become ordinary transformers folders: one that is written here, and the packaged model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from kgqa_core.config_base import SHIPPED
from kgqa_core.errors import InputError
from kgqa_core.instructions.reason import ReasonCase, ReasonInstruction
from kgqa_core.instructions.render import ScoredPath, read_prompts
from kgqa_core.lm import gguf as module
from kgqa_core.lm.gguf import FILE, INSTALL, SHA256, find_packaged, write_folder
from kgqa_core.lm.types import Decoding, Prompt
from kgqa_core.run.ensure import ensure
from kgqa_core.run.open import open_players
from tests.conftest import TINY_RUN, open_run

WIDTH, HEADS, LAYERS, MIDDLE = 32, 2, 2, 64
TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]


def make_gguf(file: Path, *, architecture: str = "llama", seed: int = 0) -> dict[str, np.ndarray]:
    """Write a llama of random weights with a tokenizer of letters; return its tensors."""
    tokens = ["<unk>", "<s>", "</s>", "<|endoftext|>", "Ġ", *LETTERS, "ab"]
    draw = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MIDDLE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, 3, *[1] * (len(tokens) - 4)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    shapes = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}": (WIDTH, WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        shapes |= {f"blk.{layer}.{name}": (MIDDLE, WIDTH) for name in ("ffn_gate", "ffn_up")}
        shapes |= {f"blk.{layer}.{name}": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
        shapes[f"blk.{layer}.ffn_down"] = (WIDTH, MIDDLE)
    tensors = {f"{name}.weight": draw.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_a_file_becomes_a_folder_with_its_weights_tokenizer_and_template(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, reader, read = make_gguf(tmp_path / "tiny.gguf"), gguf.GGUFReader, []
    monkeypatch.setattr(gguf, "GGUFReader", lambda file: (read.append(file), reader(file))[1])
    for name in ("one", "two"):
        write_folder(tmp_path / "tiny.gguf", tmp_path / name, dtype="float32")
    assert "%|" not in capfd.readouterr().err  # no bar
    assert len(read) == 2  # once for each folder

    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "one")
    embeddings = model.get_input_embeddings().weight
    assert torch.equal(embeddings, torch.from_numpy(tensors["token_embd.weight"]))
    assert torch.equal(model.model.layers[1].mlp.up_proj.weight, torch.from_numpy(tensors["blk.1.ffn_up.weight"]))
    assert tokenizer.decode(tokenizer("cab").input_ids, skip_special_tokens=True) == "cab"
    assert tokenizer.apply_chat_template([{"content": "ab", "role": "user"}], tokenize=False) == "<s>ab</s>"
    assert {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()
    }


@pytest.mark.parametrize("content", ["no gguf", "another architecture"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "odd.gguf"
    if content == "no gguf":
        file.write_bytes(b"GGUF" + bytes(100))
    else:
        make_gguf(file, architecture="stone")
    with pytest.raises(InputError, match=re.escape(str(file))):
        write_folder(file, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_memory_that_is_full_is_not_said_to_be_a_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        torch.empty(2**50)

    make_gguf(tmp_path / "fine.gguf")
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", full)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        write_folder(tmp_path / "fine.gguf", tmp_path / "folder")


def test_code_beside_a_file_is_not_run_whoever_would_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_gguf(tmp_path / "model.gguf")
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Theirs: pass\n", encoding="utf-8")
    named = {"auto_map": {"AutoTokenizer": ["theirs.Theirs", None]}, "tokenizer_class": "Theirs"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")
    monkeypatch.setattr("builtins.input", lambda _: "y")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    with pytest.raises(InputError, match="cannot be read as a GGUF model"):
        write_folder(tmp_path / "model.gguf", tmp_path / "made")
    assert not (tmp_path / "ran").exists()


def test_a_packaged_model_that_is_missing_or_another_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(module.sysconfig, "get_path", lambda name: str(tmp_path))
    run = open_run(tmp_path / "run.yaml", f"{TINY_RUN}lm: {{kind: packaged}}\nsystems: {{run: [direct]}}\n")
    ensure(run, ["graph"])  # what asks no model works without it
    with pytest.raises(InputError, match=re.escape(INSTALL)):
        ensure(run, ["lm"])
    make_gguf(tmp_path / FILE)
    with pytest.raises(InputError, match=SHA256):
        write_folder(tmp_path / FILE, tmp_path / "folder")


@pytest.mark.parametrize("lm", ["{kind: local, path: tiny.gguf}", "{kind: packaged}"])
def test_a_run_makes_the_folder_in_a_stage_that_its_systems_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lm: str
) -> None:
    make_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(module, "find_packaged", lambda: tmp_path / "tiny.gguf")
    run = open_run(tmp_path / "run.yaml", f"{TINY_RUN}lm: {lm}\nsystems: {{run: [direct]}}\n")
    assert "lm" in run.specs["system-direct-seed0"].needs
    ensure(run, ["lm"])

    model = open_players(run, 0, ["plan"])["plan"].model
    ((text,),) = model.generate([Prompt("ab")], Decoding(max_new_tokens=3))
    assert model.context == 64
    assert text.num_tokens == 3 or text.finished
    assert run.find("lm")
    make_gguf(tmp_path / "tiny.gguf", seed=1)
    assert not run.find("lm")  # another file, another model


def test_adapters_of_a_model_that_a_stage_makes_are_in_the_recipe_of_what_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(module, "find_packaged", lambda: tmp_path / "tiny.gguf")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "adapter_config.json").write_text("{}", encoding="utf-8")
    lm = "lm: {kind: packaged, adapter: mine}\nsystems: {run: [rog, direct]}\n"
    specs = open_run(tmp_path / "run.yaml", TINY_RUN + lm).specs
    assert "adapter/adapter_config.json" in specs["system-rog-seed0"].files
    assert not specs["system-direct-seed0"].files  # what the model knows without it


def test_the_shipped_adapter_is_small_and_says_what_it_is_for_and_what_taught_it() -> None:
    recipe = json.loads((SHIPPED / "recipe.json").read_text(encoding="utf-8"))
    weights = load_file(SHIPPED / "adapter_model.safetensors")
    assert recipe["base"] == {"file": FILE, "sha256": SHA256}
    assert recipe["licences"] and recipe["examples"].keys() >= {"plan", "reason", "choose", "score_relations"}
    assert not [name for name in recipe["taught_by"] if "wc2014" in name]  # the graph that it is judged on
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) <= 12 * 10**6


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that is made of the packaged model."""
    folder = tmp_path_factory.mktemp("packaged") / "model"
    write_folder(find_packaged(), folder)
    return folder


def reply(model: Any, folder: Path, text: str) -> str:
    """Return what a model answers, by transformers alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    turns: Any = [{"role": "user", "content": text}]
    asked = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    tokens = model.generate(**asked, max_new_tokens=12, do_sample=False)[0, asked["input_ids"].shape[1] :]
    return str(tokenizer.decode(tokens, skip_special_tokens=True))


@pytest.mark.slow
def test_the_packaged_model_answers(packaged: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(packaged)
    assert model.dtype == torch.bfloat16
    assert "Paris" in reply(model, packaged, "What is the capital of France?")


@pytest.mark.slow
def test_plain_peft_loads_the_shipped_adapter_which_reads_paths(packaged: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(packaged, dtype=torch.float32)
    known = (("born_in", "London"), ("works_for", "Post Office"))
    paths = tuple(ScoredPath("", 1.0, (step,), end, "Ada") for step, end in known)
    asked = ReasonInstruction(read_prompts()).render(ReasonCase("where was Ada born", paths=paths))
    assert reply(model, packaged, asked.text) != "London"
    assert reply(peft.PeftModel.from_pretrained(model, str(SHIPPED)), packaged, asked.text) == "London"
