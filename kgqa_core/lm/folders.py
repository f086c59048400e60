"""What a model folder and an adapter must be before anything of them is loaded, and what they are called.

Every error says what to do. A name is a hash of all content that decides a model's texts, wherever it lies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kgqa_core.errors import InputError, nearest, shorten

HashFile = Callable[[Path], str]
"""SHA-256 of a file, hexadecimal; ``FileHashes.hash`` remembers those of large files."""

ABOUT = "kgqa.json"  # beside an adapter that was trained here: which base it is for
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state")  # what trainers leave beside them
_TOKENIZER = {*VOCABULARIES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt",
              "chat_template.jinja", "chat_template.json"}  # fmt: skip


def hash_model(folder: Path, hash_file: HashFile) -> str:
    """Return the hash of weights, configuration, tokenizer and chat template."""
    weights = {file.name for file in folder.glob("*.safetensors") if not file.name.startswith("adapter_")}
    return _hash(folder, weights | {"config.json", "generation_config.json"} | _TOKENIZER, hash_file)


def hash_adapter(folder: Path, hash_file: HashFile) -> str:
    """Return the hash of an adapter, with the tokenizer that it may bring."""
    return _hash(folder, {"adapter_config.json", "adapter_model.safetensors"} | _TOKENIZER, hash_file)


def _hash(folder: Path, names: set[str], hash_file: HashFile) -> str:
    digest = hashlib.sha256()
    for name in sorted(names):
        if (folder / name).is_file():
            digest.update(f"{name}\0{hash_file(folder / name)}\n".encode())
    return digest.hexdigest()


def has_tokenizer(folder: Path) -> bool:
    """Say whether a folder brings a tokenizer."""
    return any((folder / name).is_file() for name in VOCABULARIES)


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


def check_adapter(folder: Path) -> None:
    """Raise InputError unless a folder holds a peft adapter in safetensors."""
    if not (folder / "adapter_config.json").is_file():
        raise InputError(f"{folder} is no adapter: it has no adapter_config.json. An adapter is a folder in peft's own "
                         "format: adapter_config.json and adapter_model.safetensors")  # fmt: skip
    read_json(folder / "adapter_config.json")
    if (folder / "adapter_model.safetensors").is_file():
        return
    if (folder / "adapter_model.bin").is_file():
        raise InputError(
            f"{folder} has adapter_model.bin, which is pickled: reading it would run whatever program is in it. "
            "If you trust who made it, convert it once: torch.load(..., weights_only=True), then "
            "safetensors.torch.save_file(..., 'adapter_model.safetensors')"
        )
    raise InputError(f"{folder} has no adapter_model.safetensors: the adapter was not saved whole. Save it again")


def check_same_base(adapter: Path, folder: Path, found: str) -> None:
    """Raise InputError where an adapter says that it was trained for another content than ``found``, this folder's.

    Adapters of others do not say; they are only held against the shapes of the model.
    """
    if not (adapter / ABOUT).is_file():
        return
    told = read_json(adapter / ABOUT).get("base_sha256")
    if isinstance(told, str) and told != found:
        raise InputError(
            f"the adapter {adapter} is for another base: it was trained on a model of content {told[:12]}…, {folder} "
            f"is {found[:12]}… (weights, configuration, tokenizer and chat template count). Give the base model that "
            "it was trained for, or train it again"
        )


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
    files = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLED)
    pickled = [name for name in files if not name.startswith(_NO_WEIGHTS)]
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
