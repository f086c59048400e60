"""Greedy search, beam search and sampling over a KV cache, each prompt under its own constraint.

Our own loop because it reads a prompt once whatever the number of beams, drops finished rows, looks only at allowed
tokens, and draws samples that depend on nothing but the prompt. benchmarks/lm_generate.py compares it with
transformers' ``generate``.

Shape letters here: B live branches, V vocabulary, C candidates per branch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kgqa_core.lm.chat import decode
from kgqa_core.lm.pick import Candidates, pick_best, pick_sample
from kgqa_core.lm.step import read_prompts
from kgqa_core.lm.types import Decoding, Generation

if TYPE_CHECKING:
    from torch import Tensor

Allowed = Callable[[int, Sequence[int]], list[int]]
"""(row of the prompt, tokens of its answer so far) -> the tokens that may follow; empty: a dead end."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A text so far."""

    tokens: tuple[int, ...]
    log_prob: float  # of all tokens, under the model itself: neither constraint nor temperature changes it
    row: int  # whose cache it goes on from


@dataclass
class Search:
    """One prompt's beam, or one sample of it."""

    prompt: int  # row
    width: int  # branches that live on
    wanted: int  # texts to return
    live: list[Branch]
    done: list[Branch] = field(default_factory=list)  # ended, best first, at most `width`
    draws: np.random.Generator | None = None  # of a sample


@dataclass(frozen=True, slots=True)
class Ending:
    """How a text ends."""

    tokenizer: Any
    tokens: frozenset[int]
    stop: tuple[str, ...]

    def stopped(self, tokens: Sequence[int]) -> bool:
        """Say whether the text holds a stop string since its last token."""
        if not self.stop:
            return False
        longest = max(len(stop.encode()) for stop in self.stop)
        tail = decode(
            self.tokenizer, tokens[-longest - 4 :]
        )  # a token is at least a byte of text, but for special ones
        return any(stop in tail for stop in self.stop) and self.cut(self.text(tokens)) is not None

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text without the end token."""
        ended = bool(tokens) and tokens[-1] in self.tokens
        return decode(self.tokenizer, tokens[:-1] if ended else tokens)

    def cut(self, text: str) -> str | None:
        """Return the text before the first stop string, or None where there is none."""
        places = [place for stop in self.stop if (place := text.find(stop)) >= 0]
        return text[: min(places)] if places else None


def generate_batch(
    model: Any, prompts: Sequence[Sequence[int]], decoding: Decoding, *, ending: Ending, allowed: Allowed | None = None
) -> list[list[Generation]]:
    """Return the texts of one batch of prompts (their tokens), best first; samples in order of drawing.

    A constraint that allows fewer texts than were asked for gives fewer, one that allows none an unfinished empty one.
    """
    import torch

    with torch.inference_mode():
        cached, logits = read_prompts(model, prompts)
        searches = _start(prompts, decoding)
        logits = logits[torch.tensor([search.prompt for search in searches], device=logits.device)]
        for step in range(decoding.max_new_tokens):
            for search, candidates in _candidates(searches, logits, decoding, ending, allowed):
                _advance(search, candidates, ending)
            live = [branch for search in searches for branch in search.live]
            if not live or step == decoding.max_new_tokens - 1:
                break
            cached = cached.select([branch.row for branch in live])
            logits = cached.read(torch.tensor([[branch.tokens[-1]] for branch in live], device=logits.device))
            _number_rows(searches)
    results: list[list[Generation]] = [[] for _ in prompts]
    for search in searches:
        results[search.prompt] += _finish(search, ending)
    return [texts or [Generation("", finished=False)] for texts in results]


def _start(prompts: Sequence[Sequence[int]], decoding: Decoding) -> list[Search]:
    if decoding.method != "sample":
        return [
            Search(row, decoding.num_beams, decoding.num_returns, [Branch((), 0.0, row)]) for row in range(len(prompts))
        ]
    searches = []
    for row, prompt in enumerate(prompts):
        digest = hashlib.sha256(np.asarray(prompt, dtype=np.int64).tobytes()).digest()
        own = int.from_bytes(digest[:8], "little")
        for sample in range(decoding.num_returns):
            draws = np.random.default_rng([decoding.seed, own, sample])
            searches.append(Search(row, 1, 1, [Branch((), 0.0, row)], draws=draws))
    return searches


def _candidates(
    searches: Sequence[Search], logits: Tensor, decoding: Decoding, ending: Ending, allowed: Allowed | None
) -> list[tuple[Search, list[Candidates]]]:
    """Return, for each search that is not over, what may follow each of its branches; logits are [B, V]."""
    going = [search for search in searches if search.live]
    legal = None
    if allowed is not None:
        legal = [allowed(search.prompt, branch.tokens) for search in going for branch in search.live]
    if decoding.method == "sample":
        draws = [search.draws.random() for search in going if search.draws is not None]
        picked = pick_sample(logits, draws, decoding, legal)
    else:
        width = decoding.num_beams
        picked = pick_best(logits, width + len(ending.tokens), legal)
    rows = iter(picked)
    return [(search, [next(rows) for _ in search.live]) for search in going]


def _advance(search: Search, candidates: Sequence[Candidates], ending: Ending) -> None:
    """Let the best candidates live on, and see which texts ended.

    Only an end among the first ``width`` candidates counts, as in every classical beam search. The search is over once
    no live branch can beat the texts to return: log-probabilities only fall.
    """
    ranked = sorted(
        (-(branch.log_prob + log_prob), order, token)
        for order, (branch, following) in enumerate(zip(search.live, candidates, strict=True))
        for token, log_prob in following
    )
    parents, search.live = search.live, []
    for rank, (cost, order, token) in enumerate(ranked):
        branch = Branch((*parents[order].tokens, token), -cost, parents[order].row)
        if token in ending.tokens or ending.stopped(branch.tokens):
            if rank < search.width:
                search.done.append(branch)
        elif len(search.live) < search.width:
            search.live.append(branch)
        if rank >= search.width - 1 and len(search.live) == search.width:
            break
    search.done = sorted(search.done, key=lambda branch: -branch.log_prob)[: search.width]
    enough = len(search.done) >= search.wanted
    if enough and search.live and search.done[search.wanted - 1].log_prob >= search.live[0].log_prob:
        search.live = []


def _number_rows(searches: Sequence[Search]) -> None:
    row = 0
    for search in searches:
        for place, branch in enumerate(search.live):
            search.live[place] = Branch(branch.tokens, branch.log_prob, row)
            row += 1


def _finish(search: Search, ending: Ending) -> list[Generation]:
    """Return a search's texts: those that ended, best first, then those that were cut."""
    texts = []
    for branch, finished in [*((branch, True) for branch in search.done), *((branch, False) for branch in search.live)]:
        text = ending.text(branch.tokens)
        cut = ending.cut(text)
        texts.append(Generation(text if cut is None else cut, branch.log_prob, len(branch.tokens), finished))
    return texts[: search.wanted]
