"""A text encoder in two halves: lower layers that stay as published, and upper layers that are trained.

What comes out of the lower half is computed once per text; a training step then costs the upper half alone. Shape
letters: B texts, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kgqa_core.artifacts import hash_file
from kgqa_core.errors import InputError, shorten
from kgqa_core.text.transformer import (
    check_minilm_weights,
    find_minilm_folder,
    load_backbone,
    mean_over_tokens,
)

if TYPE_CHECKING:
    from torch import Tensor

BATCH_SIZE = 64  # texts that are encoded at once
WEIGHTS = "model.safetensors"
MASKED = -1e9  # added to the attention to what is no token
Floats = npt.NDArray[np.float32]


class SplitEncoder:
    """MiniLM, or any other encoder whose layers are BERT's; texts become unit vectors [D], the mean over tokens."""

    def __init__(self, folder: Path | None, *, frozen_layers: int, max_tokens: int) -> None:
        """Load the model in ``folder``; None: MiniLM out of its package, its weights checked.

        Raises:
            InputError: it is no such encoder, or has fewer layers than ``frozen_layers``.
        """
        if folder is None:
            folder = find_minilm_folder()
            check_minilm_weights(folder)
        backbone = load_backbone(folder, max_tokens=max_tokens)
        layers = getattr(getattr(backbone.model, "encoder", None), "layer", None)
        if layers is None or not hasattr(backbone.model, "embeddings"):
            raise InputError(f"{shorten(str(folder))} is no BERT-shaped encoder, which the dense planner needs")
        if not 0 <= frozen_layers <= len(layers):
            raise InputError(f"dense.frozen_layers is {frozen_layers}; {shorten(str(folder))} has {len(layers)} layers")
        self._tokenizer, self._max_tokens = backbone.tokenizer, max_tokens
        self._embed, self._lower = backbone.model.embeddings, layers[:frozen_layers]
        self.upper: Any = layers[frozen_layers:]  # a ModuleList
        self.width: int = backbone.model.config.hidden_size
        self.name = f"{hash_file(folder / WEIGHTS)}-{frozen_layers}"  # what upper layers belong on
        self._published = {name: weight.clone() for name, weight in self.upper.state_dict().items()}
        for parameter in backbone.model.parameters():
            parameter.requires_grad = False
        for parameter in self.upper.parameters():
            parameter.requires_grad = True

    def lower_states(self, texts: Sequence[str]) -> list[Tensor]:
        """Return what the lower half makes of each text: [T, D], float32; longer texts are cut."""
        import torch

        if not texts:
            return []
        ids = self._tokenizer(list(texts), truncation=True, max_length=self._max_tokens)["input_ids"]
        states: dict[int, Tensor] = {}
        with torch.no_grad():
            for rows in batches_by_length([len(one) for one in ids]):
                tokens, mask = _pad([torch.tensor(ids[row]) for row in rows])
                hidden = _through(self._lower, self._embed(tokens), mask)
                states.update({row: hidden[place, : len(ids[row])].clone() for place, row in enumerate(rows)})
        return [states[row] for row in range(len(texts))]

    def encode_states(self, states: Sequence[Tensor]) -> Tensor:
        """Return unit vectors [B, D] of one batch of lower states, with gradients where they are on."""
        import torch

        hidden, mask = _pad(states)
        return torch.nn.functional.normalize(mean_over_tokens(_through(self.upper, hidden, mask), mask), dim=1)

    def encode_all(self, states: Sequence[Tensor]) -> Tensor:
        """Return unit vectors [B, D] of any number of lower states, without gradients and dropout."""
        import torch

        result = torch.zeros((len(states), self.width))
        was_training = self.upper.training
        self.upper.eval()
        with torch.no_grad():
            for rows in batches_by_length([len(one) for one in states]):
                result[rows] = self.encode_states([states[row] for row in rows])
        self.upper.train(was_training)
        return result

    def publish(self) -> None:
        """Make the upper layers as published again."""
        self.upper.load_state_dict(self._published)

    def encode_published(self, texts: Sequence[str]) -> Floats:
        """Return unit vectors [B, D] of texts by the model as published; the upper layers are as such afterwards."""
        self.publish()
        vectors: Floats = self.encode_all(self.lower_states(texts)).numpy()
        return vectors


def batches_by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield all row numbers, those of like length together, so that little is padded."""
    order = sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
    for start in range(0, len(order), BATCH_SIZE):
        yield order[start : start + BATCH_SIZE]


def _pad(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return rows [T, ...] as one tensor [B, T, ...] and the mask [B, T] of what is not padding."""
    import torch

    padded = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return padded, (torch.arange(padded.shape[1]) < lengths.unsqueeze(1)).long()


def _through(layers: Any, hidden: Tensor, mask: Tensor) -> Tensor:
    """Pass states [B, T, D] through BERT layers."""
    attention = (1.0 - mask.to(hidden.dtype))[:, None, None, :] * MASKED
    for layer in layers:
        found = layer(hidden, attention)
        hidden = found[0] if isinstance(found, tuple) else found
    return hidden
