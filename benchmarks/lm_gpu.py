"""Llama-2-7B- and 13B-shaped models with random weights on a GPU: reading, writing and LoRA training, absolute.

Shares are of the matrix rate that this GPU reaches on one large bfloat16 product. Reading counts 2 x parameters x
tokens, LoRA training 4 x (forward, and backward to the inputs: frozen weights have no gradient of their own); what
checkpointing computes again is not counted.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import write_section
from benchmarks.workload import wait
from kgqa_core.lm.folders import Ending
from kgqa_core.lm.generate import generate_batch, read_prompts
from kgqa_core.lm.tune_loop import target_nll
from kgqa_core.lm.types import Decoding


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama's sizes."""

    name: str
    width: int
    middle: int
    layers: int
    heads: int
    vocabulary: int = 32_000


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    shapes: tuple[Shape, ...]
    product: int  # side of the matrices whose product measures the rate
    prompt: int  # tokens
    new: int  # tokens
    read_batch: int  # prompts
    write_batches: tuple[int, ...]  # texts
    train_batches: tuple[tuple[int, bool], ...]  # (examples of `prompt` tokens, gradient checkpointing?)
    dtype: torch.dtype = torch.bfloat16


LLAMA_7B = Shape("Llama-2-7B", 4096, 11008, 32, 32)
LLAMA_13B = Shape("Llama-2-13B", 5120, 13824, 40, 40)
FULL = Size((LLAMA_7B, LLAMA_13B), 8192, 1024, 128, 8, (1, 16, 64), ((2, False), (4, False), (8, True), (16, True)))
SMALL = Size((Shape("tiny", 64, 128, 2, 2, 97),), 256, 16, 4, 2, (1, 3), ((2, False), (2, True)))


class NoText:
    """Stands in for a tokenizer: random weights say nothing."""

    def decode(self, tokens: list[int], **options: Any) -> str:
        """Return nothing."""
        return ""


def run(home: Path, size: Size = FULL) -> None:
    """Measure on the GPU; without one, say so and write nothing."""
    if not torch.cuda.is_available():
        print("lm_gpu: skipped, torch finds no CUDA device")
        return
    device = torch.device("cuda")
    rate = matrix_rate(device, size)
    columns = ("model", "what", "batch", "tokens/s", "share of the matrix rate", "peak GiB")
    rows = [f"| {' | '.join(columns)} |", "|---|---|---:|---:|---:|---:|"]
    for shape in size.shapes:
        rows += measure_shape(shape, device, size, rate)
    note = (
        f"{torch.cuda.get_device_name(device)}; a bfloat16 product of {size.product:,} x {size.product:,} matrices "
        f"reaches {rate / 1e12:,.0f} TFLOP/s. Random weights in bfloat16; LoRA of rank 16 on all linear layers, its "
        f"weights float32, AdamW; prompts and examples of {size.prompt:,} tokens, {size.new} new tokens. Shares count "
        "2 x parameters x tokens for reading and 4 x for LoRA training (frozen weights), recomputation not counted; "
        "the loss is on every token."
    )
    write_section("Language models on a GPU", "\n".join([*rows, "", note]), "python -m benchmarks lm_gpu")


def measure_shape(shape: Shape, device: torch.device, size: Size, rate: float) -> list[str]:
    """Return the rows of one model; what memory does not hold is said in its row."""
    model = make_model(shape, device, size.dtype)
    parameters = sum(weight.numel() for weight in model.parameters())
    name = f"{shape.name} ({parameters / 1e9:.2f} B)"
    works: list[tuple[str, int, float, Callable[[], int]]] = [
        ("read", size.read_batch, 2.0, lambda: read(model, size.read_batch, size))
    ]
    works += [("write", batch, 2.0, lambda batch=batch: write(model, batch, size)) for batch in size.write_batches]
    rows = [row(name, work, parameters=parameters, rate=rate, device=device) for work in works]
    step = LoraStep(model)
    for batch, checkpointing in size.train_batches:
        step.checkpoint(checkpointing)
        what = "LoRA step, checkpointed" if checkpointing else "LoRA step"
        work = (what, batch, 4.0, lambda batch=batch: step(batch, size))
        rows.append(row(name, work, parameters=parameters, rate=rate, device=device))
    return rows


def row(
    name: str, work: tuple[str, int, float, Callable[[], int]], *, parameters: int, rate: float, device: torch.device
) -> str:
    """Do some work three times and return its row: the last two count, the faster of them."""
    what, batch, passes, call = work
    free(device)
    try:
        call()
        seconds, tokens = min(timed(call, device) for _ in range(2))
    except torch.OutOfMemoryError:
        return f"| {name} | {what} | {batch} | out of memory | | |"
    share = passes * parameters * tokens / seconds / rate
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
    return f"| {name} | {what} | {batch} | {tokens / seconds:,.0f} | {share:.1%} | {peak:.1f} |"


def timed(call: Callable[[], int], device: torch.device) -> tuple[float, int]:
    """Return the seconds of a call until the device is through, and the tokens that it counts."""
    wait(device)
    started = time.perf_counter()
    tokens = call()
    wait(device)
    return time.perf_counter() - started, tokens


def matrix_rate(device: torch.device, size: Size, repeats: int = 20) -> float:
    """Return the operations per second of a large matrix product, a multiplication and an addition counted each."""
    one, other = (torch.randn(size.product, size.product, device=device, dtype=size.dtype) for _ in range(2))

    def products() -> int:
        for _ in range(repeats):
            one @ other
        return 0

    products()
    return 2 * size.product**3 * repeats / min(timed(products, device)[0] for _ in range(3))


def make_model(shape: Shape, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a Llama of this shape with random weights."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.middle,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=4096,
    )
    torch.manual_seed(0)
    with device:
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def read(model: Any, batch: int, size: Size) -> int:
    """Read prompts; return their tokens."""
    with torch.inference_mode():
        read_prompts(model, [[5 + place % 50 for place in range(size.prompt)]] * batch)
    return batch * size.prompt


def write(model: Any, batch: int, size: Size) -> int:
    """Write answers to short prompts; return the new tokens."""
    ending = Ending(NoText(), frozenset())
    generate_batch(model, [[5, 6, 7, 8]] * batch, Decoding(max_new_tokens=size.new), ending=ending)
    return batch * size.new


class LoraStep:
    """Steps of LoRA training with the tuning's own loss, autocast inside it."""

    def __init__(self, model: Any) -> None:
        import peft

        config = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        self._model = peft.get_peft_model(model, config).train()
        trained = [weight for weight in self._model.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=1e-4)

    def checkpoint(self, on: bool) -> None:
        """Keep only each layer's input, and compute the rest again on the way back; or keep all."""
        base = self._model.get_base_model()
        if on:
            base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            base.enable_input_require_grads()
        else:
            base.gradient_checkpointing_disable()

    def __call__(self, batch: int, size: Size) -> int:
        """Do one step; return its tokens."""
        device = self._model.device
        tokens = torch.randint(5, 90, (batch, size.prompt), device=device)
        keep = torch.ones_like(tokens, dtype=torch.bool)
        keep[:, -1] = False
        inputs = {"input_ids": tokens, "logits_to_keep": keep, "targets": tokens[:, 1:].flatten()}
        target_nll(self._model, inputs, torch.bfloat16).mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return batch * size.prompt


def free(device: torch.device) -> None:
    """Give back what nobody holds, and begin to look for the peak anew."""
    gc.collect()  # models hold themselves in cycles
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
