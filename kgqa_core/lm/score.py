"""Log-likelihoods of given answers, each prompt read once and its cache shared by all its options.

Shape letters here: B rows (options), T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kgqa_core.lm.memory import Batcher
from kgqa_core.lm.step import Cached, read_prompts

Tokens = Sequence[int]


def score_batch(
    model: Any, prompts: Sequence[Tokens], options: Sequence[Sequence[Tokens]], batcher: Batcher
) -> list[list[float]]:
    """Return the log-likelihood of each prompt's options, given as tokens with the end token last."""
    import torch

    with torch.inference_mode():
        cached, logits = read_prompts(model, prompts)
        first = torch.log_softmax(logits.float(), dim=1)  # [prompts, V]
        pairs = [(row, option) for row, own in enumerate(options) for option in own]
        heads = first[[row for row, _ in pairs], [option[0] for _, option in pairs]].tolist() if pairs else []
        tails = batcher.map(pairs, [len(option) for _, option in pairs], lambda batch: _score_rest(cached, batch))
    sums = iter(head + tail for head, tail in zip(heads, tails, strict=True))
    return [[next(sums) for _ in own] for own in options]


def _score_rest(cached: Cached, pairs: Sequence[tuple[int, Tokens]]) -> list[float]:
    """Return the log-likelihood of what follows each option's first token."""
    import torch

    longest = max(len(option) for _, option in pairs) - 1
    if longest == 0:
        return [0.0] * len(pairs)
    tokens = torch.zeros((len(pairs), longest), dtype=torch.int64)
    targets = torch.full_like(tokens, -1)
    for place, (_, option) in enumerate(pairs):
        tokens[place, : len(option) - 1] = torch.tensor(option[:-1])
        targets[place, : len(option) - 1] = torch.tensor(option[1:])
    tokens, targets = tokens.to(cached.mask.device), targets.to(cached.mask.device)
    real = targets >= 0
    branch = cached.select([row for row, _ in pairs])
    logits = branch.read(tokens, real.long(), last=False).float()  # [B, T, V]
    chosen = logits.gather(2, targets.clamp(min=0)[:, :, None])[:, :, 0] - logits.logsumexp(dim=2)
    return chosen.masked_fill(~real, 0.0).sum(dim=1, dtype=torch.float64).tolist()
