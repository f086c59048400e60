"""Reading a model folder and an adapter: safetensors only, no network, no code of theirs."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kgqa_core.errors import InputError, nearest, shorten
from kgqa_core.lm.adapters import add_adapter
from kgqa_core.lm.checks import check_adapter, read_config

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantise = Literal["none", "int8", "int4"]
DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTISE = ("none", "int8", "int4")
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
_FAILURES = (OSError, ValueError, KeyError, ImportError, TypeError, RuntimeError, AttributeError)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that can be asked."""

    model: Any  # a transformers causal language model in eval mode, or peft's around it
    tokenizer: Any
    context: int  # tokens of prompt and answer together
    dtype: str


def load(
    folder: Path,
    *,
    adapter: Path | None = None,
    dtype: Dtype = "auto",
    quantise: Quantise = "none",
    device: str = "cpu",
) -> Loaded:
    """Load a causal language model.

    Args:
        folder: config.json, a tokenizer and *.safetensors.
        adapter: in peft's own format; one that brings a tokenizer is asked through that one.
        dtype: of the weights; "auto" is float32 on a CPU and elsewhere as they were saved.
        quantise: weights in 8 or 4 bits; needs bitsandbytes and a GPU.
        device: as torch names it.

    Raises:
        InputError: something of it cannot be used; the message says what and what to do.
    """
    _check_choice("dtype", dtype, DTYPES)
    _check_choice("quantise", quantise, QUANTISE)
    read_config(folder)
    if adapter is not None:
        check_adapter(adapter)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers
    from safetensors import SafetensorError

    tokenizer = load_tokenizer(adapter if adapter is not None and has_tokenizer(adapter) else folder)
    options = {**_quantisation(quantise, device), "dtype": _dtype(dtype, device)}
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        made: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder),
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
        model, report = made
    except (*_FAILURES, SafetensorError) as error:
        raise InputError(
            f"{folder} is not a model folder that transformers can read: {shorten(str(error))}. Copy the model whole; "
            "it must be of an architecture that transformers has itself"
        ) from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise InputError(
            f"{folder} lacks {len(missing)} of its weights ({shorten(missing[0])} first). Copy the model whole: "
            "missing weights would be random numbers"
        )
    if quantise == "none":
        model = model.to(device)
    _check_vocabulary(folder, model, tokenizer, adapter)
    if adapter is not None:
        model = add_adapter(model, adapter, num_tokens=len(tokenizer), merge=dtype_of(model) == "float32")
    return Loaded(model.eval(), tokenizer, _context(model.config, tokenizer), dtype_of(model))


def load_tokenizer(folder: Path) -> Any:
    """Return the folder's tokenizer. Raises InputError where there is none, or none with an end token."""
    import transformers

    if not has_tokenizer(folder):  # for some architectures transformers would make an empty one
        raise InputError(f"{folder} has no tokenizer: none of {', '.join(VOCABULARIES)}. Copy the model whole")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except _FAILURES as error:
        raise InputError(
            f"{folder} has no tokenizer that transformers can read: {shorten(str(error))}. Copy tokenizer.json and "
            "tokenizer_config.json (or tokenizer.model) into it"
        ) from error
    if tokenizer.eos_token_id is None:
        raise InputError(f"the tokenizer of {folder} names no end token. Add eos_token to tokenizer_config.json")
    return tokenizer


def has_tokenizer(folder: Path) -> bool:
    """Say whether a folder brings a tokenizer."""
    return any((folder / name).is_file() for name in VOCABULARIES)


def dtype_of(model: Any) -> str:
    """Return the name of a model's dtype."""
    return str(model.dtype).removeprefix("torch.")


def _check_choice(name: str, value: str, legal: tuple[str, ...]) -> None:
    if value not in legal:
        near = nearest(str(value), legal)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"{name} is {shorten(value)}; legal: {', '.join(legal)}{hint}")


def _dtype(dtype: Dtype, device: str) -> Any:
    import torch

    if dtype != "auto":
        return getattr(torch, dtype)
    return torch.float32 if device == "cpu" else "auto"


def _quantisation(quantise: Quantise, device: str) -> dict[str, Any]:
    if quantise == "none":
        return {}
    import torch
    import transformers

    if importlib.util.find_spec("bitsandbytes") is None:
        raise InputError(f"quantise is {quantise!r}, but bitsandbytes is not installed. `pip install bitsandbytes`, or "
                         "set quantise to none")  # fmt: skip
    if device == "cpu":
        raise InputError(f"quantise is {quantise!r}, which needs a GPU; the device is cpu. Set device to cuda, or "
                         "quantise to none")  # fmt: skip
    settings = (
        {"load_in_8bit": True}
        if quantise == "int8"
        else {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
    )
    quantisation = transformers.BitsAndBytesConfig(**settings)  # type: ignore[no-untyped-call]
    return {"quantization_config": quantisation, "device_map": {"": device}}


def _check_vocabulary(folder: Path, model: Any, tokenizer: Any, adapter: Path | None) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows and adapter is None:
        raise InputError(f"{folder} has a tokenizer of {len(tokenizer)} tokens, but a model of {rows}: they are not "
                         "from the same model. Copy the model whole")  # fmt: skip


def _context(config: Any, tokenizer: Any) -> int:
    text = config.get_text_config(decoder=True)
    told = getattr(text, "max_position_embeddings", None) or getattr(text, "max_seq_len", None)
    return int(told or min(tokenizer.model_max_length, 1 << 20))
