"""Folders and adapters that cannot be used are refused, and why; what a model reads: templates, turns, tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.artifacts import hash_file
from kgqa_core.errors import InputError, is_out_of_memory
from kgqa_core.lm.folders import ABOUT, decode, encode_answers, encode_prompts, hash_model, load_tokenizer, render
from kgqa_core.lm.local import open_adapters, open_local
from kgqa_core.lm.types import Prompt
from tests.lm.tiny_models import make_adapter, make_any, make_llama, make_qwen2

ASKED = Prompt("who directed Heat ?", system="the answer is a name")
JOINED = "the answer is a name\n\nwho directed Heat ?"
FORGETS = "{% for turn in messages %}{% if turn['role'] == 'user' %}<{{ turn['content'] }}>{% endif %}{% endfor %}"


def test_a_template_makes_turns_and_a_system_turn_that_it_does_not_know_goes_into_the_users(
    llama: Path, llama_chat: Path, qwen2: Path
) -> None:
    plain, chat, made = map(load_tokenizer, (llama, llama_chat, qwen2))
    assert render(plain, ASKED) == JOINED and render(plain, Prompt("x")) == "x"
    assert render(made, ASKED) == (
        "<|im_start|>system\nthe answer is a name<|im_end|>\n"
        "<|im_start|>user\nwho directed Heat ?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render(chat, ASKED) == f"<s>[INST] {JOINED} [/INST]"  # it raises for other turns
    assert encode_prompts(chat, [ASKED])[0].count(chat.bos_token_id) == 1  # the template wrote it
    made.chat_template = FORGETS
    assert render(made, ASKED) == f"<{JOINED}>"
    for template in (
        *("{{ raise_exception('no') }}", "{{ range(10 ** 9) }}"),
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ):
        made.chat_template = template
        with pytest.raises(InputError, match=r"chat template of .* fails on a single user turn"):
            render(made, ASKED)


def test_a_template_that_tells_the_day_writes_the_same_prompt_on_every_day(qwen2: Path) -> None:
    """Llama 3's do. Calls are kept, and adapters asked, on other days than they were made."""
    made = load_tokenizer(qwen2)
    made.chat_template = (
        "{% macro day() %}{{ ', ' + strftime_now('%Y-%m-%d') }}{% endmacro %}{% if strftime_now is defined %}"
        "{% set today = strftime_now('%d %b %Y') %}{% endif %}{{ today + day() }}: {{ messages[-1]['content'] }}"
    )
    assert render(made, Prompt("x")) == "26 Jul 2024, 26 Jul 2024: x"


def test_a_begin_token_is_put_before_a_plain_prompt_and_an_end_token_taken_off(
    llama: Path, gpt2: Path, tmp_path: Path
) -> None:
    from tokenizers import processors

    assert encode_prompts(load_tokenizer(llama), [Prompt("x")])[0][0] == 1
    assert encode_prompts(load_tokenizer(gpt2), [Prompt("")]) == [[0]]  # a model must read something
    tokenizer = load_tokenizer(make_llama(tmp_path / "model"))
    plain = encode_prompts(tokenizer, [Prompt("x")])
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    assert encode_prompts(tokenizer, [Prompt("x")]) == plain


TOKENIZERS: dict[Path, Any] = {}


@settings(max_examples=30)
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\u2581"), max_size=20))
def test_an_answer_survives_its_tokens(any_model: Path, text: str) -> None:
    tokenizer = TOKENIZERS.setdefault(any_model, load_tokenizer(any_model))
    assert decode(tokenizer, encode_answers(tokenizer, [text])[0]) == text


