"""The small model that the pipeline makes itself, of the graph and the training questions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from kgqa_core.config_base import ModelSection, Share
from kgqa_core.lm.backends import Machine, Weights
from kgqa_core.lm.backends.local import BACKEND as LOCAL
from kgqa_core.lm.backends.local import LocalLmSection

if TYPE_CHECKING:
    from kgqa_core.lm.types import LanguageModel


class EmbeddedLmSection(ModelSection):
    """The small model that the pipeline makes itself, of the graph and the training questions."""

    kind: Literal["embedded"]
    width: Annotated[int, Field(ge=8)] = 128  # D
    layers: Annotated[int, Field(ge=1)] = 4
    heads: Annotated[int, Field(ge=1)] = 4
    feed_forward: Annotated[float, Field(gt=0)] = 2.6875  # width of the layers' middle, in widths
    vocabulary: Annotated[int, Field(ge=300)] = 2048  # tokens at most, relations and frames of prompts included
    relations: Literal["single", "pieces"] = "single"  # a step of a plan is one token, or spelled like any text
    context: Annotated[int, Field(ge=32)] = 1024  # tokens of prompt and answer together
    train_on: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = ("plan",)  # instructions it learns
    steps: Annotated[int, Field(ge=1)] = 250  # of the optimiser
    batch_size: Annotated[int, Field(ge=1)] = 64  # examples drawn per step
    flatten: Share = 0.5  # a prompt is drawn by its weight to this power: 1 as the data has it, 0 evenly
    learning_rate: Annotated[float, Field(gt=0)] = 3e-3
    warmup: Share = 0.05  # share of the steps
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    gradient_norm: Annotated[float, Field(gt=0)] = 1.0  # gradients are clipped to it
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> EmbeddedLmSection:
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(f"width {self.width} must be an even number for each of {self.heads} heads")
        return self


class Embedded:
    """Opens what stage ``lm`` made: an ordinary transformers folder."""

    section = EmbeddedLmSection
    is_made_here = True
    is_tunable = True

    def recipe(self, section: EmbeddedLmSection) -> dict[str, Any]:
        """Return nothing: the artifact of stage ``lm`` says it all."""
        return {}

    def weights(self, section: EmbeddedLmSection, made: Path | None) -> Weights | None:
        """Return what stage ``lm`` made."""
        return Weights(made) if made else None

    def open(self, section: EmbeddedLmSection, weights: Weights | None, machine: Machine) -> LanguageModel:
        """Load it."""
        return LOCAL.open(_as_local(weights), weights, machine)

    def facts(self, section: EmbeddedLmSection, weights: Weights | None, machine: Machine) -> dict[str, Any]:
        """Load and time it."""
        return LOCAL.facts(_as_local(weights), weights, machine) | {"kind": section.kind}

    def price_name(self, section: EmbeddedLmSection) -> str:
        """Return nothing: it runs here."""
        return ""


def _as_local(weights: Weights | None) -> LocalLmSection:
    assert weights is not None
    return LocalLmSection(kind="local", path=weights.folder)


BACKEND = Embedded()
