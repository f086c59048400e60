"""The state of an unfinished tuning at rest: folders ``step-N`` with safetensors and JSON, each whole or not there."""

from __future__ import annotations

import json
import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import shorten

TENSORS, STATE = "state.safetensors", "state.json"
BEST = "best-{step}.safetensors"
SHARE = 20  # saving takes at most one part in so many of the time
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class State:
    """A tuning between two steps."""

    step: int  # optimiser steps done, which is the sampler's position
    weights: dict[str, Tensor]  # those that are trained, by name
    optimizer: dict[str, Any]  # its state_dict
    scheduler: dict[str, Any]  # its state_dict
    random: dict[str, Tensor]  # of torch's generators, a row per process
    notes: dict[str, Any]  # JSON


class Journal:
    """Saves a tuning now and then, and finds the last state of one that was killed.

    Args:
        folder: where; made when it is first needed.
        identity: what the tuning is made of; the state of another one is never gone on with.
        every: seconds between two entries, at least; more where saving takes long. 0: an entry after each step.
    """

    def __init__(self, folder: Path, identity: str, every: float) -> None:
        self._folder, self._identity, self._every = folder, identity, every
        self._next = time.monotonic() + every

    def is_due(self) -> bool:
        """Has it been long enough?"""
        return time.monotonic() >= self._next

    def save(self, state: State) -> None:
        """Keep this state and the one before it."""
        started = time.monotonic()
        tensors = {f"weights.{name}": weight for name, weight in state.weights.items()}
        tensors |= {f"random.{name}": row for name, row in state.random.items()}
        for index, values in state.optimizer["state"].items():
            tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in values.items()}
        told = {
            "identity": self._identity,
            "step": state.step,
            "groups": state.optimizer["param_groups"],
            "scheduler": state.scheduler,
            "notes": state.notes,
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        with written_whole(self._folder / f"step-{state.step:08d}") as partial:
            partial.mkdir()
            save_file({name: one.detach().cpu().contiguous() for name, one in tensors.items()}, partial / TENSORS)
            (partial / STATE).write_text(json.dumps(told), encoding="utf-8")
        for folder in self._steps()[2:]:
            shutil.rmtree(folder, ignore_errors=True)
        took = time.monotonic() - started
        self._next = time.monotonic() + (max(self._every, took * SHARE) if self._every else 0)

    def load(self) -> State | None:
        """Return the last state of this tuning that can be read; None: begin anew."""
        for folder in self._steps():
            try:
                told = json.loads((folder / STATE).read_text(encoding="utf-8"))
                if told["identity"] != self._identity:
                    _log.warning("%s is of another tuning: beginning anew", folder)
                    shutil.rmtree(folder, ignore_errors=True)
                    continue
                return _state(told, load_file(folder / TENSORS))
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as problem:
                _log.warning("cannot go on from %s: %s", folder, shorten(str(problem)))
        return None

    def save_best(self, step: int, weights: dict[str, Tensor]) -> None:
        """Keep the best weights so far; those before stay, since a kill may send the tuning back before ``step``."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with written_whole(self._folder / BEST.format(step=step)) as partial:
            save_file({name: one.detach().cpu().contiguous() for name, one in weights.items()}, partial)

    def load_best(self, step: int) -> dict[str, Tensor]:
        """Return the weights that ``save_best`` kept for ``step``."""
        return dict(load_file(self._folder / BEST.format(step=step)))

    def forget_best(self, before: int) -> None:
        """Remove best weights of earlier steps, once no state refers to them."""
        for file in self._folder.glob(BEST.format(step="*")):
            if int(file.stem.partition("-")[2]) < before:
                file.unlink(missing_ok=True)

    def _steps(self) -> list[Path]:
        """Return the folders of states, the latest first."""
        return sorted(self._folder.glob("step-*"), reverse=True)


def _state(told: dict[str, Any], tensors: dict[str, Tensor]) -> State:
    parts: dict[str, dict[str, Tensor]] = {"weights": {}, "random": {}, "optimizer": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in parts["optimizer"].items():
        index, _, rest = name.partition(".")
        states.setdefault(int(index), {})[rest] = tensor
    optimizer = {"state": states, "param_groups": told["groups"]}
    return State(told["step"], parts["weights"], optimizer, told["scheduler"], parts["random"], told["notes"])
