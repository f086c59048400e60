"""Seeded drawing that gives the same results on every Python version and machine."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of choices.

    Built on ``Random.random`` alone: Python promises that this method keeps its sequence, and does not promise it for
    ``shuffle``, ``sample`` and ``choices``. Weights are integers, so that no rounding of a platform enters.
    """

    def __init__(self, seed: int, stream: str) -> None:
        """Start the stream named ``stream``; streams of one seed are independent of each other."""
        self._random = random.Random(f"{seed}/{stream}")  # a text is hashed with SHA-512, not with Python's hash()

    def below(self, bound: int) -> int:
        """Return a number in 0..bound-1."""
        return int(self._random.random() * bound)

    def between(self, low: int, high: int) -> int:
        """Return a number in low..high."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        """Return True in ``percent`` of 100 cases."""
        return self.below(100) < percent

    def pick(self, items: Sequence[T]) -> T:
        """Return one of ``items``, each equally likely."""
        return items[self.below(len(items))]

    def pick_ranked(self, items: Sequence[T], *, head_start: int) -> T:
        """Return one of ``items`` with a weight of 1 / (rank + head_start): a long tail, as in real casts (Zipf)."""
        steps = _sum_weights(len(items), head_start)
        return items[bisect_right(steps, self.below(steps[-1]))]

    def shuffle(self, items: Sequence[T]) -> list[T]:
        """Return ``items`` in a random order (Fisher-Yates)."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result


@cache
def _sum_weights(count: int, head_start: int) -> tuple[int, ...]:
    """Return the running sums of the weights of ``count`` ranks."""
    return tuple(accumulate(1_000_000 // (rank + head_start) for rank in range(count)))
