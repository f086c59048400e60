"""The state of an unfinished training at rest: ``state.safetensors`` and ``state.json``, replaced together."""

from __future__ import annotations

import json
import logging
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kgqa_core.errors import shorten
from kgqa_core.explorer.train import Trainer, TrainState

TENSORS, STATE = "state.safetensors", "state.json"
BEST = "best."  # the weights of the best epoch so far, by name
SAVE_EVERY = 20.0  # seconds; a kill costs at most as much work
_log = logging.getLogger(__name__)


class Journal:
    """Saves a training now and then, and sets a new trainer to where the last one was killed.

    Args:
        folder: of the journal; made when it is first needed. None: nothing is kept.
        identity: what the training is made of; the state of another one is never gone on with.
    """

    def __init__(self, folder: Path | None, identity: str) -> None:
        self._folder, self._identity = folder, identity
        self._saved = time.monotonic()

    def save(self, trainer: Trainer, best: dict[str, Tensor], notes: dict[str, Any], *, now: bool = False) -> None:
        """Keep the training as it stands, at most every ``SAVE_EVERY`` seconds unless ``now``."""
        if self._folder is None or (not now and time.monotonic() - self._saved < SAVE_EVERY):
            return
        new, current = self._folder / "new", self._folder / "current"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        tensors = trainer.tensors() | {f"{BEST}{name}": weight for name, weight in best.items()}
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, new / TENSORS)
        state = {"identity": self._identity, "state": asdict(trainer.state), "notes": notes}
        (new / STATE).write_text(json.dumps(state), encoding="utf-8")
        old = self._folder / "old"
        shutil.rmtree(old, ignore_errors=True)
        if current.exists():
            current.rename(old)
        new.rename(current)
        self._saved = time.monotonic()

    def go_on(self, trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Set ``trainer`` to where the last one stood; return its best weights and notes, or None: begin anew."""
        if self._folder is None:
            return None
        for name in ("current", "old"):  # a kill between the two renames leaves only the older one
            folder = self._folder / name
            if not (folder / STATE).is_file():
                continue
            try:
                kept = json.loads((folder / STATE).read_text(encoding="utf-8"))
                if kept["identity"] != self._identity:
                    _log.warning("%s is of another training: beginning anew", folder)
                    return None
                tensors = load_file(folder / TENSORS)
                trainer.go_on(TrainState(**kept["state"]), tensors)
            except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as problem:
                _log.warning("cannot go on from %s: %s", folder, shorten(str(problem)))
                continue
            best = {name.removeprefix(BEST): weight for name, weight in tensors.items() if name.startswith(BEST)}
            return best, kept["notes"]
        return None
