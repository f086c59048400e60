"""What a model folder and an adapter must be before anything of them is loaded; every error says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kgqa_core.errors import InputError, nearest, shorten

PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state")  # what trainers leave beside them


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json of a folder that holds a causal language model in safetensors.

    Raises:
        InputError: no folder, no or a broken config.json, no causal language model, pickled or no weights.
    """
    if not folder.is_dir():
        near = nearest(folder.name, [entry.name for entry in folder.parent.iterdir()]) if folder.parent.is_dir() else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"{folder} is not a folder{hint}. A local model is a transformers folder: config.json, "
                         "a tokenizer and *.safetensors")  # fmt: skip
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        base = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
        raise InputError(f"{folder} is an adapter, no model. Give its base model ({shorten(base)} when it was trained) "
                         "as the folder and this one as the adapter")  # fmt: skip
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} is no model folder: it has no config.json{_other_formats(folder)}")
    config = read_json(folder / "config.json")
    _check_causal(folder, config)
    _check_weights(folder)
    return config


def check_adapter(folder: Path) -> dict[str, Any]:
    """Return adapter_config.json of a folder that holds a peft adapter in safetensors.

    Raises:
        InputError: it is none, or pickled.
    """
    file = folder / "adapter_config.json"
    if not file.is_file():
        raise InputError(f"{folder} is no adapter: it has no adapter_config.json. An adapter is a folder in peft's own "
                         "format: adapter_config.json and adapter_model.safetensors")  # fmt: skip
    settings = read_json(file)
    if not (folder / "adapter_model.safetensors").is_file():
        if (folder / "adapter_model.bin").is_file():
            raise InputError(
                f"{folder} has adapter_model.bin, which is pickled: reading it would run whatever program is in it. "
                "If you trust who made it, convert it once: torch.load(..., weights_only=True), then "
                "safetensors.torch.save_file(..., 'adapter_model.safetensors')"
            )
        raise InputError(f"{folder} has no adapter_model.safetensors: the adapter was not saved whole. Save it again")
    return settings


def read_json(file: Path) -> dict[str, Any]:
    """Return a JSON object. Raises InputError where there is none."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is not readable JSON: {shorten(str(error))}. Copy the model again") from error
    if not isinstance(value, dict):
        raise InputError(f"{file} holds {shorten(value)}, not a JSON object. Copy the model again")
    return value


def _check_causal(folder: Path, config: dict[str, Any]) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    kind = config.get("model_type")
    if kind not in KNOWN:
        near = nearest(str(kind), KNOWN)
        hint = f"; the nearest it knows is {near[0]!r}" if near else ""
        raise InputError(f"{folder / 'config.json'} has model_type {shorten(kind)}, which is no causal language model "
                         f"of this transformers{hint}. Code inside model folders is never run")  # fmt: skip
    architectures = config.get("architectures") or []
    causal = {name for names in KNOWN.values() for name in ([names] if isinstance(names, str) else names)}
    if architectures and not causal & set(architectures):
        raise InputError(
            f"{folder} holds {shorten(architectures[0])}, which cannot generate: {kind} is saved here without a "
            "language-model head. Use a causal language model, or this folder as a text encoder"
        )
    if config.get("is_encoder_decoder"):
        raise InputError(f"{folder} holds an encoder-decoder model ({kind}). Use a causal language model")


def _check_weights(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(
        file.name for file in folder.iterdir() if file.suffix in PICKLED and not file.name.startswith(_NO_WEIGHTS)
    )
    if pickled:
        raise InputError(
            f"{folder} has its weights in {pickled[0]}, which is pickled: reading it would run whatever program is in "
            "it. Take the model's safetensors; or, if you trust who made it, convert it once on a machine you can "
            "spare: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER), and copy the tokenizer's "
            "files"
        )
    raise InputError(f"{folder} has no *.safetensors{_other_formats(folder)}. Copy the model whole")


def _other_formats(folder: Path) -> str:
    if any(folder.glob("*.gguf")):
        return " but GGUF files: serve them with llama.cpp or Ollama and name that endpoint"
    if any(folder.glob("consolidated*")):
        return " but weights in their maker's own format: convert them with transformers first"
    return ""
