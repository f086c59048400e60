"""A trained explorer at rest: ``model.safetensors`` and ``model.json``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kgqa_core.errors import ArtifactError, shorten
from kgqa_core.explorer.model import Explorer

WEIGHTS, CARD = "model.safetensors", "model.json"
PER_STEP = ("attend_head", "attend_relation", "attend_question", "attend_both")  # [L, D], a row per step
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class Card:
    """What must be known to use the weights."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    encoder: str  # name of the text encoder, weights hash included
    encoding_dim: Count
    width: Count  # D
    steps: Count  # L
    edge_budget: Count  # K
    reenter_topic: bool
    answer_threshold: float  # a candidate is an answer from this share of the best probability on; chosen on dev
    attention_threshold: float = 0.0  # groups of less attention are not entered; the largest that cost nothing on dev
    mask_topics: bool = True  # does it read questions with their topics masked?


def save_explorer(folder: Path, model: Explorer, card: Card) -> None:
    """Write both files into ``folder``."""
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / WEIGHTS)
    (folder / CARD).write_text(json.dumps(asdict(card), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load_explorer(folder: Path, *, encoder: str) -> tuple[Explorer, Card]:
    """Read an explorer for texts of ``encoder``.

    Raises:
        ArtifactError: a missing or damaged file, or an explorer trained on another encoder's texts.
    """
    card, weights = _read(folder)
    if card.encoder != encoder:
        raise ArtifactError(
            f"the explorer in {folder} was trained on texts encoded by {card.encoder!r}, not {encoder!r}: "
            "use that encoder, or train again"
        )
    try:
        model = Explorer(encoding_dim=card.encoding_dim, width=card.width, steps=card.steps)
        model.load_state_dict(weights)
    except RuntimeError as problem:
        raise ArtifactError(
            f"{folder / WEIGHTS} does not fit {CARD}: {shorten(str(problem))}; train it again"
        ) from None
    return model.eval(), card


def start_from(model: Explorer, folder: Path, *, encoder: str, attention: float = 1.0) -> list[str]:
    """Give a fresh model the weights of a trained one, of whatever graph: no weight belongs to an entity or relation.

    Steps that both have are shared; steps that only ``model`` has keep their fresh weights.

    Args:
        model: gets the weights.
        folder: of the trained explorer.
        encoder: name of the encoder of ``model``'s texts.
        attention: factor on the attention weights. Trained attention is near 0 or 1, where the sigmoid has no gradient:
            what it wrongly leaves out of another graph it would never learn to enter. Scaled down it keeps its order.

    Returns:
        names of the fresh weights, with their steps.

    Raises:
        ArtifactError: a missing or damaged file, or an explorer of another encoder or width.
    """
    card, weights = _read(folder)
    for name, theirs, ours in (
        ("encoder", card.encoder, encoder),
        ("encoding_dim", card.encoding_dim, model.encoding_dim),
        ("width", card.width, model.width),
    ):
        if theirs != ours:
            raise ArtifactError(
                f"explorer.init_from: the explorer in {folder} has {name} {theirs!r}, this one {ours!r}; "
                "start from one that agrees, or from none"
            )
    own = model.state_dict()
    fresh = []
    for name, weight in own.items():
        given = weights.get(name)
        if given is None:  # a matrix of a step that it has not
            fresh.append(name)
        elif name in PER_STEP:
            shared = min(len(given), len(weight))
            own[name] = torch.cat([attention * given[:shared], weight[shared:]])
            fresh += [f"{name}[{step}]" for step in range(shared, len(weight))]
        else:
            own[name] = given
    try:
        model.load_state_dict(own)
    except RuntimeError as problem:
        raise ArtifactError(f"{folder / WEIGHTS} does not fit: {shorten(str(problem))}") from None
    return fresh


def _read(folder: Path) -> tuple[Card, dict[str, Tensor]]:
    try:
        return TypeAdapter(Card).validate_json((folder / CARD).read_bytes()), load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as problem:
        raise ArtifactError(f"{folder} holds no readable explorer: {_explain(problem)}; train it again") from None


def _explain(problem: Exception) -> str:
    """Say in one bounded line what is wrong with a file."""
    if not isinstance(problem, ValidationError):
        return shorten(str(problem))
    fault = problem.errors(include_url=False)[0]
    place = ".".join([CARD, *map(str, fault["loc"])])
    return f"{place}: {fault['msg']}, given {shorten(fault['input'], 60)}"