@pytest.fixture(scope="module")
def adapter(qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(qwen2, tmp_path_factory.mktemp("adapters") / "lora")


def test_names_tell_base_and_adapter(qwen2: Path, adapter: Path, tmp_path: Path) -> None:
    name = open_local(qwen2, adapter=adapter).name
    assert name.startswith(open_local(qwen2).name + "+")
    copied = shutil.copytree(qwen2, tmp_path / "elsewhere")
    assert open_local(copied, adapter=shutil.copytree(adapter, tmp_path / "copied")).name == name
    (copied / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert open_local(copied, adapter=adapter).name != name
    other = make_adapter(qwen2, tmp_path / "other", seed=1)
    assert open_local(qwen2, adapter=other).name != name
    named = shutil.copytree(adapter, tmp_path / "named"), shutil.copytree(other, tmp_path / "other-named")
    for folder in named:  # some adapters lie beside a model's config.json
        shutil.copy(qwen2 / "config.json", folder)
    assert len({open_local(qwen2, adapter=folder).name for folder in named}) == 2


def test_an_adapter_of_another_base(gpt2: Path, qwen2: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be put on this model \(gpt2\): .*Target modules .*another base"):
        open_local(gpt2, adapter=adapter)
    with pytest.raises(InputError, match=r"cannot be put on this model \(qwen2\): .*size mismatch"):
        open_local(make_qwen2(tmp_path / "wider", hidden_size=32), adapter=adapter)
    deeper = make_qwen2(tmp_path / "deeper", num_hidden_layers=3)
    of_three = make_adapter(deeper, tmp_path / "of three", target_modules=["q_proj"])
    with pytest.raises(InputError, match=r"it changes .*model\.layers\.2\.self_attn\.q_proj, which this model \(qwen2"):
        open_local(qwen2, adapter=of_three)
    own = Path(shutil.copytree(adapter, tmp_path / "own"))  # which names its base
    (own / ABOUT).write_text(json.dumps({"base_sha256": hash_model(qwen2, hash_file)}))
    open_local(qwen2, adapter=own)
    (own / ABOUT).write_text(json.dumps({"base_sha256": "0" * 64}))
    with pytest.raises(InputError, match="trained on a model of content 000000000000"):
        open_local(qwen2, adapter=own)


def test_spoiled_adapters_and_folders_in_the_wrong_place(qwen2: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is an adapter, no model. Give its base model"):
        open_local(adapter)
    with pytest.raises(InputError, match=r"no adapter: it has no adapter_config.json"):
        open_local(qwen2, adapter=qwen2)
    shutil.copytree(adapter, tmp_path / "artifact" / "adapter")
    with pytest.raises(InputError, match=r"Did you mean .*artifact/adapter\?"):
        open_local(qwen2, adapter=tmp_path / "artifact")
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_modules": r"(([a-z_.0-9]+)+)+!"}, "takes more than 1 seconds"),
        ({"rank_pattern": {r"(([a-z_.0-9]+)+)+!": 4}}, "takes more than 1 seconds"),
        ({"target_modules": "(["}, "cannot be put on this model .*unterminated character set"),
        ({"layer_replication": [[0, 9]]}, "cannot be put on this model .*out of range"),
        ({"lora_alpha": float("nan")}, "are not numbers"),
    ],
)
def test_a_hostile_adapter_ends_in_a_message(
    qwen2: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, message: str
) -> None:
    monkeypatch.setattr("kgqa_core.lm.patterns.SECONDS", 1)
    own = Path(shutil.copytree(adapter, tmp_path / "own"))
    change("adapter_config.json", **settings)(own)
    with pytest.raises(InputError, match=message):
        open_local(qwen2, adapter=own)


def test_a_pattern_of_targets_is_read(qwen2: Path, tmp_path: Path) -> None:
    made = make_adapter(qwen2, tmp_path / "made", target_modules=r".*?(?:layers|blocks).*?\.(q|v)_proj")
    open_local(qwen2, adapter=made)


def test_an_adapter_that_lacks_weights_or_has_none_that_are_numbers(qwen2: Path, adapter: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    own = Path(shutil.copytree(adapter, tmp_path / "own"))
    file = own / "adapter_model.safetensors"
    weights = load_file(file)
    save_file(dict(sorted(weights.items())[1:]), file)
    with pytest.raises(InputError, match="lacks 1 of its weights"):
        open_local(qwen2, adapter=own)
    save_file(weights, file)
    spoil_weights(file)
    for adapters in ([own], [None, own]):
        with pytest.raises(InputError, match=r"own.* are not numbers"):
            open_adapters(qwen2, adapters)


def test_an_adapter_beside_a_model_is_not_put_on_it_unasked(folder: Path, qwen2: Path, adapter: Path) -> None:
    plain = open_local(qwen2).score([ASKED], [["Heat"]])
    for file in adapter.iterdir():
        shutil.copy(file, folder)
    assert open_local(folder).score([ASKED], [["Heat"]]) == plain
    assert open_local(folder, adapter=folder).score([ASKED], [["Heat"]]) == open_local(qwen2, adapter=adapter).score(
        [ASKED], [["Heat"]]
    )


def test_end_tokens_beyond_the_vocabulary_are_none(folder: Path, qwen2: Path) -> None:
    change("generation_config.json", eos_token_id=[2, 10**9])(folder)
    assert open_local(folder).score([ASKED], [["Heat"]]) == open_local(qwen2).score([ASKED], [["Heat"]])


@pytest.fixture
def folder(qwen2: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(qwen2, tmp_path / "model"))


def change(name: str, **values: object) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **values}))

    return apply


