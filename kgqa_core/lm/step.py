"""One forward pass after another over a growing KV cache, for rows that branch and end.

Shape letters here: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Cached:
    """What the model has read of each row."""

    model: Any
    states: Any  # transformers' cache of keys and values
    mask: Tensor  # int64 [B, T]: 0 at padding
    num_prompt: int  # tokens of the prompts, padding included
    accepted: frozenset[str]  # arguments that the model takes

    @property
    def num_rows(self) -> int:
        """Return B."""
        return int(self.mask.shape[0])

    def select(self, rows: Sequence[int]) -> Cached:
        """Return the cache of ``rows``: repeated, reordered, left out. This one can be read on from as before."""
        import torch

        from kgqa_core.lm.kv_cache import choose_rows

        index = torch.tensor(rows, dtype=torch.int64, device=self.mask.device)
        states = choose_rows(self.states, index)
        return Cached(self.model, states, self.mask[index], self.num_prompt, self.accepted)

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Let each target row of (source, target) go on from what its source has read; both are of one prompt."""
        import torch

        from kgqa_core.lm.kv_cache import move_rows

        if moves:
            sources, targets = torch.tensor(moves, dtype=torch.int64, device=self.mask.device).T
            move_rows(self.states, sources, targets, start=self.num_prompt, num_rows=self.num_rows)

    def read(self, tokens: Tensor, mask: Tensor | None = None, *, last: bool = True) -> Tensor:
        """Read ``tokens`` [B, T] (0 in ``mask``: padding) and return logits [B, V] after the last, else [B, T, V]."""
        import torch

        added = torch.ones_like(tokens) if mask is None else mask
        self.mask = torch.cat([self.mask, added], dim=1)
        options: dict[str, Any] = {}
        if "position_ids" in self.accepted:
            positions = self.mask.cumsum(dim=1)[:, -tokens.shape[1] :] - 1
            options["position_ids"] = positions.clamp(min=0)
        if last and "logits_to_keep" in self.accepted:
            options["logits_to_keep"] = 1
        output = self.model(
            input_ids=tokens,
            attention_mask=self.mask,
            past_key_values=self.states,
            use_cache=True,
            return_dict=True,
            **options,
        )
        logits: Tensor = output.logits
        return logits[:, -1] if last else logits


def read_prompts(model: Any, prompts: Sequence[Sequence[int]]) -> tuple[Cached, Tensor]:
    """Read prompts, padded on the left; return their cache and the logits [B, V] of each one's next token."""
    import torch

    from kgqa_core.lm.kv_cache import make_cache

    longest = max(map(len, prompts))
    tokens = torch.zeros((len(prompts), longest), dtype=torch.int64)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = torch.tensor(prompt, dtype=torch.int64)
        mask[row, longest - len(prompt) :] = 1
    empty = torch.zeros((len(prompts), 0), dtype=torch.int64, device=model.device)
    cached = Cached(model, make_cache(model.config), empty, longest, accepted_arguments(model))
    return cached, cached.read(tokens.to(model.device), mask.to(model.device))


def accepted_arguments(model: Any) -> frozenset[str]:
    """Return the names of the arguments that the model (or the one inside an adapter) takes."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return frozenset(inspect.signature(inner.forward).parameters)
