"""Greedy search, beam search and sampling, each prompt under its own constraint, and exact scores of given answers.

The loop is ours: transformers' ``model.generate`` would need as much code around it, and draws all samples of a batch
from one generator, so that a text would depend on its neighbours; it reads a prompt once per beam, and masks the whole
vocabulary of each constrained row. Its texts are the same where both can do the work (tests/lm/test_generate.py).

Shape letters: B rows, each with one live branch or idle; T tokens; V vocabulary; A most allowed tokens of a row;
C candidates per row; H heads; D width of a head.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import DynamicLayer

from kgqa_core.errors import KgqaError, is_out_of_memory
from kgqa_core.lm.constraints import Place, TokenState, shared_start
from kgqa_core.lm.folders import Ending
from kgqa_core.lm.search import Branch, Candidates, Search
from kgqa_core.lm.types import Decoding, Generation

ROOM = 32  # tokens for which a layer of the cache makes room at a time, at least
MOST_IDLE = 0.25  # of the rows, before the cache is copied without them
SPELLINGS = 16  # tokens, at most, that may begin one text, as "d", "di", "dir" do
READ_TOKENS = 2048  # of prompts that a CPU reads together, padding included: more of them leave its caches
LEAST_SHARED = 16  # tokens that prompts begin with, for which a reading of their own pays
Tokens = Sequence[int]
Starts = Sequence[TokenState | None]  # where each prompt's constraint begins; None: it is free
Item = TypeVar("Item")
Result = TypeVar("Result")
Run = Callable[[list[Item]], list[Result]]
_log = logging.getLogger(__name__)


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Full attention's keys and values: the first ``length`` tokens of buffers [B, H, T, D].

    A new token is written in place, where transformers' own layer copies all tokens before it.
    """

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = self.room = 0  # tokens

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the states [B, H, T, D] of new tokens; return those of all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.room:
            self.room = end + max(ROOM, end // 4)
            for name, new in (("keys", key_states), ("values", value_states)):
                grown = new.new_empty((*new.shape[:2], self.room, new.shape[3]))
                if self.length:
                    grown[:, :, : self.length] = getattr(self, name)[:, :, : self.length]
                setattr(self, name, grown)
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        """Return the number of tokens written."""
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep rows ``beam_idx``, repeated or left out, in buffers of their own."""
        if self.length:
            keys, values = self.keys[beam_idx, :, : self.length], self.values[beam_idx, :, : self.length]
            self.length = self.room = 0
            self.update(keys, values)


@dataclass
class Cached:
    """What the model has read of each row."""

    model: Any
    states: Any  # transformers' cache of keys and values
    mask: Tensor  # int64 [B, T]: 0 at padding
    num_prompt: int  # tokens of the prompts, padding included
    accepted: frozenset[str]  # arguments that the model takes

    def select(self, rows: Sequence[int]) -> Cached:
        """Return the cache of ``rows``: repeated, reordered, left out. This one can be read on from as before."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.mask.device)
        states = copy.copy(self.states)
        states.layers = [copy.copy(layer) for layer in self.states.layers]
        for layer in states.layers:  # a layer replaces its tensors: those of this cache stay
            layer.reorder_cache(index)
        return Cached(self.model, states, self.mask[index], self.num_prompt, self.accepted)

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Let each target row of (source, target) go on from what its source has read; both are of one prompt."""
        if not moves:
            return
        sources, targets = torch.tensor(moves, dtype=torch.int64, device=self.mask.device).T
        order = torch.arange(len(self.mask), device=sources.device).index_copy(0, targets, sources)
        for layer in self.states.layers:
            if not isinstance(layer, GrowingLayer):
                layer.reorder_cache(order)
                continue
            new = slice(self.num_prompt, layer.length)  # of the prompt both hold the same
            for states in (layer.keys, layer.values):
                states[targets, :, new] = states[sources, :, new]

    def read(self, tokens: Tensor, mask: Tensor | None = None, *, last: bool = True) -> Tensor:
        """Read ``tokens`` [B, T] (0 in ``mask``: padding) and return logits [B, V] after the last, else [B, T, V]."""
        self.mask = torch.cat([self.mask, torch.ones_like(tokens) if mask is None else mask], dim=1)
        options: dict[str, Any] = {}
        if "position_ids" in self.accepted:
            positions = self.mask.cumsum(dim=1)[:, -tokens.shape[1] :] - 1
            options["position_ids"] = positions.clamp(min=0)
        if last and "logits_to_keep" in self.accepted:
            options["logits_to_keep"] = 1
        reading = {"input_ids": tokens, "attention_mask": self.mask, "past_key_values": self.states, **options}
        logits: Tensor = self.model(**reading, use_cache=True, return_dict=True).logits
        return logits[:, -1] if last else logits


def read_prompts(model: Any, prompts: Sequence[Tokens]) -> tuple[Cached, Tensor]:
    """Read prompts, padded on the left; return their cache and the logits [B, V] of each one's next token.

    What they all begin with (the words of one instruction) is read once, and every row goes on from there.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # without its adapter
    accepted = frozenset(inspect.signature(inner.forward).parameters)
    # Padding then stands behind what is shared: only for a model that goes by position, not by place in the cache.
    by_position = "position_ids" in accepted and "local" not in getattr(model.config, "attention_layers", ())
    shares = by_position and sees_all(model.config)
    shared = shared_prefix([list(prompt) for prompt in prompts]) if shares else 0
    own = [torch.tensor(prompt[shared:]) for prompt in prompts]
    tokens = pad_sequence(own, batch_first=True, padding_side="left").to(model.device)
    mask = pad_sequence([torch.ones_like(row) for row in own], batch_first=True, padding_side="left").to(model.device)
    states = transformers.DynamicCache(config=model.config)  # layers of other kinds of attention stay transformers' own
    states.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in states.layers]
    cached = Cached(model, states, mask[:1, :0], shared + tokens.shape[1], accepted)
    if shared:
        cached.read(torch.tensor([prompts[0][:shared]], device=model.device))
    together = max(1, READ_TOKENS // tokens.shape[1]) if shares and model.device.type == "cpu" else len(prompts)
    parts, logits = [], []
    for start in range(0, len(prompts), together):
        some = slice(start, start + together)
        parts.append(cached.select([0] * len(mask[some])))
        logits.append(parts[-1].read(tokens[some], mask[some]))
    return join(parts), torch.cat(logits)


def join(parts: Sequence[Cached]) -> Cached:
    """Return one cache of the rows of several, which have read as many tokens and keep them all."""
    if len(parts) == 1:
        return parts[0]
    states = copy.copy(parts[0].states)
    states.layers = [GrowingLayer() for _ in states.layers]
    for layer, *own in zip(states.layers, *(part.states.layers for part in parts), strict=True):
        keys, values = ([getattr(one, name)[:, :, : one.length] for one in own] for name in ("keys", "values"))
        layer.update(torch.cat(keys), torch.cat(values))
    return replace(parts[0], states=states, mask=torch.cat([part.mask for part in parts]))


def sees_all(config: Any) -> bool:
    """Say whether every layer of a model keeps the keys and values of all that it read: no window, no state."""
    layers = transformers.DynamicCache(config=config).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


def shared_prefix(rows: Sequence[list[int]]) -> int:
    """Return how many tokens all rows begin with, one at least left to each; 0 where reading them once saves little."""
    shared = len(shared_start([row[:-1] for row in rows])) if len(rows) > 1 else 0
    return shared if shared >= LEAST_SHARED else 0


def pick(
    logits: Tensor, decoding: Decoding, *, count: int, draws: Sequence[float], legal: list[Tokens | None] | None
) -> list[Candidates]:
    """Return the ``count`` most probable tokens of each row of logits [B, V], or the one that its draw in [0, 1) hits.

    A draw inverts the cumulative distribution of the model at ``temperature``.
    ``legal`` holds the allowed tokens per row, None where all are; None in place of it: no row is constrained.
    """
    scores, tokens = logits.float(), None
    norm = scores.logsumexp(dim=1, keepdim=True)
    if legal is not None:
        lists = {id(row): row for row in legal}  # equal states share a list
        places_of = {key: place for place, key in enumerate(lists)}
        every = torch.arange(logits.shape[1])
        rows = [every if row is None else torch.tensor([*row] or [-1]) for row in lists.values()]
        padded = pad_sequence(rows, batch_first=True, padding_value=-1).to(logits.device)
        tokens = padded[[places_of[id(row)] for row in legal]]  # [B, A]
        scores = scores.gather(1, tokens.clamp(min=0)).masked_fill(tokens < 0, float("-inf"))
    if decoding.method == "sample":
        places = _draw(scores, draws, decoding.temperature)
    else:
        places = scores.topk(min(count, scores.shape[1]), dim=1).indices  # [B, C]
    values = (scores.gather(1, places) - norm).tolist()
    found = (places if tokens is None else tokens.gather(1, places)).tolist()
    return [
        [(token, value) for token, value in zip(row, row_values, strict=True) if value > float("-inf")]
        for row, row_values in zip(found, values, strict=True)
    ]


def _draw(scores: Tensor, draws: Sequence[float], temperature: float) -> Tensor:
    """Return the place [B, 1] of one score per row."""
    probs = torch.softmax(scores / temperature, dim=1).nan_to_num(0)  # rows where nothing is allowed
    sums = probs.cumsum(dim=1, dtype=torch.float64)  # by token id: near ties stay where they are in any batch
    total = sums[:, -1:].contiguous()
    points = torch.tensor(draws, dtype=sums.dtype, device=sums.device)[:, None] * total
    last = torch.searchsorted(sums, total)  # rounding must not pass the last possible one
    return torch.minimum(torch.searchsorted(sums, points, right=True), last)


@torch.inference_mode()
def generate_batch(
    model: Any, prompts: Sequence[Tokens], decoding: Decoding, *, ending: Ending, starts: Starts = ()
) -> list[list[Generation]]:
    """Return the texts of one batch of prompts (their tokens), best first; samples in order of drawing.

    Without ``starts`` all prompts are free. Where a constraint allows fewer texts than were asked for, the rest are
    empty, unfinished and without log_prob.
    """
    cached, logits = read_prompts(model, prompts)
    searches, sampled = list[Search](), decoding.method == "sample"
    for row, (prompt, start) in enumerate(zip(prompts, starts or [None] * len(prompts), strict=True)):
        digest = hashlib.sha256(np.asarray(prompt, dtype=np.int64).tobytes()).digest()
        own = int.from_bytes(digest[:8], "little")  # samples depend on the prompt, not on its place in a batch
        for sample in range(decoding.num_returns if sampled else 1):
            chance = np.random.default_rng([decoding.seed, own, sample]) if sampled else None
            first, wanted = Branch((), 0.0, len(searches), start), 1 if sampled else decoding.num_returns
            searches.append(Search(row, decoding.num_beams, wanted, [first], [first.row], chance=chance))
    if sampled:  # the samples share a prompt's row until here
        rows = [search.prompt for search in searches]
        cached, logits = cached.select(rows), logits[rows]
    is_bound, count = any(start is not None for start in starts), decoding.num_beams + len(ending.tokens)
    if decoding.num_beams > 1 and any(isinstance(start, Place) for start in starts):
        count *= SPELLINGS
    for step in range(decoding.max_new_tokens):
        legal: list[Tokens | None] = [()] * len(logits)  # of idle rows: nothing
        draws = [0.0] * len(logits)
        for search in searches:
            for branch in search.live:
                legal[branch.row] = None if branch.state is None else branch.state.allowed
                draws[branch.row] = search.chance.random() if search.chance else 0.0
        picked = pick(logits, decoding, count=count, draws=draws, legal=legal if is_bound else None)
        for search in searches:
            search.advance([picked[branch.row] for branch in search.live], ending)
        if step == decoding.max_new_tokens - 1 or not any(search.live for search in searches):
            break
        cached = _make_rows(cached, searches)
        last = torch.zeros(len(cached.mask), dtype=torch.int64)
        live = [branch for search in searches for branch in search.live]
        last[[branch.row for branch in live]] = torch.tensor([branch.tokens[-1] for branch in live])
        logits = cached.read(last[:, None].to(logits.device))
    results: list[list[Generation]] = [[] for _ in prompts]
    for search in searches:  # the texts that ended, then those that were cut, or repeated themselves
        texts: dict[str, Generation] = {}
        for place, branch in enumerate([*search.done, *search.live, *search.stuck]):
            text, is_done = ending.answer(branch.tokens), place < len(search.done)
            texts.setdefault(text, Generation(text, branch.log_prob, len(branch.tokens), is_done))
        results[search.prompt] += list(texts.values())[: search.wanted]
    missing = Generation("", finished=False)
    return [[*own, *[missing] * (decoding.num_returns - len(own))] for own in results]


def _make_rows(cached: Cached, searches: Sequence[Search]) -> Cached:
    """Return a cache that has a row for each live branch, and set the branches' rows: the parent's where it can be."""
    live = [branch for search in searches for branch in search.live]
    if len(live) < (1 - MOST_IDLE) * len(cached.mask) or any(len(one.live) > len(one.rows) for one in searches):
        cached = cached.select([branch.row for branch in live])
        for row, branch in enumerate(live):
            branch.row = row
        for search in searches:
            search.rows = [branch.row for branch in search.live]
        return cached
    moves, taken = [], set()
    for search in searches:
        free = sorted(set(search.rows) - {branch.row for branch in search.live})
        for branch in search.live:
            if branch.row in taken:
                moves.append((branch.row, free.pop()))
                branch.row = moves[-1][1]
            taken.add(branch.row)
    cached.move(moves)
    return cached


@torch.inference_mode()
def score_batch(
    model: Any, prompts: Sequence[Tokens], options: Sequence[Sequence[Tokens]], batcher: Batcher, *, ends: Tokens
) -> list[list[float]]:
    """Return the log-likelihood of each prompt's options, given as tokens with the first of ``ends`` last.

    It stands for the most probable of them. A prompt is read once; its cache is shared by all its options, which
    ``batcher`` divides.
    """
    cached, logits = read_prompts(model, prompts)
    first = torch.log_softmax(logits.float(), dim=1)  # [prompts, V]
    first[:, ends[0]] = first[:, list(ends)].amax(dim=1)
    pairs = [(row, option) for row, own in enumerate(options) for option in own]
    heads = first[[row for row, _ in pairs], [option[0] for _, option in pairs]].tolist() if pairs else []

    def read_rest(batch: list[tuple[int, Tokens]]) -> list[float]:
        if max(len(option) for _, option in batch) == 1:
            return [0.0] * len(batch)
        read = [torch.tensor(option[:-1], dtype=torch.int64) for _, option in batch]
        rest = [torch.tensor(option[1:], dtype=torch.int64) for _, option in batch]
        tokens = pad_sequence(read, batch_first=True).to(logits.device)  # [B, T]
        targets = pad_sequence(rest, batch_first=True, padding_value=-1).to(logits.device)
        real = targets >= 0
        found = cached.select([row for row, _ in batch]).read(tokens, real.long(), last=False).float()  # [B, T, V]
        norm = found.logsumexp(dim=2)
        found[:, :, ends[0]] = found[:, :, list(ends)].amax(dim=2)
        chosen = found.gather(2, targets.clamp(min=0)[:, :, None])[:, :, 0] - norm
        return chosen.masked_fill(~real, 0.0).sum(dim=1, dtype=torch.float64).tolist()

    lengths = [len(prompts[row]) + len(option) for row, option in pairs]  # each takes a copy of its prompt's cache
    tails = batcher.map(pairs, lengths, read_rest)
    sums = iter(head + tail for head, tail in zip(heads, tails, strict=True))
    return [[next(sums) for _ in own] for own in options]


class DoesNotFit(KgqaError):
    """Memory does not hold a batch of one."""


@dataclass
class Batcher:
    """Runs a function over batches of rows of similar lengths, and halves them where memory runs out."""

    batch_size: int
    cells: int | None = None  # rows x longest length of a batch, at most; lowered where memory holds less; None: any

    def map(
        self, items: Sequence[Item], lengths: Sequence[int], run: Run[Item, Result], *, width: int = 1
    ) -> list[Result]:
        """Return ``run``'s result for each item, in the items' order; longest go first, each becomes ``width`` rows.

        Raises DoesNotFit where memory does not hold a batch of one.
        """
        order, cells = sorted(range(len(items)), key=lambda row: (-lengths[row], row)), self.cells
        results: dict[int, Result] = {}
        while (start := len(results)) < len(order):
            longest = max(1, lengths[order[start]])
            most = self.batch_size if self.cells is None else min(self.batch_size, self.cells // longest)
            rows = order[start : start + max(1, most // width)]
            try:
                results.update(zip(rows, run([items[row] for row in rows]), strict=True))
                continue
            except (RuntimeError, MemoryError, DoesNotFit) as error:  # the last of a batch inside this one
                if not isinstance(error, DoesNotFit) and not is_out_of_memory(error):
                    raise
            if torch.cuda.is_available():  # the error is gone, and with it what the attempt held
                gc.collect()
                torch.cuda.empty_cache()
            if len(rows) == 1:
                self.cells = cells  # what else is in memory may be less the next time
                raise DoesNotFit(
                    f"memory does not hold a single prompt of {longest} tokens with its answer. Use a smaller model, "
                    "a shorter dtype, quantisation, fewer beams or a lower max_new_tokens"
                )
            self.cells = len(rows) // 2 * width * longest
            _log.warning("out of memory with %d prompts of up to %d tokens: going on with half", len(rows), longest)
        return [results[row] for row in range(len(items))]
