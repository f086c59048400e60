"""Tests of whether two systems, asked the same questions, differ by more than chance, and the price of many tests.

The hypothesis is always that each question could as well have gone the other way round: what one system got, the other
would have got. For figures that are only right or wrong this is McNemar's test, exact here; for others, such as F1, it
is the paired randomisation test, of which McNemar's is the special case.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FLIPS = 10_000
CELLS_AT_ONCE = 2**20  # signs held in memory at once
COUNT_COST = 16  # times what it takes to draw a sign, it takes to draw how many of some signs are kept
ROUNDING = 1e-9  # sums that differ by less, as a share of the largest possible, are equal


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the exact two-sided p of McNemar's test (binomial with 1/2 on the questions that only one got right)."""
    num = only_first + only_second
    ways, fewer = 1, 0  # ways: num choose taken
    for taken in range(min(only_first, only_second) + 1):
        fewer += ways
        ways = ways * (num - taken) // (taken + 1)
    return float(min(1.0, 2 * fewer / 2**num))


def randomisation_test(differences: npt.NDArray[np.float64], *, flips: int = FLIPS, seed: int = 0) -> float:
    """Return the two-sided p of the mean of paired ``differences`` [B]: the share of random signs that go as far.

    The observed signs count among those drawn, so p is at least 1 / (``flips`` + 1).
    """
    apart = np.sort(differences[differences != 0])
    if not len(apart):
        return 1.0
    total = float(apart.sum())
    least = abs(total) - ROUNDING * float(np.abs(apart).sum())
    random = np.random.default_rng(seed)
    # Of differences of one size only the number that keep their sign matters. It is binomial: where few sizes are
    # distinct, drawing the numbers gives exactly the distribution that drawing signs gives.
    sizes, counts = np.unique(np.abs(apart), return_counts=True)
    if COUNT_COST * len(sizes) < len(apart):
        kept = random.binomial(counts, 0.5, size=(flips, len(sizes)))
        as_far = int((np.abs((2 * kept - counts) @ sizes) >= least).sum())
        return (1 + as_far) / (1 + flips)
    as_far = 0
    step = max(1, CELLS_AT_ONCE // len(apart))
    for start in range(0, flips, step):
        kept = random.integers(2, size=(min(step, flips - start), len(apart)), dtype=np.int8)
        as_far += int((np.abs(2 * (kept.astype(np.float64) @ apart) - total) >= least).sum())
    return (1 + as_far) / (1 + flips)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return each p as corrected for there being several (Holm's step-down method), in the order given."""
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected
