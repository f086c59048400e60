"""Greedy search, beam search and sampling over a KV cache, each prompt under its own constraint.

Our own loop because it reads a prompt once whatever the number of beams, moves no more of the cache than branched,
drops what ended, looks only at allowed tokens, and draws samples that depend on nothing but the prompt.
benchmarks/lm_generate.py compares it with transformers' ``generate``.

Shape letters here: B rows, each with one live branch or idle; V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kgqa_core.lm.pick import Candidates, pick_best, pick_sample
from kgqa_core.lm.searches import Branch, Ending, Search
from kgqa_core.lm.step import Cached, read_prompts
from kgqa_core.lm.types import Decoding, Generation

if TYPE_CHECKING:
    from torch import Tensor

Allowed = Callable[[int, tuple[int, ...]], Sequence[int] | None]
"""(row of the prompt, tokens of its answer so far) -> the tokens that may follow. Empty: a dead end; None: all."""
MOST_IDLE = 0.25  # of the rows, before the cache is copied without them


def generate_batch(
    model: Any, prompts: Sequence[Sequence[int]], decoding: Decoding, *, ending: Ending, allowed: Allowed | None = None
) -> list[list[Generation]]:
    """Return the texts of one batch of prompts (their tokens), best first; samples in order of drawing.

    Where a constraint allows fewer texts than were asked for, the rest are empty, unfinished and without log_prob.
    """
    import torch

    with torch.inference_mode():
        cached, logits = read_prompts(model, prompts)
        searches = _start(prompts, decoding)
        if len(searches) > len(prompts):  # samples share a prompt's row until here
            rows = [search.prompt for search in searches]
            cached, logits = cached.select(rows), logits[rows]
        for step in range(decoding.max_new_tokens):
            candidates = _candidates(searches, logits, decoding, len(ending.tokens), allowed)
            for search in searches:
                if search.live:
                    search.advance([candidates[branch.row] for branch in search.live], ending)
            if step == decoding.max_new_tokens - 1 or not any(search.live for search in searches):
                break
            cached = _make_rows(cached, searches)
            last = [0] * cached.num_rows
            for search in searches:
                for branch in search.live:
                    last[branch.row] = branch.tokens[-1]
            logits = cached.read(torch.tensor(last, device=logits.device)[:, None])
    results: list[list[Generation]] = [[] for _ in prompts]
    for search in searches:
        results[search.prompt] += search.texts(ending)
    missing = Generation("", finished=False)
    return [[*texts, *[missing] * (decoding.num_returns - len(texts))] for texts in results]


def _start(prompts: Sequence[Sequence[int]], decoding: Decoding) -> list[Search]:
    """Return a search per prompt, or per sample of it; each has one row."""
    if decoding.method != "sample":
        width, wanted = decoding.num_beams, decoding.num_returns
        return [Search(row, width, wanted, [Branch((), 0.0, row)], [row]) for row in range(len(prompts))]
    searches: list[Search] = []
    for row, prompt in enumerate(prompts):
        digest = hashlib.sha256(np.asarray(prompt, dtype=np.int64).tobytes()).digest()
        own = int.from_bytes(digest[:8], "little")
        for sample in range(decoding.num_returns):
            draws = np.random.default_rng([decoding.seed, own, sample])
            place = len(searches)
            searches.append(Search(row, 1, 1, [Branch((), 0.0, place)], [place], draws=draws))
    return searches


def _candidates(
    searches: Sequence[Search], logits: Tensor, decoding: Decoding, num_ends: int, allowed: Allowed | None
) -> list[Candidates]:
    """Return per row what may follow its branch; logits are [B, V]."""
    num_rows = logits.shape[0]
    legal: list[Sequence[int] | None] | None = None
    if allowed is not None:
        legal = [()] * num_rows  # of idle rows: nothing
        for search in searches:
            for branch in search.live:
                legal[branch.row] = allowed(search.prompt, branch.tokens)
    if decoding.method != "sample":
        return pick_best(logits, decoding.num_beams + num_ends, legal)
    draws = [0.0] * num_rows
    for search in searches:
        if search.live and search.draws is not None:
            draws[search.live[0].row] = search.draws.random()
    return pick_sample(logits, draws, decoding, legal)


def _make_rows(cached: Cached, searches: Sequence[Search]) -> Cached:
    """Return a cache that has a row for each live branch, and set the branches' rows."""
    num_live = sum(len(search.live) for search in searches)
    if num_live >= (1 - MOST_IDLE) * cached.num_rows and all(len(s.live) <= len(s.rows) for s in searches):
        cached.move([move for search in searches for move in search.settle()])
        return cached
    chosen = cached.select([branch.row for search in searches for branch in search.live])
    start = 0
    for search in searches:
        search.rows = list(range(start, start + len(search.live)))
        search.live = [replace(branch, row=row) for branch, row in zip(search.live, search.rows, strict=True)]
        start += len(search.live)
    return chosen
