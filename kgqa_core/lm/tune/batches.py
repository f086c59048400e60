"""Which examples each forward pass of each process sees: drawn beforehand, so a position is all of a sampler's state.

Shape letters here: S optimiser steps, A accumulated parts of a step, P processes, M examples of one forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kgqa_core.errors import ConfigError, InputError
from kgqa_core.lm.tune.tokens import Tokens
from kgqa_core.lm.tune.types import Phase, TuneSettings

Int = NDArray[np.int64]
BUCKET_UNITS = 64  # forward passes whose examples are sorted by length together


def num_steps(tokens: Tokens, settings: TuneSettings) -> int:
    """Return the optimiser steps: as many draws as there are training examples, per epoch."""
    if settings.max_steps is not None:
        return settings.max_steps
    return max(1, math.ceil(settings.epochs * int((~tokens.dev).sum()) / settings.batch_size))


def draw_batches(tokens: Tokens, settings: TuneSettings, num_processes: int = 1) -> Int:
    """Return examples [S, A, P, M]: the same for any number of processes but for who sees what.

    An instruction's examples come in a random order, each once before any comes again, across phases too. Within a
    phase the instructions are evenly spread.

    Raises:
        ConfigError: the batch cannot be divided as the settings say.
        InputError: a phase names an instruction without training examples.
    """
    share, rest = divmod(settings.batch_size, num_processes)
    size = settings.micro_batch or share
    if rest or not share or share % size:
        raise ConfigError(
            f"batch_size {settings.batch_size} must be a multiple of the number of processes ({num_processes}) times "
            f"micro_batch ({settings.micro_batch})"
        )
    generator = np.random.default_rng([settings.seed, 5])
    streams = {name: Stream(tokens.of(name, dev=False), generator) for name in tokens.names}
    steps, first, parts = num_steps(tokens, settings), 0, []
    for phase in settings.phases or (Phase(1.0),):
        last = round(phase.until * steps)
        drawn = _mix(streams, phase.weights, (last - first) * settings.batch_size, generator)
        if settings.batching == "buckets":
            drawn = _bucket(drawn, tokens.lengths, size * num_processes, generator)
        parts.append(drawn)
        first = last
    return np.concatenate(parts).reshape(steps, share // size, num_processes, size)


class Stream:
    """The examples of one instruction, in a new random order each time round."""

    def __init__(self, examples: Int, generator: np.random.Generator) -> None:
        self.examples, self._generator = examples, generator
        self._left = examples[:0]

    def take(self, count: int) -> Int:
        """Return the next ``count`` examples."""
        while self._left.size < count:
            self._left = np.concatenate([self._left, self._generator.permutation(self.examples)])
        taken, self._left = self._left[:count], self._left[count:]
        return taken


def apportion(weights: Sequence[float], total: int) -> list[int]:
    """Return whole numbers that sum to ``total``, in proportion to ``weights`` (largest remainders)."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [math.floor(one) for one in exact]
    by_rest = sorted(range(len(exact)), key=lambda index: (counts[index] - exact[index], index))
    for index in by_rest[: total - sum(counts)]:
        counts[index] += 1
    return counts


def _mix(
    streams: Mapping[str, Stream], weights: Mapping[str, float], count: int, generator: np.random.Generator
) -> Int:
    """Return ``count`` examples, the instructions spread evenly, each in its stream's order."""
    weights = weights or {name: float(stream.examples.size) for name, stream in streams.items()}
    names = sorted(name for name, weight in weights.items() if weight)
    for name in names:
        if name not in streams or not streams[name].examples.size:
            have = ", ".join(name for name, stream in streams.items() if stream.examples.size)
            raise InputError(f"a phase draws {name!r}, of which there is no training example; there are {have}")
    taken, places = [], []
    for name, part in zip(names, apportion([weights[name] for name in names], count), strict=True):
        taken.append(streams[name].take(part))
        places.append((np.arange(part) + generator.random(part)) / max(part, 1))
    return np.concatenate(taken)[np.argsort(np.concatenate(places), kind="stable")]


def _bucket(drawn: Int, lengths: Int, unit: int, generator: np.random.Generator) -> Int:
    """Return the draws with units of like length: sorted within a window, the units then shuffled."""
    bucketed = []
    for first in range(0, drawn.size, unit * BUCKET_UNITS):
        window = drawn[first : first + unit * BUCKET_UNITS]
        units = window[np.argsort(lengths[window], kind="stable")].reshape(-1, unit)
        bucketed.append(generator.permutation(units).ravel())
    return np.concatenate(bucketed) if bucketed else drawn
