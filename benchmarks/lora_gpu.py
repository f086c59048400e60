"""LoRA training on a GPU of models in the shape of Llama-2's, with random weights: speed and memory do not mind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import wait
from benchmarks.workload import median
from kgqa_core.config_lm import ReasonerSection
from kgqa_core.lm.tune import passes_of, with_lora
from kgqa_core.lm.tune_data import Tokens, draw_batches
from kgqa_core.lm.tune_loop import Loop, training_arguments

SHAPES = {  # hidden, intermediate, layers, heads
    "7B": (4096, 11008, 32, 32),
    "13B": (5120, 13824, 40, 40),
}
VOCABULARY, STEPS, WARM = 32000, 12, 4
MATRIX, PRODUCTS = 8192, 20


@dataclass(frozen=True, slots=True)
class Way:
    """How a model is trained."""

    name: str
    micro_batch: int
    options: dict[str, Any]


WAYS = (
    Way("buckets", 16, {}),
    Way("packed", 16, {"batching": "packed"}),
    Way("buckets, checkpointing", 64, {"gradient_checkpointing": True}),
)


def table(shapes: Sequence[str]) -> list[str]:
    """Return the table of all shapes and ways."""
    rate = matrix_rate()
    rows = [
        "| model | how | examples per pass | tokens/s | memory, GiB | 4 x parameters x tokens, TFLOP/s | "
        "of the measured bfloat16 rate |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for shape in shapes:
        for way in WAYS:
            try:
                speed, memory, parameters = measure(shape, way)
            except torch.cuda.OutOfMemoryError:
                rows.append(f"| {shape} | {way.name} | {way.micro_batch} | out of memory | | | |")
                continue
            useful = 4 * parameters * speed
            rows.append(
                f"| {shape} | {way.name} | {way.micro_batch} | {speed:,.0f} | {memory:.0f} | {useful / 1e12:,.0f} | "
                f"{useful / rate:.0%} |"
            )
    note = (
        f"{torch.cuda.get_device_name()}; {rate / 1e12:,.0f} TFLOP/s in products of {MATRIX} x {MATRIX} bfloat16 "
        f"matrices. Rank 16 on all linear modules, examples of 128 to 1,024 tokens, an eighth of them target; median "
        f"of {STEPS - WARM} steps. Parameters are the frozen ones, without the table of embeddings, which is looked "
        "up; padding and recomputation are not counted."
    )
    return [*rows, "", note]


def matrix_rate() -> float:
    """Return the floating-point operations per second of a product of bfloat16 matrices."""
    one = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16)
    seconds = []
    for _ in range(PRODUCTS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(5):
            one @ one
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - started) / 5)
    return 2 * MATRIX**3 / median(seconds[PRODUCTS // 2 :])


def measure(shape: str, way: Way, device: str = "cuda") -> tuple[float, float, int]:
    """Return tokens per second, GiB at the peak, and the parameters that are multiplied with."""
    section = ReasonerSection(max_steps=STEPS, batch_size=way.micro_batch, max_length=1024, **way.options)
    tokens = random_tokens(STEPS * way.micro_batch)
    batches = draw_batches(tokens, section)
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = random_model(shape, device)
    parameters = sum(one.numel() for one in model.parameters()) - model.get_input_embeddings().weight.numel()
    packed = section.batching == "packed"
    with TemporaryDirectory() as scratch:
        arguments = training_arguments(
            Path(scratch),
            device,
            max_steps=STEPS,
            per_device_train_batch_size=way.micro_batch,
            activation_checkpointing=section.gradient_checkpointing,
        )
        loop = TimedLoop(
            model=with_lora(model, section, trained_rows=[], autocast=True),
            args=arguments,
            passes=passes_of(tokens, batches, rank=0, pad=0, row_length=1024 if packed else None),
            all_steps=STEPS,
            precision=torch.bfloat16,
        )
        loop.seconds = []
        loop.train()
    read = tokens.lengths[batches].sum(axis=(1, 2, 3))
    speeds = [count / passed for count, passed in zip(read, loop.seconds, strict=True)]
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    return median(speeds[WARM:]), memory, parameters


class TimedLoop(Loop):
    """Notes the seconds of each step, until the GPU is done with it."""

    seconds: list[float]

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """Begin a step."""
        wait(self.args.device)
        self._started = time.perf_counter()
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """End a step."""
        wait(self.args.device)
        if "loss" in logs:
            self.seconds.append(time.perf_counter() - self._started)


def random_tokens(count: int) -> Tokens:
    """Return examples of 128 to 1,024 tokens."""
    draw = np.random.default_rng(0)
    lengths = np.exp2(draw.uniform(7, 10, count)).astype(np.int64)
    starts = np.concatenate([[0], lengths.cumsum()])
    return Tokens(
        tokens=draw.integers(3, VOCABULARY, starts[-1], dtype=np.int32),
        starts=starts,
        num_prompt=(lengths - lengths // 8).astype(np.int32),
        weights=np.ones(count, np.float32),
        instruction=np.zeros(count, np.int16),
        dev=np.zeros(count, np.bool_),
        names=("reason",),
        too_long={},
    )


def random_model(shape: str, device: str) -> Any:
    """Return a Llama of that shape on the device, its weights drawn there."""
    import transformers

    hidden, intermediate, layers, heads = SHAPES[shape]
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=4096,
        dtype=torch.bfloat16,
    )
    torch.manual_seed(0)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
