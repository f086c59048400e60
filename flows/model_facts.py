"""What a run's language model is and costs: what ``kgqa lm-info`` prints."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers

from kgqa_core.artifacts import hash_file
from kgqa_core.lm import folders
from kgqa_core.lm.folders import Dtype, Ending, HashFile, Quantise, load_tokenizer
from kgqa_core.lm.generate import generate_batch, read_prompts
from kgqa_core.lm.local import LocalModel, open_local
from kgqa_core.lm.types import Decoding

TIMED = (4, 64, 16)  # texts, tokens of a prompt, new tokens that ``describe`` times
_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
_QUANTISED = {"int8": 1.0, "int4": 0.5}  # bytes per weight of a matrix; tables stay as they are


def describe(
    folder: Path,
    *,
    adapter: Path | None = None,
    dtype: Dtype = "auto",
    quantise: Quantise = "none",
    device: str = "cpu",
    hash_file: HashFile = hash_file,
) -> dict[str, Any]:
    """Return a local model's facts; if its weights fit the free memory, it is loaded and timed.

    Speeds are None where it was not loaded. Raises as ``load``.
    """
    folders.read_config(folder)
    if adapter is not None:
        folders.check_adapter(adapter, folder)
    config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    text = config.get_text_config(decoder=True)
    tokenizer, shapes = load_tokenizer(folder, adapter), folders.tensor_shapes(folder)
    saved = str(getattr(config, "dtype", None)).removeprefix("torch.")
    loaded_as = dtype if dtype != "auto" else saved if device != "cpu" and saved in _BYTES else "float32"
    weights = 0.0
    for name, shape in shapes.items():
        is_matrix = len(shape) == 2 and "embed" not in name and "lm_head" not in name  # tables stay as they are
        weights += math.prod(shape) * (_QUANTISED.get(quantise, _BYTES[loaded_as]) if is_matrix else _BYTES[loaded_as])
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    free, model = free_memory(device), None
    speeds: tuple[float | None, float | None] = (None, None)
    if round(weights) <= free:
        how: Any = {"dtype": dtype, "quantise": quantise, "device": device, "hash_file": hash_file}
        model = open_local(folder, adapter=adapter, **how)
        speeds = measure(model)
    return {
        "folder": str(folder),
        "adapter": str(adapter or ""),  # empty: none
        "architecture": str((config.architectures or [config.model_type])[0]),
        "parameters": sum(math.prod(shape) for shape in shapes.values()),  # a table that is the head too counts once
        "vocabulary": len(tokenizer),
        "context": int(getattr(text, "max_position_embeddings", None) or tokenizer.model_max_length),
        "has_chat_template": bool(tokenizer.chat_template),
        "dtype": loaded_as,
        "quantise": quantise,
        "device": device,
        "weight_bytes": round(weights),  # as loaded
        "cache_bytes_per_token": round(2 * text.num_hidden_layers * heads * width * _BYTES[loaded_as]),
        "free_bytes": free,  # of the device's memory now
        "read_tokens_per_second": speeds[0],  # of prompts, measured
        "new_tokens_per_second": speeds[1],  # of answers, all texts of a batch together
        "name": model.name if model else "",  # its identity
    }


def measure(model: LocalModel) -> tuple[float, float]:
    """Return tokens per second of reading prompts, and of writing answers after that: of whole batches."""
    num_texts, num_prompt, num_new = TIMED
    prompts = [[(5 + 7 * place) % len(model.tokenizer) for place in range(num_prompt)]] * num_texts
    started = time.perf_counter()
    with torch.inference_mode():
        read_prompts(model.model, prompts)[1].sum().item()  # waits until a GPU is through
    read = time.perf_counter()
    generate_batch(model.model, prompts, Decoding(max_new_tokens=num_new), ending=Ending(model.tokenizer, frozenset()))
    wrote = max(time.perf_counter() - read - (read - started), 1e-9)  # it reads the prompts again
    return num_texts * num_prompt / (read - started), num_texts * num_new / wrote


def free_memory(device: str) -> int:
    """Return the free bytes of a device's memory."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
