"""What happens between two steps: curves, dev losses, the journal; and the end where a loss is no number."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from kgqa_core.errors import KgqaError
from kgqa_core.lm.tune.base import copy_weights
from kgqa_core.lm.tune.journal import Journal, State
from kgqa_core.lm.tune.loop import random_state, set_random_state
from kgqa_core.lm.tune.processes import Processes
from kgqa_core.lm.tune.types import TuneRun, TuneSettings

CURVES = ("loss", "gradient_norm", "learning_rate")


@dataclass
class Notes:
    """What is known beside the weights; JSON between two processes."""

    points: list[tuple[str, int, float]] = field(default_factory=list)  # of curves, as told to on_point
    since: list[list[float]] = field(default_factory=list)  # CURVES of the steps after the last point
    best_step: int = 0
    best_loss: float | None = None  # None: dev was not judged yet
    dev_losses: dict[str, float] = field(default_factory=dict)  # of the weights that are kept
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0


class Watch(TrainerCallback):
    """Keeps account of a training, and sets a new one to where the last was killed.

    Args:
        state: where to go on; None: at the beginning.
        weights: those that are trained, by name.
        judge: returns the dev loss per instruction, the same in every process; empty without dev examples.
        evaluate_at: steps after which dev is judged.
    """

    def __init__(
        self,
        settings: TuneSettings,
        run: TuneRun,
        *,
        state: State | None,
        weights: dict[str, Any],
        judge: Callable[[], dict[str, float]],
        evaluate_at: list[int],
        journal: Journal,
        processes: Processes,
    ) -> None:
        self._settings, self._run, self._state, self._weights = settings, run, state, weights
        self._judge, self._evaluate_at = judge, frozenset(evaluate_at)
        self._last, self._journal, self._processes = evaluate_at[-1], journal, processes
        self.step = state.step if state else 0
        self.notes = Notes(**state.notes) if state else Notes()
        self._started = (0.0, 0.0)
        self._kept_best = 0  # best step when the journal was last written

    def tell_again(self) -> None:
        """Tell the points of the training that is gone on with."""
        if self._processes.is_first:
            for point in self.notes.points:
                self._run.on_point(*point)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set optimiser, schedule and random numbers to where they stood."""
        if self._state is not None:
            kwargs["optimizer"].load_state_dict(self._state.optimizer)
            kwargs["lr_scheduler"].load_state_dict(self._state.scheduler)
            set_random_state(self._state.random, args.device, self._processes.rank)
        self._state = None
        self._started = (time.process_time() - self.notes.cpu_seconds, time.perf_counter() - self.notes.wall_seconds)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Account for one step; called after each, and once at the end with figures of Trainer's own."""
        logs: dict[str, float] = kwargs["logs"]
        if "loss" not in logs:
            return
        self.step += 1
        self._check(logs)
        self.notes.since.append([logs["loss"], logs["grad_norm"], logs["learning_rate"]])
        if len(self.notes.since) >= self._run.curve_every or self.step == self._last:
            for name, values in zip(CURVES, zip(*self.notes.since, strict=True), strict=True):
                self._point(f"train.{name}", math.fsum(values) / len(values))
            self.notes.since.clear()
        if self.step in self._evaluate_at:
            self._evaluate()
        self._stop_clocks()
        if self._run.journal is not None and self._processes.agree(self._journal.is_due()):
            self._save(args, kwargs["optimizer"], kwargs["lr_scheduler"])
        if self._processes.is_first:
            self._run.progress(self.step, self._last)

    def _check(self, logs: dict[str, float]) -> None:
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs[name]):
                rate, warmup = self._settings.learning_rate, self._settings.warmup
                cure = f"Lower learning_rate ({rate:g}) or raise warmup ({warmup:g})"
                if self._settings.gradient_norm == 0:
                    cure += ", or clip gradients (gradient_norm 1)"
                raise KgqaError(
                    f"the {'loss' if name == 'loss' else 'gradient'} became {logs[name]} in step {self.step} of "
                    f"{self._last}. {cure}; if it is so from the first step, set precision to float32"
                )

    def _evaluate(self) -> None:
        if not (losses := self._judge()):
            return
        for name, loss in losses.items():
            self._point(f"dev.loss.{name}", loss)
        mean = math.fsum(losses.values()) / len(losses)
        best = self.notes.best_loss
        if self._settings.keep == "last" or best is None or mean < best:
            self.notes.best_loss, self.notes.best_step, self.notes.dev_losses = mean, self.step, losses
            if self._settings.keep == "best" and self._processes.is_first:
                self._journal.save_best(self.step, self._weights)

    def _save(self, args: Any, optimizer: Any, scheduler: Any) -> None:
        random = random_state(args.device, self._processes.gather)
        if self._processes.is_first:
            notes = {name: getattr(self.notes, name) for name in self.notes.__dataclass_fields__}
            states = optimizer.state_dict(), scheduler.state_dict()
            self._journal.save(State(self.step, self._weights, *states, random, notes))
            self._journal.forget_best(before=self._kept_best)  # the state before this one may still need its own
        self._kept_best = self.notes.best_step

    def _point(self, name: str, value: float) -> None:
        self.notes.points.append((name, self.step, value))
        if self._processes.is_first:
            self._run.on_point(name, self.step, value)

    def _stop_clocks(self) -> None:
        cpu, wall = self._started
        self.notes.cpu_seconds, self.notes.wall_seconds = time.process_time() - cpu, time.perf_counter() - wall


def set_weights(weights: dict[str, Any], saved: dict[str, Tensor]) -> None:
    """Set the weights that are trained to saved ones."""
    copy_weights(weights, saved)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
