"""Putting a peft adapter on the model that it was trained for, and refusing it on any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kgqa_core.errors import InputError, shorten
from kgqa_core.lm.checks import read_json
from kgqa_core.lm.identity import HashFile, hash_model

ABOUT = "kgqa.json"  # beside an adapter that was trained here: which base it is for
_PREFIX = "base_model.model."


def add_adapter(model: Any, adapter: Path, *, num_tokens: int, merge: bool) -> Any:
    """Return the model with an adapter on it.

    Args:
        model: a transformers model.
        adapter: a folder that ``check_adapter`` passed.
        num_tokens: of the tokenizer; an adapter that was trained with more tokens than the base has rows for them.
        merge: add it into the weights, which is faster but rounds: only where weights are float32.

    Raises:
        InputError: the adapter is for another base, or peft cannot read it.
    """
    import peft

    if num_tokens > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(num_tokens)
    _check_base(model, adapter)
    try:
        adapted = peft.PeftModel.from_pretrained(model, str(adapter), is_trainable=False)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise InputError(f"peft cannot put {adapter} on this model: {shorten(str(error))}. Give the base model that it "
                         "was trained for") from error  # fmt: skip
    return adapted.merge_and_unload() if merge else adapted


def check_same_base(adapter: Path, folder: Path, hash_file: HashFile) -> None:
    """Raise InputError where an adapter says that it was trained for another content than this folder's.

    Adapters of others do not say; they are only held against the shapes of the model.
    """
    if not (adapter / ABOUT).is_file():
        return
    told = read_json(adapter / ABOUT).get("base_sha256")
    found = hash_model(folder, hash_file)
    if isinstance(told, str) and told != found:
        raise InputError(
            f"the adapter {adapter} is for another base: it was trained on a model of content {told[:12]}…, {folder} "
            f"is {found[:12]}… (weights, configuration, tokenizer and chat template count). Give the base model that "
            "it was trained for, or train it again"
        )


def _check_base(model: Any, adapter: Path) -> None:
    """Raise InputError unless the adapter's matrices fit the model's."""
    from safetensors import SafetensorError, safe_open

    modules = dict(model.named_modules())
    try:
        with safe_open(str(adapter / "adapter_model.safetensors"), framework="pt") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{adapter / 'adapter_model.safetensors'} is damaged: {error}. Save the adapter again"
        ) from None
    for key, shape in sorted(shapes.items()):
        name, _, rest = key.removeprefix(_PREFIX).partition(".lora_")
        if not rest or rest.startswith(("embedding", "magnitude")):
            continue
        side, width = ("in", shape[-1]) if rest.startswith("A") else ("out", shape[0])
        if name not in modules:
            raise InputError(
                f"the adapter {adapter} is for another base: it changes {name}, which this model "
                f"({model.config.model_type}) has not. Give the base model that it was trained for"
            )
        expected = _width(modules[name], side)
        if expected is not None and width != expected:
            raise InputError(
                f"the adapter {adapter} is for another base: its {name} is {width} wide ({side}), this model's "
                f"{expected}. Give the base model that it was trained for"
            )


def _width(module: Any, side: str) -> int | None:
    width = getattr(module, f"{side}_features", None)
    if width is None:  # GPT-2's Conv1D keeps its weight as [in, out]
        width = getattr(module, "nx" if side == "in" else "nf", None)
    return None if width is None else int(width)
