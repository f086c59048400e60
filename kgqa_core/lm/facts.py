"""What a local model is and costs: parameters, context, memory before anything is loaded, and a measured speed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kgqa_core.errors import InputError, shorten
from kgqa_core.lm.checks import check_adapter, read_config
from kgqa_core.lm.generate import generate_batch
from kgqa_core.lm.load import Dtype, Quantise, has_tokenizer, load_tokenizer
from kgqa_core.lm.local import LocalModel, open_local
from kgqa_core.lm.searches import Ending
from kgqa_core.lm.step import read_prompts
from kgqa_core.lm.types import Decoding

TEXT_TOKENS = 1024  # tokens of one prompt and answer, as the estimate of memory counts them
LOADS = ((1, 16, 4), (8, 128, 16))  # (texts, tokens of a prompt, new tokens) that are timed, until one takes long
LONG = 2.0  # seconds
_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
_QUANTISED = {"int8": 1.0, "int4": 0.5}  # bytes per weight of a matrix; tables stay as they are


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What ``kgqa lm-info`` tells of a local model."""

    folder: str
    adapter: str  # empty: none
    architecture: str
    parameters: int  # the base's; a table that is the head too counts once
    adapter_parameters: int
    vocabulary: int  # tokens of the tokenizer
    context: int  # tokens of prompt and answer together
    has_chat_template: bool
    dtype: str
    quantise: str
    device: str
    weight_bytes: int  # as loaded
    cache_bytes_per_token: int
    memory_bytes: (
        int  # weights and the cache of `batch_size` texts of TEXT_TOKENS; what a step needs beside is not in it
    )
    free_bytes: int  # of the device's memory now; 0: not known
    read_tokens_per_second: float | None = None  # of prompts, measured; None: the weights do not fit what is free
    new_tokens_per_second: float | None = None  # of answers, all texts of a batch together
    name: str = ""  # its identity; known once it was loaded


def describe(
    folder: Path,
    *,
    adapter: Path | None = None,
    dtype: Dtype = "auto",
    quantise: Quantise = "none",
    device: str = "cpu",
    batch_size: int = 64,
) -> ModelFacts:
    """Return a local model's facts; where it fits the free memory it is loaded and timed.

    Raises:
        InputError: the folder or the adapter cannot be used.
    """
    facts = estimate(folder, adapter=adapter, dtype=dtype, quantise=quantise, device=device, batch_size=batch_size)
    if facts.free_bytes and facts.weight_bytes > facts.free_bytes:
        return facts
    model = open_local(folder, adapter=adapter, dtype=dtype, quantise=quantise, device=device, batch_size=batch_size)
    read, new = measure(model, batch_size)
    return replace(facts, name=model.name, read_tokens_per_second=read, new_tokens_per_second=new)


def estimate(
    folder: Path, *, adapter: Path | None, dtype: Dtype, quantise: Quantise, device: str, batch_size: int
) -> ModelFacts:
    """Return what can be told without loading the weights. Raises InputError as ``describe``."""
    import transformers

    read_config(folder)
    if adapter is not None:
        check_adapter(adapter)
    config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    text = config.get_text_config(decoder=True)
    tokenizer = load_tokenizer(adapter if adapter is not None and has_tokenizer(adapter) else folder)
    shapes = _shapes(folder)
    loaded_as = _loaded_as(config, dtype, device)
    weights = sum(_weight_bytes(name, shape, loaded_as, quantise) for name, shape in shapes.items())
    added = _count(_shapes(adapter)) if adapter is not None else 0
    cache = round(_cache_numbers(text) * _BYTES[loaded_as])
    context = int(getattr(text, "max_position_embeddings", None) or tokenizer.model_max_length)
    total = round(weights + added * _BYTES[loaded_as]) + cache * batch_size * min(context, TEXT_TOKENS)
    return ModelFacts(
        folder=str(folder),
        adapter=str(adapter or ""),
        architecture=str((config.architectures or [config.model_type])[0]),
        parameters=_count(shapes),
        adapter_parameters=added,
        vocabulary=len(tokenizer),
        context=context,
        has_chat_template=bool(tokenizer.chat_template),
        dtype=loaded_as,
        quantise=quantise,
        device=device,
        weight_bytes=round(weights),
        cache_bytes_per_token=cache,
        memory_bytes=total,
        free_bytes=free_memory(device),
    )


def measure(model: LocalModel, batch_size: int) -> tuple[float, float]:
    """Return tokens per second of reading prompts, and of writing answers after that: of whole batches."""
    import torch

    speeds = (0.0, 0.0)
    nothing = Ending(model.tokenizer, frozenset())  # no text ends early
    for num_texts, num_prompt, num_new in LOADS:
        prompts = [[(5 + 7 * place) % len(model.tokenizer) for place in range(num_prompt)]] * min(num_texts, batch_size)
        started = time.perf_counter()
        with torch.inference_mode():
            read_prompts(model.model, prompts)[1].sum().item()  # waits until a GPU is through
        read = time.perf_counter() - started
        started = time.perf_counter()
        generate_batch(model.model, prompts, Decoding(max_new_tokens=num_new), ending=nothing)
        wrote = max(time.perf_counter() - started - read, 1e-9)
        speeds = (len(prompts) * num_prompt / read, len(prompts) * num_new / wrote)
        if read + wrote > LONG:
            break
    return speeds


def free_memory(device: str) -> int:
    """Return the free bytes of a device's memory, 0 where the system does not tell."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else 0


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the folder's safetensors, from the files' heads."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(str(path), framework="pt") as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path} is damaged: {shorten(str(error))}. Copy it again") from error
    return shapes


def _count(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def _weight_bytes(name: str, shape: tuple[int, ...], dtype: str, quantise: Quantise) -> float:
    is_table = "embed" in name or "lm_head" in name
    if quantise in _QUANTISED and len(shape) == 2 and not is_table:
        return math.prod(shape) * _QUANTISED[quantise]
    return math.prod(shape) * _BYTES[dtype]


def _loaded_as(config: Any, dtype: Dtype, device: str) -> str:
    if dtype != "auto":
        return dtype
    saved = str(getattr(config, "dtype", None)).removeprefix("torch.")
    return saved if device != "cpu" and saved in _BYTES else "float32"


def _cache_numbers(config: Any) -> int:
    """Return how many numbers one token leaves in the cache: a key and a value per layer and head."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width)
