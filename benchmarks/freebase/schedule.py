"""How long a build takes on some workers, from what its tasks cost: a simulation of the schedule."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Profile:
    """What a build is made of: a serial stretch, a map of tasks, a serial stretch, and so on."""

    serial: list[float] = field(default_factory=list)  # seconds; one more than there are maps
    maps: list[list[float]] = field(default_factory=list)  # seconds of each task

    @property
    def total(self) -> float:
        """Seconds on one processor, without a cluster."""
        return sum(self.serial) + sum(map(sum, self.maps))

    @property
    def serial_share(self) -> float:
        """What no worker makes faster."""
        return sum(self.serial) / self.total


def makespan(costs: Sequence[float], workers: int, per_task: float = 0.0) -> float:
    """Return when the last of some tasks ends, each taken in turn by the worker that is free first.

    ``per_task``: seconds between two tasks of a worker, for telling it and hearing of the result.
    """
    free = [0.0] * workers
    for cost in costs:
        heapq.heapreplace(free, free[0] + cost + per_task)
    return max(free)


def simulate(profile: Profile, workers: int, per_task: float = 0.0) -> float:
    """Return how long the build takes where every worker, and the process that leads, has a processor of its own.

    A map ends with its slowest task; the next serial stretch waits for it.
    """
    return sum(profile.serial) + sum(makespan(costs, workers, per_task) for costs in profile.maps)
