"""Keys and values with room to grow: a token is written in place where transformers' own cache copies all before it.

Imports transformers: whoever needs it imports it late.

Shape letters here: B rows, H heads, T tokens, D width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.cache_utils import DynamicLayer

ROOM = 32  # tokens for which a layer makes room at a time, at least


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Full attention's keys and values, the first ``length`` tokens of buffers [B, H, T, D]."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the states [B, H, T, D] of new tokens; return those of all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if self.keys.dim() != 4 or end > self.keys.shape[-2]:
            self.keys = self._with_room(self.keys, key_states, end)
            self.values = self._with_room(self.values, value_states, end)
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _with_room(self, old: Tensor, new: Tensor, end: int) -> Tensor:
        grown = new.new_empty((*new.shape[:2], end + max(ROOM, end // 4), new.shape[3]))
        if self.length:
            grown[:, :, : self.length] = old[:, :, : self.length]
        return grown

    def get_seq_length(self) -> int:
        """Return the number of tokens written."""
        return self.length

    def move(self, sources: Tensor, targets: Tensor, start: int) -> None:
        """Let rows ``targets`` hold what rows ``sources`` hold from token ``start`` on."""
        for states in (self.keys, self.values):
            states[targets, :, start : self.length] = states[sources, :, start : self.length]

    def chosen(self, rows: Tensor) -> GrowingLayer:
        """Return a layer of these rows, with room of its own."""
        layer = GrowingLayer()
        layer.lazy_initialization(self.keys, self.values)
        if self.length:
            layer.update(self.keys[rows, :, : self.length], self.values[rows, :, : self.length])
        return layer


def make_cache(config: Any) -> Any:
    """Return an empty cache for a model; layers that are not full attention keep transformers' own kind."""
    cache = transformers.DynamicCache(config=config)
    if cache.layers:
        cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def choose_rows(cache: Any, rows: Tensor) -> Any:
    """Return a cache of ``rows``, repeated or left out; the given one can be read on from as before."""
    import copy

    chosen = copy.copy(cache)
    chosen.layers = []
    for layer in cache.layers:
        if isinstance(layer, GrowingLayer):
            chosen.layers.append(layer.chosen(rows))
        else:
            own = copy.copy(layer)  # transformers' layers replace their tensors, they do not write into them
            own.reorder_cache(rows)
            chosen.layers.append(own)
    return chosen


def move_rows(cache: Any, sources: Tensor, targets: Tensor, *, start: int, num_rows: int) -> None:
    """Let rows ``targets`` hold what rows ``sources`` hold; before token ``start`` they are the same already."""
    order = torch.arange(num_rows, device=sources.device).index_copy(0, targets, sources)
    for layer in cache.layers:
        if isinstance(layer, GrowingLayer):
            layer.move(sources, targets, start)
        else:
            layer.reorder_cache(order)
