"""Training a small causal model from nothing: plain, on one core, loss on the answers only.

Shape letters here: B examples, T tokens, K target tokens of a batch, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from kgqa_core.lm.embedded.settings import EmbeddedSettings


@dataclass(frozen=True, slots=True)
class Encoded:
    """Distinct examples as token numbers."""

    prompts: Sequence[tuple[int, ...]]
    targets: Sequence[tuple[int, ...]]  # end token included
    weights: NDArray[np.float64]  # [N]


@dataclass(frozen=True, slots=True)
class Trained:
    """What training did."""

    losses: tuple[float, ...]  # per step: mean over examples of the natural log-loss of a whole target
    num_tokens: int  # read, padding included
    flops: float  # of matrix products, forward and backward


def draw_chances(data: Encoded, flatten: float) -> NDArray[np.float64]:
    """Return [N]: how probable it is that an example is drawn.

    A prompt's share is its weight to the power ``flatten``; its targets share that by their weights, so that what is
    learned about a prompt is what the data say of it.
    """
    number = {prompt: at for at, prompt in enumerate(dict.fromkeys(data.prompts))}
    prompt_of = np.array([number[prompt] for prompt in data.prompts])
    totals = np.bincount(prompt_of, weights=data.weights)
    chances = data.weights * totals[prompt_of] ** (flatten - 1)
    return np.asarray(chances / chances.sum())


def train(
    model: Any,
    data: Encoded,
    settings: EmbeddedSettings,
    *,
    pad: int,
    progress: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> Trained:
    """Train ``model`` in place: AdamW, a warm-up, a cosine to zero. The same data and seed give the same weights."""
    draws = np.random.default_rng(settings.seed)
    chances = draw_chances(data, settings.flatten)
    decayed = [one for one in model.parameters() if one.ndim > 1]
    plain = [one for one in model.parameters() if one.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), fused=True)
    inner = sum(
        one.numel() for name, one in model.named_parameters() if "embed_tokens" not in name and "lm_head" not in name
    )
    head = model.get_output_embeddings().weight.numel()
    losses, num_tokens, flops = [], 0, 0.0
    model.train()
    for step in range(settings.steps):
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * _schedule(step, settings)
        drawn, counts = np.unique(draws.choice(len(chances), settings.batch_size, p=chances), return_counts=True)
        loss, read, scored = batch_loss(model, data, drawn, counts / settings.batch_size, pad)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_norm)
        optimiser.step()
        losses.append(loss.item())
        num_tokens += read
        flops += 6.0 * (inner * read + head * scored)
        progress(step + 1, settings.steps, losses[-1])
    model.eval()
    return Trained(tuple(losses), num_tokens, flops)


def _schedule(step: int, settings: EmbeddedSettings) -> float:
    """Return the learning rate's share of its peak."""
    warm = max(1, round(settings.warmup * settings.steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, settings.steps - warm)))


def batch_loss(
    model: Any, data: Encoded, rows: NDArray[np.int64], shares: NDArray[np.float64], pad: int
) -> tuple[Tensor, int, int]:
    """Return the loss, and how many tokens were read and scored.

    Padding stands on the right, where a causal model never looks back at it, so no mask is needed; the head is applied
    where a target token is predicted, and nowhere else.
    """
    texts = [(*data.prompts[row], *data.targets[row]) for row in rows]
    longest = max(map(len, texts))
    device = model.device
    tokens = torch.full((len(texts), longest), pad)  # [B, T]
    at_row: list[int] = []
    at_token: list[int] = []
    weights: list[float] = []
    for place, (row, text, share) in enumerate(zip(rows, texts, shares, strict=True)):
        tokens[place, : len(text)] = torch.tensor(text)
        start = len(data.prompts[row])
        at_row += [place] * (len(text) - start)
        at_token += range(start, len(text))
        weights += [share] * (len(text) - start)
    tokens = tokens.to(device)
    where = torch.tensor(at_row, device=device), torch.tensor(at_token, device=device)
    states = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state  # [B, T, D]
    logits = model.get_output_embeddings()(states[where[0], where[1] - 1])  # [K, V]
    each = cross_entropy(logits.float(), tokens[where], reduction="none")
    total = (each * torch.tensor(weights, dtype=each.dtype, device=device)).sum()
    return total, tokens.numel(), len(weights)
