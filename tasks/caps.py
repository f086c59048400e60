"""What a retraining may cost: CPU hours, GPU hours, calls of language models (section ``gate``).

What has been spent is looked at whenever a stage tells how far it is, and after each stage. Over a cap the run ends as
a refusal. What is finished stays, so the next run goes on from there, with caps of its own.

A retraining may train in another pool, by another process of the same home. Both write what they have spent into one
folder, and each holds the caps against the sum. Calls that Dask workers pay count with the chunk that they belong to.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psutil

from kgqa_core.artifacts import write_json
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

    def __init__(self, section: GateSection | None, shared: Path | None = None) -> None:
        """``section`` None: nothing is counted. ``shared``: the folder in which all processes of the run say theirs."""
        self._file = shared and shared / f"{uuid4().hex}.json"
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
        own = (cpu_seconds() - cpu, self._gpu, Meter.num_paid - calls)
        cpu, gpu, calls = map(sum, zip(own, *self._others(own), strict=True))
        spent = (cpu / HOUR, gpu / HOUR, calls)
        kinds = ("CPU hours", "GPU hours", "calls of language models")
        for (name, limit), value, kind in zip(self._limits.items(), spent, kinds, strict=True):
            if limit is not None and value > limit:
                _log.info("%.4g %s were spent", value, kind)
                raise CapReached(f"stopped in {what}: it takes more than {limit:g} {kind} (gate.{name})")

    def _others(self, own: tuple[float, ...]) -> list[tuple[float, ...]]:
        """Say what this process has spent, and return what each of the others has."""
        if self._file is None:
            return []
        with suppress(FileNotFoundError):  # the run whose folder it is ended just now, and removed it
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._file, own)
            return [
                tuple(json.loads(file.read_text(encoding="utf-8")))
                for file in self._file.parent.glob("*.json")
                if file != self._file
            ]
        return []


def spent_folder(home: Path, run_id: str) -> Path:
    """Return where the processes that work for a run say what they spent."""
    return home / "run" / "spent" / run_id


@contextmanager
def capped(section: GateSection | None, shared: Path | None = None, *, keep: bool = False) -> Iterator[Caps]:
    """Count what is spent inside this context, and what other processes say in the folder ``shared``.

    ``keep`` leaves that folder to the run whose it is, who removes it at its end.
    """
    caps = Caps(section, shared)
    listening = PROGRESS.set(caps)
    try:
        yield caps
    finally:
        PROGRESS.reset(listening)
        if shared and not keep:
            shutil.rmtree(shared, ignore_errors=True)


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
