"""Examples as the tensors of one forward pass: padded to the longest, or packed several per row.

Shape letters here: B rows, T tokens of a row, K target tokens of a row. Padding is on the right, where under causal
attention no token sees it, so there is no mask to make. In a packed row each example's positions begin at 0, by which
the model keeps them apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kgqa_core.lm.tune.tokens import Tokens


def collate(
    tokens: Tokens, examples: Sequence[int], scales: Sequence[float], *, pad: int, row_length: int | None = None
) -> dict[str, Tensor]:
    """Return ``input_ids`` [B, T]; ``logits_to_keep``, ``targets``, ``weights`` [B, K]; packed ``position_ids`` [B, T].

    ``logits_to_keep`` are the positions whose logits predict ``targets``; where a row has fewer than K of them,
    ``weights`` is 0. ``scales`` are the weights of each example's target tokens. ``row_length``: pack up to so many.
    """
    lengths = [int(tokens.starts[one + 1] - tokens.starts[one]) for one in examples]
    rows = [[one] for one in range(len(examples))] if row_length is None else pack(lengths, row_length)
    width = max(sum(lengths[one] for one in row) for row in rows)
    targets = [int(lengths[one] - tokens.num_prompt[example]) for one, example in enumerate(examples)]
    depth = max(sum(targets[one] for one in row) for row in rows)
    input_ids = np.full((len(rows), width), pad, np.int64)
    positions = np.zeros((len(rows), width), np.int64)
    kept, wanted = np.zeros((len(rows), depth), np.int64), np.zeros((len(rows), depth), np.int64)
    weights = np.zeros((len(rows), depth), np.float32)
    for row, members in enumerate(rows):
        place = filled = 0
        for one in members:
            start, length, many = tokens.starts[examples[one]], lengths[one], targets[one]
            text = tokens.tokens[start : start + length]
            input_ids[row, place : place + length] = text
            positions[row, place : place + length] = np.arange(length)
            place += length
            kept[row, filled : filled + many] = np.arange(place - many - 1, place - 1)
            wanted[row, filled : filled + many] = text[length - many :]
            weights[row, filled : filled + many] = scales[one]
            filled += many
        positions[row, place:] = np.arange(width - place)  # padding is an example of its own
    arrays = {"input_ids": input_ids, "logits_to_keep": kept, "targets": wanted, "weights": weights}
    if row_length is not None:
        arrays["position_ids"] = positions
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def pack(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Return which examples share a row of up to ``row_length`` tokens: the longest first, into the first with room."""
    rows: list[list[int]] = []
    room: list[int] = []
    for one in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        for row, left in enumerate(room):
            if lengths[one] <= left:
                rows[row].append(one)
                room[row] -= lengths[one]
                break
        else:
            rows.append([one])
            room.append(row_length - lengths[one])
    return rows
