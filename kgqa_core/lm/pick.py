"""Which tokens follow: the best ones, or one drawn, among all tokens or among those that a constraint allows.

Shape letters here: B rows, V vocabulary, A most allowed tokens of a row, C candidates per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kgqa_core.lm.types import Decoding

if TYPE_CHECKING:
    from torch import Tensor

Candidates = list[tuple[int, float]]
"""(token, its log-probability under the model itself), best first; empty where nothing is allowed."""
Legal = Sequence[Sequence[int] | None] | None
"""Per row the allowed tokens, None: all; None in place of the rows: no row is constrained."""

USUAL_NUCLEUS = 64  # tokens


def pick_best(logits: Tensor, count: int, legal: Legal) -> list[Candidates]:
    """Return the ``count`` most probable tokens of each row of logits [B, V]."""
    scores, tokens, norm = _narrow(logits, legal)
    best, places = scores.topk(min(count, scores.shape[1]), dim=1)  # [B, C]
    values = best - norm
    found = places if tokens is None else tokens.gather(1, places)
    return [
        [(token, value) for token, value in zip(row, row_values, strict=True) if value > float("-inf")]
        for row, row_values in zip(found.tolist(), values.tolist(), strict=True)
    ]


def pick_sample(logits: Tensor, draws: Sequence[float], decoding: Decoding, legal: Legal) -> list[Candidates]:
    """Return one token per row of logits [B, V], by inverting the cumulative distribution at ``draws`` in [0, 1).

    The distribution is the model's at ``temperature``, of its nucleus of mass ``top_p``, among the allowed tokens.
    """
    import torch

    scores, tokens, norm = _narrow(logits, legal)
    probs = torch.softmax(scores / decoding.temperature, dim=1).nan_to_num(0)  # rows where nothing is allowed
    if decoding.top_p < 1:
        probs = probs.where(probs >= _least_of_nucleus(probs, decoding.top_p), 0)
    sums = probs.cumsum(dim=1, dtype=torch.float64)  # by token id: near ties stay where they are in any batch
    total = sums[:, -1:].contiguous()
    points = torch.tensor(draws, dtype=sums.dtype, device=sums.device)[:, None] * total
    places = torch.searchsorted(sums, points, right=True)
    last = torch.searchsorted(sums, total)  # rounding must not pass the last possible one
    places = torch.minimum(places, last)
    values = (scores.gather(1, places) - norm)[:, 0].tolist()
    found = (places if tokens is None else tokens.gather(1, places))[:, 0].tolist()
    return [[(token, value)] if value > float("-inf") else [] for token, value in zip(found, values, strict=True)]


def _least_of_nucleus(probs: Tensor, mass: float) -> Tensor:
    """Return each row's least probability [B, 1] among the fewest tokens that have ``mass`` together."""
    few = min(USUAL_NUCLEUS, probs.shape[1])
    ranked = probs.topk(few, dim=1).values  # sorting all takes ten times as long
    if few < probs.shape[1] and bool((ranked.sum(dim=1) < mass).any()):
        ranked = probs.sort(dim=1, descending=True).values
    kept = ranked.cumsum(dim=1) - ranked < mass  # the first always
    return ranked.where(kept, 1).amin(dim=1, keepdim=True)


def _narrow(logits: Tensor, legal: Legal) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return scores, float32, of all tokens [B, V] and None, or of the allowed ones and their ids [B, A].

    The third is what to take off a score [B, 1] to get the token's log-probability under the model itself.
    """
    import torch

    logits = logits.float()
    norm = logits.logsumexp(dim=1, keepdim=True)
    if legal is None:
        return logits, None, norm
    lists, numbers = _distinct(legal, logits.shape[1])
    longest = max(1, *map(len, lists))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in lists], device=logits.device)[numbers]
    counts = torch.tensor([len(row) for row in lists], device=logits.device)[numbers]
    hidden = torch.arange(longest, device=logits.device) >= counts[:, None]
    return logits.gather(1, ids).masked_fill(hidden, float("-inf")), ids, norm


def _distinct(legal: Sequence[Sequence[int] | None], size: int) -> tuple[list[Sequence[int]], list[int]]:
    """Return the lists of tokens and each row's number among them: rows in the same state share one list."""
    lists: list[Sequence[int]] = []
    known: dict[int, int] = {}
    numbers = []
    for row in legal:
        if id(row) not in known:
            known[id(row)] = len(lists)
            lists.append(range(size) if row is None else row)
        numbers.append(known[id(row)])
    return lists, numbers
