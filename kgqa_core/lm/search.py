"""The search of one prompt: which branches of a beam, or of a sample, live on; what of a text is no answer.

Imports neither torch nor transformers: ``lm.generate`` asks the model, and keeps what it has read.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kgqa_core.lm.constraints import TokenState

if TYPE_CHECKING:
    from kgqa_core.lm.folders import Ending

LOOP_CHECKED, LOOP_LONGEST, LOOP_LEAST = 16, 64, 48  # tokens: how often; of a repetition; of all, at least
# What a reasoning model thinks before it answers; where it never comes to that, all. Some chat templates write <think>.
THOUGHTS = re.compile(r"\A(?:.*</think>|\s*<think>.*)\s*", re.DOTALL)
MOST_REPEATED, LEAST_LOOP = 800, 40  # characters: of what is said again and again; of all its repetitions together
Candidates = list[tuple[int, float]]  # (token, its log-probability under the model), best first; empty: a dead end


@dataclass(slots=True)
class Branch:
    """A text so far."""

    tokens: tuple[int, ...]
    log_prob: float  # of all tokens, under the model itself: neither constraint nor temperature changes it
    row: int  # of the cache that it goes on from
    state: TokenState | None = None  # None: any token may follow


@dataclass
class Search:
    """One prompt's beam, or one sample of it."""

    prompt: int  # row of the prompt in its batch
    width: int  # branches that may live on
    wanted: int  # texts to return
    live: list[Branch]
    rows: list[int]  # its own rows of the cache: they share what was read of the prompt
    done: list[Branch] = field(default_factory=list)  # ended, best first, distinct texts, at most `width`
    chance: np.random.Generator | None = None  # of a sample
    stuck: list[Branch] = field(default_factory=list)  # given up, for it repeats itself

    def advance(self, candidates: Sequence[Candidates], ending: Ending) -> None:
        """Let the best candidates (per live branch) live on, and see which texts ended.

        Only an end among the first ``width`` candidates counts, as in every classical beam search. Under a constraint
        only the best spelling of what a branch is writing lives on: others would take the places of other texts. The
        search is over once no live branch can beat the texts to return: log-probabilities only fall.
        """
        ranked = heapq.merge(
            *(
                [(-(branch.log_prob + log_prob), order, token) for token, log_prob in following]
                for order, (branch, following) in enumerate(zip(self.live, candidates, strict=True))
            )
        )
        parents, self.live, ended = self.live, [], []
        rank, headings, whole = 0, set[object](), set[int]()
        for cost, order, token in ranked:
            parent = parents[order]
            tokens = (*parent.tokens, token)
            if token in ending.tokens or ending.stopped(tokens):
                if order in whole:  # another end of a text that has a better one: it takes no place
                    continue
                if parent.state is not None and token in ending.tokens:
                    whole.add(order)
                if rank < self.width:
                    ended.append(Branch(tokens, -cost, parent.row))
            else:
                state = None if parent.state is None else parent.state.after(token)
                heading = len(headings) if state is None or self.width == 1 else state.heading
                if heading in headings:  # another spelling of a text that has a better one: it takes no place
                    continue
                headings.add(heading)
                if len(self.live) < self.width:
                    self.live.append(Branch(tokens, -cost, parent.row, state))
            rank += 1
            if rank >= self.width and len(self.live) == self.width:
                break
        if ended:  # a text can be written in more than one way of tokens: the best of them counts
            best: dict[str, Branch] = {}
            for branch in sorted([*self.done, *ended], key=lambda branch: -branch.log_prob):
                best.setdefault(ending.answer(branch.tokens), branch)
            self.done = list(best.values())[: self.width]
        if self.width == 1 and self.live and not len(self.live[0].tokens) % LOOP_CHECKED and is_loop(self.live[0]):
            self.stuck, self.live = self.live, []
        enough = len(self.done) >= self.wanted
        if enough and self.live and self.done[self.wanted - 1].log_prob >= self.live[0].log_prob:
            self.live = []


# ------ Texts that repeat themselves for ever: a local model is stopped, and whatever said it, one time is enough.


def is_loop(branch: Branch) -> bool:
    """Say whether a text without constraint ends in nothing but repetitions: of one token or some, three at least."""
    for period in range(1, LOOP_LONGEST + 1):
        tail = branch.tokens[-max(3 * period, LOOP_LEAST) :]
        if len(tail) >= max(3 * period, LOOP_LEAST) and tail[period:] == tail[:-period]:
            return branch.state is None
    return False


def cut_loop(text: str) -> str:
    """Return a text without what its end says again and again, be it words, a line or several; mostly all of it."""
    for period in range(1, min(MOST_REPEATED, len(text) // 2) + 1):
        if text[-period:] != text[-2 * period : -period]:
            continue
        begin = len(text) - 2 * period
        while begin and text[begin - 1] == text[begin - 1 + period]:
            begin -= 1
        if len(text) - begin >= LEAST_LOOP:
            return text[: begin + period].rstrip(" \n,;")
    return text
