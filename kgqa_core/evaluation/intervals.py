"""Bootstrap intervals of mean figures over questions: how far a figure would move had other questions been asked.

Percentile bootstrap: draw as many questions as there are, with replacement, many times; the interval holds the middle
95 % of the means. A mean depends only on how often each distinct row of values is drawn, and those counts follow a
multinomial distribution: where few rows are distinct, drawing the counts gives exactly the distribution that drawing
questions gives, in time that does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

INTERVAL_METRICS = ("hits1", "f1", "em")
CONFIDENCE = 0.95
RESAMPLES = 2000
SEED = 0
CELLS_AT_ONCE = 2**20  # numbers drawn at once
COUNT_COST = 16  # times what it takes to draw a question, it takes to draw a count
DIGITS = 6  # of a bound: the last digits of a sum depend on the processor, and equal input shall give equal bytes


def resampled_means(values: Floats, *, resamples: int = RESAMPLES, seed: int = SEED) -> Floats:
    """Return the means [resamples, M] of ``values`` [B, M] over B rows drawn with replacement; B is at least 1."""
    num = len(values)
    rows, counts = np.unique(values, axis=0, return_counts=True)
    by_counts = COUNT_COST * len(rows) < num
    columns = np.repeat(rows, counts, axis=0).T.copy()  # sorted, so that the order of the questions changes nothing
    random = np.random.default_rng(seed)
    means = np.empty((resamples, values.shape[1]))
    step = max(1, CELLS_AT_ONCE // (len(rows) if by_counts else num))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        if by_counts:
            means[start : start + size] = random.multinomial(num, counts / num, size=size) @ rows / num
        else:
            drawn = random.integers(num, size=(size, num))
            for place, column in enumerate(columns):  # one by one: rows of a table are several times slower to gather
                means[start : start + size, place] = column.take(drawn).mean(axis=1)
    return means


def bootstrap_bounds(values: Floats, *, resamples: int = RESAMPLES, seed: int = SEED) -> Floats:
    """Return the lower and the upper bound [2, M] of the mean of each column of ``values`` [B, M]; zeros without rows.

    All columns see the same resamples.
    """
    if not len(values):
        return np.zeros((2, values.shape[1]))
    tail = (1 - CONFIDENCE) / 2
    bounds = np.quantile(resampled_means(values, resamples=resamples, seed=seed), [tail, 1 - tail], axis=0)
    return np.round(bounds, DIGITS) + 0.0  # no -0.0


def interval_names(metric: str) -> tuple[str, str]:
    """Return the names of a metric's bounds, as they stand beside it in a summary: ``hits1.low`` and ``hits1.high``."""
    return f"{metric}.low", f"{metric}.high"


def interval_figures(values: Mapping[str, Floats], chosen: npt.NDArray[np.bool_] | None = None) -> dict[str, float]:
    """Return the bounds of ``INTERVAL_METRICS`` over all questions or those ``chosen`` [B].

    ``values`` holds the figures question by question, by name [B], in percent.
    """
    columns = np.stack([values[name] for name in INTERVAL_METRICS], axis=1)
    bounds = bootstrap_bounds(columns if chosen is None else columns[chosen])
    figures: dict[str, float] = {}
    for place, metric in enumerate(INTERVAL_METRICS):
        figures |= dict(zip(interval_names(metric), bounds[:, place].tolist(), strict=True))
    return figures


# ------ Tests of whether two systems, asked the same questions, differ by more than chance, and ...


FLIPS = 10_000
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
