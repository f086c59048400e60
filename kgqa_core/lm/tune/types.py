"""What shapes a tuning, where it is done, and what is told about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kgqa_core.errors import ConfigError

ROG_BATCH, ROG_RATE, ROG_WARMUP = 4, 2e-5, 0.03  # RoG A.6, with a cosine schedule and 3 epochs (EPERM: 5)


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the training with a mixture of its own."""

    until: float  # share of the optimiser steps after which it ends; the last phase ends at 1
    weights: Mapping[str, float] = field(default_factory=dict)  # instruction -> share of the examples drawn, need not
    # sum to 1, what is not named is not drawn; empty: every instruction by its number of examples (RoG Eq. 7, EPERM
    # Eq. 8: plain sums)


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """All that shapes a tuned model, beside the base and the examples."""

    tuning: Literal["lora", "full"] = "lora"
    rank: int = 16  # of LoRA's update
    alpha: float = 32.0  # LoRA's update is scaled by alpha / rank
    dropout: float = 0.0  # of what enters LoRA's update
    targets: str | tuple[str, ...] = "all-linear"  # modules that get an update: names, or all linear ones but the head
    path_tokens: tuple[str, ...] = ()  # texts that become single tokens where they are not; their rows are trained.
    # With LoRA they are in the adapter as peft's trainable tokens, which vLLM cannot read yet (vllm issue 36501)
    epochs: float = 3.0  # how often as many examples are drawn as there are (RoG: 3, EPERM: 5)
    max_steps: int | None = None  # optimiser steps, in place of epochs
    batch_size: int = ROG_BATCH  # examples per optimiser step, over all processes and accumulated parts together
    micro_batch: int | None = None  # examples per forward pass of one process; None: all of its share, none accumulated
    max_length: int = 2048  # tokens of prompt and target, at most the model's context; longer: dropped and counted
    batching: Literal["buckets", "packed", "random"] = (
        "buckets"  # examples of like length together, several per row, or neither
    )
    learning_rate: float = ROG_RATE
    schedule: Literal["cosine", "linear", "constant_with_warmup"] = "cosine"
    warmup: float = ROG_WARMUP  # share of the steps
    weight_decay: float = 0.0
    adam_beta2: float = 0.999
    gradient_norm: float = 1.0  # gradients are clipped to it; 0: never
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # of matrix products; auto: bfloat16 on a GPU
    gradient_checkpointing: bool = False  # a third more work for memory that grows with a layer's inputs only
    phases: tuple[Phase, ...] = ()  # empty: one, every instruction by its number of examples
    loss_mean: Literal["token", "example"] = "token"  # what counts the same: each target token, or each target
    keep: Literal["last", "best"] = "last"  # best: lowest mean over instructions of the dev loss
    num_evaluations: int = 3  # evenly over the training, the last at its end
    dev_examples: int = 500  # per instruction, at most
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no training can be."""
        ends = [phase.until for phase in self.phases]
        if ends and (ends != sorted(set(ends)) or ends[0] <= 0 or ends[-1] != 1):
            raise ConfigError(f"phases end at {ends}: each must end later than the one before, the last at 1")
        for phase in self.phases:
            if any(weight < 0 for weight in phase.weights.values()) or (
                phase.weights and not sum(phase.weights.values())
            ):
                raise ConfigError(f"the weights {dict(phase.weights)} of a phase must not be negative, nor all 0")
        for name in ("rank", "epochs", "batch_size", "max_length", "learning_rate"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, and must be above 0")


@dataclass(frozen=True, slots=True)
class TuneRun:
    """Where and how the work is done; shapes nothing."""

    out: Path  # gets adapter/ or model/
    journal: Path | None = None  # folder from which a killed training goes on; also keeps the tokens
    on_point: Callable[[str, int, float], None] = field(default=lambda name, step, value: None)  # curves
    progress: Callable[[int, int], None] = field(default=lambda done, total: None)  # (steps done, steps in all)
    device: str = "cpu"  # or cuda; under torchrun each process takes the GPU of its rank
    threads: int = 1
    curve_every: int = 10  # steps per point of the training curves
    save_every: float = (
        20.0  # seconds between two journal entries, at least; more where saving takes long; 0: each step
    )


@dataclass(frozen=True, slots=True)
class TuneReport:
    """What came of it."""

    folder: Path  # the adapter or the model
    num_steps: int
    num_examples: Mapping[str, int]  # instruction -> training examples
    num_too_long: Mapping[str, int]  # instruction -> examples dropped, train and dev
    num_tokens: int  # read by the model in all steps, padding aside
    train_loss: float  # mean over the last point of the curve
    dev_losses: Mapping[str, float]  # instruction -> mean per target token, natural log; of the weights that are kept
    best_step: int  # whose weights are kept
    num_trainable: int  # parameters
    num_parameters: int  # those frozen included
    cpu_seconds: float  # of the steps and evaluations; one process
    wall_seconds: float
