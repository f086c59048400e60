"""What shapes an embedded model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kgqa_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """All that shapes the model beside its data. The defaults learn to plan in about a minute of one CPU core."""

    width: int = 128  # D
    layers: int = 4
    heads: int = 4  # each of width / heads
    feed_forward: float = 2.6875  # width of the layers' middle, in widths
    vocabulary: int = 2048  # tokens at most, relations and frames of prompts included
    relations: Literal["single", "pieces"] = (
        "single"  # a step of a plan is a token of its own, or spelled like any text
    )
    context: int = 1024  # tokens of prompt and answer together
    train_on: tuple[str, ...] = ("plan",)  # instructions that the weights learn; the tokenizer reads them all
    steps: int = 250  # of the optimiser
    batch_size: int = 64  # examples drawn per step
    flatten: float = 0.5  # a prompt is drawn in proportion to its weight to this power: 1 as the data has it, 0 evenly
    learning_rate: float = 3e-3
    warmup: float = 0.05  # share of the steps
    weight_decay: float = 0.05
    gradient_norm: float = 1.0  # gradients are clipped to it
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no model can be."""
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ConfigError(f"width {self.width} must be an even number for each of {self.heads} heads")
        for name in ("layers", "vocabulary", "steps", "batch_size", "learning_rate"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, and must be above 0")


# For a GPU: the same recipe at 30 and 100 million parameters. Not run on any yet.
GPU_30M = EmbeddedSettings(
    width=512, layers=10, heads=8, vocabulary=8192, steps=2000, batch_size=512, learning_rate=1e-3
)
GPU_100M = EmbeddedSettings(
    width=768, layers=14, heads=12, vocabulary=16384, steps=2000, batch_size=512, learning_rate=6e-4
)
