"""What a retraining may cost: CPU hours, GPU hours, calls of language models (section ``gate``).

What has been spent is looked at whenever a stage tells how far it is, and after each stage. Over a cap the run ends as
a refusal. What is finished stays, so the next run goes on from there, with caps of its own.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from kgqa_core.config import GateSection
from kgqa_core.errors import KgqaError
from kgqa_core.lm.calls import Meter
from kgqa_core.run.pipeline import PROGRESS
from tasks.gate import CAPS

SECONDS = 1.0  # between two looks
HOUR = 3600.0
_log = logging.getLogger(__name__)


class CapReached(KgqaError):
    """A retraining would cost more than it may."""


class Caps:
    """What a run has spent, against what it may spend; a listener to progress."""

    def __init__(self, section: GateSection | None) -> None:
        """None: nothing is counted."""
        self._limits = {name: getattr(section, name, None) for name in CAPS}
        self._listener = PROGRESS.get()
        self._before = cpu_seconds(), Meter.num_paid
        self._looked, self._gpu = time.monotonic(), 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Hand progress on, and look at what was spent, now and then; raises CapReached."""
        if self._listener:
            self._listener(what, done, total)
        if time.monotonic() - self._looked >= SECONDS:
            self.check(what)

    def check(self, what: str) -> None:
        """Raise CapReached where more was spent than may be."""
        now = time.monotonic()
        self._gpu += (now - self._looked) * gpu_in_use()
        self._looked = now
        if not any(limit is not None for limit in self._limits.values()):
            return
        cpu, calls = self._before
        spent = ((cpu_seconds() - cpu) / HOUR, self._gpu / HOUR, Meter.num_paid - calls)
        kinds = ("CPU hours", "GPU hours", "calls of language models")
        for (name, limit), value, kind in zip(self._limits.items(), spent, kinds, strict=True):
            if limit is not None and value > limit:
                _log.info("%.4g %s were spent", value, kind)
                raise CapReached(f"stopped in {what}: it takes more than {limit:g} {kind} (gate.{name})")


@contextmanager
def capped(section: GateSection | None) -> Iterator[Caps]:
    """Count what is spent inside this context."""
    caps = Caps(section)
    listening = PROGRESS.set(caps)
    try:
        yield caps
    finally:
        PROGRESS.reset(listening)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all that it started, such as Dask workers."""
    spent = sum(os.times()[:4])  # of children, those that have ended
    for child in psutil.Process().children(recursive=True):
        try:
            spent += sum(child.cpu_times()[:4])
        except psutil.Error:  # it ended just now
            continue
    return spent


def gpu_in_use() -> int:
    """Return how many GPUs this process has begun to use; torch is not loaded for it."""
    torch = sys.modules.get("torch")
    return 1 if torch is not None and torch.cuda.is_initialized() else 0
