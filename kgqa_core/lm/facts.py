"""What a local model is and costs: parameters, context, memory before anything is loaded, and a measured speed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError, safe_open

from kgqa_core.errors import InputError, shorten
from kgqa_core.lm.chat import Ending
from kgqa_core.lm.folders import check_adapter, has_tokenizer, read_config
from kgqa_core.lm.generate import generate_batch, read_prompts
from kgqa_core.lm.local import Dtype, LocalModel, Quantise, load_tokenizer, open_local
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
    memory_bytes: int  # weights and the cache of `batch_size` texts of TEXT_TOKENS, without what a step needs beside
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
    timed: bool = True,
) -> ModelFacts:
    """Return a local model's facts; if ``timed`` and its weights fit the free memory, it is loaded and timed.

    Raises:
        InputError: the folder or the adapter cannot be used.
    """
    read_config(folder)
    if adapter is not None:
        check_adapter(adapter)
    config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    text = config.get_text_config(decoder=True)
    tokenizer = load_tokenizer(adapter if adapter is not None and has_tokenizer(adapter) else folder)
    shapes, added = _shapes(folder), _shapes(adapter) if adapter is not None else {}
    saved = str(getattr(config, "dtype", None)).removeprefix("torch.")
    loaded_as = dtype if dtype != "auto" else saved if device != "cpu" and saved in _BYTES else "float32"
    weights = 0.0
    for name, shape in shapes.items():
        is_matrix = len(shape) == 2 and "embed" not in name and "lm_head" not in name  # tables stay as they are
        weights += math.prod(shape) * (_QUANTISED.get(quantise, _BYTES[loaded_as]) if is_matrix else _BYTES[loaded_as])
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    cache = round(2 * text.num_hidden_layers * heads * width * _BYTES[loaded_as])  # a key and a value per layer
    context = int(getattr(text, "max_position_embeddings", None) or tokenizer.model_max_length)
    num_added = sum(math.prod(shape) for shape in added.values())
    facts = ModelFacts(
        folder=str(folder),
        adapter=str(adapter or ""),
        architecture=str((config.architectures or [config.model_type])[0]),
        parameters=sum(math.prod(shape) for shape in shapes.values()),
        adapter_parameters=num_added,
        vocabulary=len(tokenizer),
        context=context,
        has_chat_template=bool(tokenizer.chat_template),
        dtype=loaded_as,
        quantise=quantise,
        device=device,
        weight_bytes=round(weights),
        cache_bytes_per_token=cache,
        memory_bytes=round(weights + num_added * _BYTES[loaded_as]) + cache * batch_size * min(context, TEXT_TOKENS),
        free_bytes=free_memory(device),
    )
    if not timed or facts.weight_bytes > (facts.free_bytes or math.inf):
        return facts
    model = open_local(folder, adapter=adapter, dtype=dtype, quantise=quantise, device=device, batch_size=batch_size)
    read, new = measure(model, batch_size)
    return replace(facts, name=model.name, read_tokens_per_second=read, new_tokens_per_second=new)


def measure(model: LocalModel, batch_size: int) -> tuple[float, float]:
    """Return tokens per second of reading prompts, and of writing answers after that: of whole batches."""
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
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else 0


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the folder's safetensors, from the files' heads."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(str(path), framework="pt") as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path} is damaged: {shorten(str(error))}. Copy it again") from error
    return shapes
