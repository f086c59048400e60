"""The branches of one prompt's search: which live on, which ended, in which rows of the cache they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kgqa_core.lm.chat import decode
from kgqa_core.lm.pick import Candidates
from kgqa_core.lm.types import Generation


@dataclass(frozen=True, slots=True)
class Branch:
    """A text so far."""

    tokens: tuple[int, ...]
    log_prob: float  # of all tokens, under the model itself: neither constraint nor temperature changes it
    row: int  # of the cache that it goes on from


@dataclass(frozen=True, slots=True)
class Ending:
    """How a text ends."""

    tokenizer: Any
    tokens: frozenset[int]
    stop: tuple[str, ...] = ()

    def stopped(self, tokens: Sequence[int]) -> bool:
        """Say whether the text holds a stop string; before its last token it held none."""
        if not self.stop:
            return False
        longest = max(len(stop.encode()) for stop in self.stop)
        tail = decode(self.tokenizer, tokens[-longest - 4 :])  # a token is a byte of text at least
        return self.cut(tail) is not None and self.cut(self.text(tokens)) is not None

    def answer(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer: before its end token, and before the first stop string."""
        text = self.text(tokens)
        cut = self.cut(text)
        return text if cut is None else cut

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text without the end token."""
        ended = bool(tokens) and tokens[-1] in self.tokens
        return decode(self.tokenizer, tokens[:-1] if ended else tokens)

    def cut(self, text: str) -> str | None:
        """Return the text before the first stop string, or None where there is none."""
        places = [place for stop in self.stop if (place := text.find(stop)) >= 0]
        return text[: min(places)] if places else None


@dataclass
class Search:
    """One prompt's beam, or one sample of it."""

    prompt: int  # row of the prompt in its batch
    width: int  # branches that may live on
    wanted: int  # texts to return
    live: list[Branch]
    rows: list[int]  # its own rows of the cache: they share what was read of the prompt
    done: list[Branch] = field(default_factory=list)  # ended, best first, distinct texts, at most `width`
    draws: np.random.Generator | None = None  # of a sample

    def advance(self, candidates: Sequence[Candidates], ending: Ending) -> None:
        """Let the best candidates (per live branch) live on, and see which texts ended.

        Only an end among the first ``width`` candidates counts, as in every classical beam search. The search is over
        once no live branch can beat the texts to return: log-probabilities only fall.
        """
        ranked = sorted(
            (-(branch.log_prob + log_prob), order, token)
            for order, (branch, following) in enumerate(zip(self.live, candidates, strict=True))
            for token, log_prob in following
        )
        parents, self.live, ended = self.live, [], list(self.done)
        for rank, (cost, order, token) in enumerate(ranked):
            branch = Branch((*parents[order].tokens, token), -cost, parents[order].row)
            if token in ending.tokens or ending.stopped(branch.tokens):
                if rank < self.width:
                    ended.append(branch)
            elif len(self.live) < self.width:
                self.live.append(branch)
            if rank >= self.width - 1 and len(self.live) == self.width:
                break
        if len(ended) > len(self.done):
            self.done = _distinct(ended, ending)[: self.width]
        enough = len(self.done) >= self.wanted
        if enough and self.live and self.done[self.wanted - 1].log_prob >= self.live[0].log_prob:
            self.live = []

    def settle(self) -> list[tuple[int, int]]:
        """Give each live branch a row of its own, its parent's where it can; return the (source, target) to copy."""
        free = dict.fromkeys(self.rows)
        moves: list[tuple[int, int]] = []
        stays = []
        for branch in self.live:
            stays.append(branch.row in free)
            free.pop(branch.row, None)
        for place, branch in enumerate(self.live):
            if not stays[place]:
                row = next(iter(free))
                del free[row]
                moves.append((branch.row, row))
                self.live[place] = replace(branch, row=row)
        return moves

    def texts(self, ending: Ending) -> list[Generation]:
        """Return the texts: those that ended, best first, then those that were cut."""
        branches = [(branch, True) for branch in self.done] + [(branch, False) for branch in self.live]
        return [
            Generation(ending.answer(branch.tokens), branch.log_prob, len(branch.tokens), finished)
            for branch, finished in branches[: self.wanted]
        ]


def _distinct(branches: list[Branch], ending: Ending) -> list[Branch]:
    """Return the best branch of each text, best first: a text can be written in more than one way of tokens."""
    ranked = sorted(branches, key=lambda branch: -branch.log_prob)
    best: dict[str, Branch] = {}
    for branch in ranked:
        best.setdefault(ending.answer(branch.tokens), branch)
    return list(best.values())
