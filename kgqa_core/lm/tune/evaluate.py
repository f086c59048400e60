"""The loss per instruction on dev."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from kgqa_core.lm.tune.batches import Int
from kgqa_core.lm.tune.collate import collate
from kgqa_core.lm.tune.loop import target_nll
from kgqa_core.lm.tune.tokens import Tokens


def dev_sample(tokens: Tokens, per_instruction: int, seed: int) -> Int:
    """Return the dev examples that are judged, of like length together."""
    generator = np.random.default_rng([seed, 7])
    chosen = [generator.permutation(tokens.of(name, dev=True))[:per_instruction] for name in tokens.names]
    examples = np.concatenate(chosen)
    return examples[np.argsort(tokens.lengths[examples], kind="stable")]


@torch.no_grad()
def dev_sums(
    model: Any, tokens: Tokens, examples: Int, *, batch_size: int, pad: int, precision: torch.dtype
) -> torch.Tensor:
    """Return per instruction the summed negative log-likelihood and the number of target tokens, [I, 2] float64."""
    model.eval()
    device = next(model.parameters()).device
    sums = torch.zeros(len(tokens.names), 2, dtype=torch.float64)
    for batch in _batches(examples, batch_size):
        inputs = collate(tokens, batch.tolist(), [1.0] * batch.size, pad=pad)
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        nll = (target_nll(model, inputs, precision) * inputs["weights"]).sum(dim=1).double().cpu()
        kinds = torch.from_numpy(tokens.instruction[batch].astype(np.int64))
        sums[:, 0].index_add_(0, kinds, nll)
        sums[:, 1].index_add_(0, kinds, torch.from_numpy(tokens.num_targets[batch]).double())
    return sums


def losses_of(tokens: Tokens, sums: torch.Tensor) -> dict[str, float]:
    """Return the mean per target token of the instructions that have dev examples."""
    rows = zip(tokens.names, sums.tolist(), strict=True)
    return {name: total / count for name, (total, count) in rows if count}


def _batches(examples: Int, batch_size: int) -> Iterator[Int]:
    for first in range(0, examples.size, batch_size):
        yield examples[first : first + batch_size]