def pickle_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def leave_weights_out(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def name_weights(folder: Path, name: str) -> None:
    """An index has the last word about which files are read; torch reads those that are not called safetensors."""
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "evil.bin")
    shutil.copy(folder / "model.safetensors", folder.parent / "m.safetensors")
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def spoil_weights(file: Path) -> None:
    """As a training that diverged does."""
    from safetensors.torch import load_file, save_file

    save_file({name: one * float("nan") for name, one in load_file(file).items()}, file, metadata={"format": "pt"})


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config.json": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "broken config.json": (lambda folder: (folder / "config.json").write_text('{"model_type": '), "not readable JSON"),
    "config.json is a list": (lambda folder: (folder / "config.json").write_text("[]"), "not a JSON object"),
    "unknown architecture": (change("config.json", model_type="qwen22"), "did you mean 'qwen2'"),
    "no head": (change("config.json", architectures=["Qwen2Model"]), "cannot generate"),
    "encoder-decoder": (change("config.json", is_encoder_decoder=True), "encoder-decoder"),
    "pickled": (pickle_weights, "pickled.*convert it once"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), r"no \*.safetensors"),
    "some weights": (leave_weights_out, "lacks 1 of its weights"),
    "half a file": (cut_weights, "not a model folder that transformers can read"),
    "other sizes": (change("config.json", hidden_size=48), "not a model folder that transformers can"),
    "no tokenizer": (lambda folder: [(folder / name).unlink() for name in ("tokenizer.json", "tokenizer_config.json")],
                     "no tokenizer"),
    "no end token": (change("tokenizer_config.json", eos_token=None), "names no end token"),
    "no heads": (change("config.json", num_attention_heads=0), "not a model folder that transformers can read"),
    "a kind that is a list": (change("config.json", model_type=["qwen2"]), "a spoiled config.json"),
    "text for a number": (change("config.json", max_position_embeddings="x"), "no tokenizer that"),
    "weights in a pickle": (lambda folder: name_weights(folder, "evil.bin"), "names 'evil.bin'"),
    "weights elsewhere": (lambda folder: name_weights(folder, "../m.safetensors"), "names '../m.safetens"),
    "not a number": (lambda folder: spoil_weights(folder / "model.safetensors"), "are not numbers"),
    "GGUF": (lambda folder: [folder.joinpath("config.json").unlink(), folder.joinpath("llama.gguf").touch()],
             "GGUF.*itself"),
}  # fmt: skip


@pytest.mark.parametrize("case", SPOILED)
def test_a_spoiled_folder_is_refused(folder: Path, case: str) -> None:
    spoil, message = SPOILED[case]
    spoil(folder)
    with pytest.raises(InputError, match=message):
        open_local(folder)


def test_memory_that_is_full_is_not_said_to_be_a_spoiled_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        torch.empty(2**50)

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", full)
    with pytest.raises(RuntimeError, match="can't allocate memory") as raised:
        open_local(folder)
    assert is_out_of_memory(raised.value)


def test_other_models_that_cannot_be_asked_are_refused(
    folder: Path, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="did you mean 'model'"):
        open_local(folder.with_name("modell"))
    with monkeypatch.context() as patch, pytest.raises(InputError, match="pip install bitsandbytes"):
        patch.setattr("importlib.util.find_spec", lambda name: None)
        open_local(folder, quantise="int4")
    with pytest.raises(InputError, match="rwkv, which keeps no keys and values"):
        open_local(make_any(tmp_path / "rwkv", "rwkv"))
    torch.save({}, folder / "training_args.bin")  # what trainers leave behind is no weights
    open_local(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(llama / name, folder / name)
    with pytest.raises(InputError, match="not from the same model"):
        open_local(folder)
