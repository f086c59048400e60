"""Folders that cannot be used are refused, with what to do, before anything is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kgqa_core.errors import InputError
from kgqa_core.lm.local import check_decoding, open_local
from kgqa_core.lm.types import Decoding
from tests.lm.tiny_models import make_any


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "bfloat32"}, "dtype is 'bfloat32'; legal: .*did you mean 'float32'"),
        ({"quantise": "int16"}, "quantise is 'int16'; legal: none, int8, int4"),
        ({"quantise": "int4"}, "bitsandbytes is not installed|needs a GPU"),
    ],
)
def test_an_option_that_does_not_exist(qwen2: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_local(qwen2, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_dtypes(qwen2: Path, dtype: str) -> None:
    from kgqa_core.lm.types import Prompt

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
