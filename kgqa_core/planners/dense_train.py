"""A text encoder in two halves: lower layers that stay as published, and upper layers that are trained.

What comes out of the lower half is computed once per text; a training step then costs the upper half alone. Only the
upper half is saved. Shape letters: B texts, T tokens, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kgqa_core.artifacts import hash_file
from kgqa_core.config_lm import DensePlannerSection
from kgqa_core.errors import InputError, shorten
from kgqa_core.text.transformer import (
    check_minilm_weights,
    find_minilm_folder,
    load_backbone,
    mean_over_tokens,
)

if TYPE_CHECKING:
    from torch import Tensor

BATCH_SIZE = 64
WEIGHTS = "model.safetensors"
MASKED = -1e9  # added to the attention to what is no token
Vectors = npt.NDArray[np.float32]


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

    def tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, cut to the most there may be."""
        if not texts:
            return []
        ids: list[list[int]] = self._tokenizer(list(texts), truncation=True, max_length=self._max_tokens)["input_ids"]
        return ids

    def lower_states(self, texts: Sequence[str]) -> list[Tensor]:
        """Return what the lower half makes of each text: [T, D], float32."""
        import torch

        ids, states = self.tokenise(texts), {}
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

    def encode_published(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors [B, D] of texts by the model as published; the upper layers are as such afterwards."""
        self.publish()
        vectors: Vectors = self.encode_all(self.lower_states(texts)).numpy()
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


# ------ Training the dense planner: questions towards their paths, and towards questions that have ...


if TYPE_CHECKING:
    from torch import Tensor

    Parts = dict[str, Tensor]

Progress = Callable[[int, int, float], None]
"""(steps done, steps in all, loss of the last one)"""
LENGTHS_SORTED = 8  # batches that are drawn together and sorted by length
MAX_NORM = 1.0  # of the encoder's gradient
LAST_RATE = 0.02  # share of the learning rate that the last steps have
TINY = 1e-6


def train_vectors(
    encoder: SplitEncoder,
    states: Sequence[Tensor],
    path_texts: Tensor,
    targets: Any,
    *,
    settings: DensePlannerSection,
    seed: int,
    progress: Progress,
) -> Parts:
    """Train the upper layers of ``encoder`` in place, and the path vectors.

    Args:
        encoder: with its upper layers as published.
        states: n questions' lower states.
        path_texts: [P, D] unit vectors of the paths' texts.
        targets: scipy CSR matrix [n, P], 1 where a question has a path.
        settings: see there.
        seed: of the order, and of dropout.
        progress: told after every step.

    Returns:
        map [D, D], free [P, D] and bias [P]: what ``path_vectors`` and scores are made of.
    """
    import torch

    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    for module in encoder.upper.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = settings.dropout
        if hasattr(module, "dropout_prob"):  # of the attention
            module.dropout_prob = settings.dropout
    num_paths, width = path_texts.shape
    parts = {
        "map": torch.eye(width, requires_grad=True),
        "free": torch.zeros((num_paths, width), requires_grad=True),
        "bias": torch.zeros(num_paths, requires_grad=True),
    }
    upper = list(encoder.upper.parameters())
    optimiser = torch.optim.AdamW(
        [
            {"params": upper, "lr": settings.learning_rate, "weight_decay": settings.weight_decay},
            {"params": [parts["map"]], "lr": settings.learning_rate, "weight_decay": 0.0},
            {"params": [parts["free"], parts["bias"]], "lr": settings.path_learning_rate, "weight_decay": 0.0},
        ]
    )
    num_steps = count_steps(len(states), settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate(step, num_steps, settings.warmup))
    bank = encoder.encode_all(states) if settings.neighbour_loss else None
    encoder.upper.train()
    batches = _batches([len(one) for one in states], settings.batch_size, random)
    for step, rows in enumerate(islice(batches, num_steps)):
        vectors = encoder.encode_states([states[row] for row in rows])  # [B, D]
        right = torch.from_numpy(targets[rows].toarray())  # [B, P]
        scores = settings.scale * vectors @ path_vectors(path_texts, parts).T + parts["bias"]
        loss = set_loss(scores, right)
        if bank is not None:
            overlap = torch.from_numpy(_overlaps(targets, rows))  # [B, n]
            loss = loss + settings.neighbour_loss * neighbour_loss(
                vectors @ bank.T / settings.neighbour_temperature, overlap, rows
            )
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(upper, MAX_NORM)
        optimiser.step()
        schedule.step()
        if bank is not None:
            bank = bank.index_copy(0, torch.as_tensor(rows), vectors.detach())
        progress(step + 1, num_steps, float(loss.detach()))
    encoder.upper.eval()
    return {name: part.detach() for name, part in parts.items()}


def path_vectors(path_texts: Tensor, parts: Parts) -> Tensor:
    """Return unit vectors [P, D] of the training paths."""
    import torch

    return torch.nn.functional.normalize(path_texts @ parts["map"] + parts["free"], dim=1)


def set_loss(scores: Tensor, right: Tensor) -> Tensor:
    """Return the mean over the batch of -log P(any right column), P the softmax of ``scores`` [B, P]."""
    import torch

    log_probs = torch.log_softmax(scores, dim=1)
    return -torch.logsumexp(log_probs.masked_fill(right == 0, -math.inf), dim=1).mean()


def neighbour_loss(cosines: Tensor, overlap: Tensor, rows: Sequence[int]) -> Tensor:
    """Return the mean of -log of what the other questions' votes give to right paths.

    Args:
        cosines: [B, n], divided by the temperature; a question has no vote on itself.
        overlap: [B, n], the share of each voter's paths that are right.
        rows: the batch's places among the n.
    """
    import torch

    own = torch.zeros_like(cosines, dtype=torch.bool)
    own[torch.arange(len(rows)), torch.as_tensor(rows)] = True
    weights = torch.softmax(cosines.masked_fill(own, -math.inf), dim=1)
    return -torch.log((weights * overlap).sum(dim=1) + TINY).mean()


def count_steps(num_questions: int, settings: DensePlannerSection) -> int:
    """Return the optimiser steps of a training."""
    steps = math.ceil(settings.epochs * math.ceil(num_questions / settings.batch_size))
    return steps if settings.max_steps is None else min(steps, settings.max_steps)


def _rate(step: int, num_steps: int, warmup: float) -> float:
    """Return the share of the learning rate at a step: up, then linearly down."""
    rising = (step + 1) / max(1.0, warmup * num_steps)
    return min(1.0, rising) * max(LAST_RATE, 1 - step / num_steps)


def _batches(lengths: Sequence[int], size: int, random: np.random.Generator) -> Iterator[list[int]]:
    """Yield rows for ever: each question once per epoch, those of like length together."""
    while True:
        order = random.permutation(len(lengths))
        batches = []
        for start in range(0, len(order), size * LENGTHS_SORTED):
            rows = sorted(order[start : start + size * LENGTHS_SORTED].tolist(), key=lambda row: lengths[row])
            batches += [rows[first : first + size] for first in range(0, len(rows), size)]
        for place in random.permutation(len(batches)):
            yield batches[place]


def _overlaps(targets: Any, rows: Sequence[int]) -> Any:
    """Return [B, n]: the share of each training question's paths that a question of the batch has too."""
    counts = np.maximum(np.asarray(targets.sum(axis=1)).ravel(), 1)
    return ((targets[rows] @ targets.T).toarray() / counts).astype(np.float32)
