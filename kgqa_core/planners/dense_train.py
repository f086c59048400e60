"""Training the dense planner: questions towards their paths, and towards questions that have the same paths.

Two losses, both over everything and not over a batch alone. Of the paths: -log of the probability that the question's
paths have together, a softmax over all training paths (a hit is *any* of them, so their mass may lie where it is
easiest). Of the neighbours: the same for the vote of all other training questions, whose vectors are kept in a bank
that each batch renews. A path's vector is its text's, mapped, plus a free part of its own.

Shape letters: B questions of a batch, n training questions, P paths, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from kgqa_core.planners.dense_encoder import SplitEncoder
from kgqa_core.planners.dense_settings import DenseSettings

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
    settings: DenseSettings,
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


def count_steps(num_questions: int, settings: DenseSettings) -> int:
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
