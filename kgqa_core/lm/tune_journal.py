"""The journal of a tuning: what is known of each step, and the states from which a killed training goes on exactly."""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast, gather
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from kgqa_core.artifacts import write_tensors, written_whole
from kgqa_core.errors import KgqaError, shorten
from kgqa_core.lm.tune_data import TuneJob

CURVES = {"loss": "loss", "gradient_norm": "grad_norm", "learning_rate": "learning_rate"}  # ours -> Trainer's
TENSORS, STATE = "state.safetensors", "state.json"
SAVING_SHARE = 20  # saving takes at most one part in so many of the time
OnPoint = Callable[[str, int, float], None]  # told each point of the curves: name, step, value
Progress = Callable[[int, int], None]  # told steps done, and steps in all


def ignore(*_: object) -> None:
    """Be told, and do nothing: an ``OnPoint`` or a ``Progress`` where nobody listens."""


_log = logging.getLogger(__name__)


@dataclass
class Notes:
    """What is known of an unfinished training beside its tensors; JSON at rest."""

    step: int = 0  # optimiser steps done
    points: list[tuple[str, int, float]] = field(default_factory=list)  # of curves: name, step, value
    since: list[list[float]] = field(default_factory=list)  # CURVES of each step after the last point
    dev_losses: dict[str, float] = field(default_factory=dict)  # instruction -> loss of the last evaluation
    best: tuple[int, float] | None = None  # step and dev loss of the best evaluation so far
    cpu_seconds: float = 0.0


class Journal(TrainerCallback):
    """Accounts for each step, judges dev, and saves now and then all that an exact continuation needs.

    States are folders ``step-N`` of safetensors and JSON, each whole or not there; two are kept. Of a sharded training
    each process has a file of its own shards in them. Trainer's own checkpoints are pickled, so they are not used.
    """

    def __init__(
        self,
        job: TuneJob,
        folder: Path,
        *,
        identity: str,  # hash of all that the training is made of; states of another one are removed
        weights: dict[str, nn.Parameter],  # that are trained; those of a state that is found are put into them
        judge: Callable[[], dict[str, float]],  # returns the dev loss per instruction; empty without dev examples
        shares: dict[str, float],  # instruction -> its weight in the training loss; 0: none is drawn
        steps: int,
        told: tuple[OnPoint, Progress],  # also what was told before a kill
    ) -> None:
        self._job, self.folder, self._identity = job, folder, identity
        self._weights, self._judge, self._shares, self._steps = weights, judge, shares, steps
        self._on_point, self._progress = told
        times = job.section.num_evaluations  # evenly, the last after the last step
        self._judged_at = {max(1, round(steps * (index + 1) / times)) for index in range(times)}
        self._next = time.monotonic() + job.save_every  # when the next state is due
        self.notes, self._tensors, self._groups = Notes(), dict[str, Tensor](), dict[str, Any]()
        self._best: dict[str, Tensor] = {}  # the weights of the best evaluation, where not the last
        rank = PartialState().process_index
        self._file = TENSORS if rank == 0 or not job.sharded else f"state-{rank}.safetensors"  # has what is held here
        found = sorted(folder.glob("step-*"), reverse=True)
        PartialState().wait_for_everyone()  # all know the same states, before one removes any
        for state in found:  # the last one that all can read
            able = torch.tensor([int(self._read(state))], device=next(iter(weights.values())).device)
            if gather(able).all():
                break
            self.notes, self._tensors, self._groups = Notes(), {}, {}
        saved, self._best = _part(self._tensors, "weights"), _part(self._tensors, "best")
        with torch.no_grad():
            for name, one in saved.items():
                local(weights[name]).copy_(one)
        for point in self.notes.points:
            self._on_point(*point)

    def _read(self, state: Path) -> bool:
        """Read a state; say whether the training can go on from it."""
        try:
            said = json.loads((state / STATE).read_text(encoding="utf-8"))
            if said["identity"] != self._identity:
                _log.warning("%s is of another training: beginning anew", state)
                shutil.rmtree(state, ignore_errors=True)
                return False
            self._tensors = load_file(state / self._file)
            if differ := set(self._weights) ^ set(_part(self._tensors, "weights")):
                raise KeyError(f"{len(differ)} names of weights differ")
            self.notes, self._groups = Notes(**said["notes"]), said["groups"]
            _log.info("going on after step %d of %d", self.notes.step, self._steps)
            return True
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as problem:
            _log.warning("cannot go on from %s: %s", state, shorten(str(problem)))
            return False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set optimiser, schedule and random numbers to where the state that was found has them."""
        if self._groups:
            moments: dict[int, dict[str, Tensor]] = {}
            tuned = [one for group in kwargs["optimizer"].param_groups for one in group["params"]]
            for name, tensor in _part(self._tensors, "optimizer").items():
                index, _, rest = name.partition(".")
                moments.setdefault(int(index), {})[rest] = _divided_as(tuned[int(index)], tensor)
            kwargs["optimizer"].load_state_dict({"state": moments, "param_groups": self._groups["optimizer"]})
            kwargs["lr_scheduler"].load_state_dict(self._groups["scheduler"])
            # A row per process; torch would read the first row of a view, so it is copied.
            torch.set_rng_state(self._tensors["random.cpu"][args.process_index].clone())
            if args.device.type == "cuda":
                torch.cuda.set_rng_state(self._tensors["random.cuda"][args.process_index].clone(), args.device)
        self._tensors, self._groups = {}, {}
        self._began = time.process_time() - self.notes.cpu_seconds

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Account for one step; Trainer calls this after each, and once at the end with figures of its own."""
        logs: dict[str, float] = kwargs["logs"]
        if "loss" not in logs:
            return
        notes, job, section = self.notes, self._job, self._job.section
        notes.step += 1
        for name, what in (("loss", "loss"), ("grad_norm", "gradient")):
            if not math.isfinite(logs[name]):
                clip = ", or clip gradients (gradient_norm 1)" if section.gradient_norm == 0 else ""
                raise KgqaError(
                    f"the {what} became {logs[name]} in step {notes.step} of {self._steps}. Lower learning_rate "
                    f"({section.learning_rate:g}) or raise warmup ({section.warmup:g}){clip}; if it is so from the "
                    "first step, set precision to float32"
                )
        points = []
        notes.since.append([logs[name] for name in CURVES.values()])
        if len(notes.since) >= job.curve_every or notes.step == self._steps:
            for name, values in zip(CURVES, zip(*notes.since, strict=True), strict=True):
                points.append((f"train.{name}", notes.step, math.fsum(values) / len(values)))
            notes.since.clear()
        if notes.step in self._judged_at and (losses := self._judge()):
            points += [(f"dev.loss.{name}", notes.step, loss) for name, loss in losses.items()]
            self._keep(losses, copy=job.sharded or args.process_index == 0)  # which else saves alone
        notes.points += points
        notes.cpu_seconds = time.process_time() - self._began
        due = torch.tensor([time.monotonic() >= self._next], dtype=torch.int64, device=args.device)
        if job.journal is not None and broadcast(due).item():  # the first process's clock counts
            self._save(args, kwargs["optimizer"], kwargs["lr_scheduler"])
        for point in points:
            self._on_point(*point)
        self._progress(notes.step, self._steps)

    def _keep(self, losses: dict[str, float], *, copy: bool) -> None:
        """Remember an evaluation; copy the weights where it is the best: the least loss of what is trained, on dev.

        Each instruction counts by its share of the training: the few dev examples of a rare one are noise.
        """
        notes, total = self.notes, math.fsum(self._shares[name] for name in losses)
        shares = self._shares if total else dict.fromkeys(losses, 1.0)  # dev has nothing of what is trained
        mean = math.fsum(shares[name] * loss for name, loss in losses.items()) / (total or len(losses))
        if self._job.section.keep == "last":
            notes.dev_losses = losses
        elif notes.best is None or mean < notes.best[1]:
            notes.best, notes.dev_losses = (notes.step, mean), losses
            self._best = {name: local(one.detach()).cpu().clone() for name, one in self._weights.items() if copy}

    @torch.no_grad()
    def restore_best(self) -> None:
        """Put the weights of the best evaluation into the model, where they are kept."""
        for name, best in self._best.items():
            local(self._weights[name]).copy_(best)

    def _save(self, args: Any, optimizer: Any, scheduler: Any) -> None:
        """Save a state; every process gives its random numbers, the first one writes, and who else has shards."""
        started = time.monotonic()
        random = {"cpu": gather(torch.get_rng_state()[None].to(args.device))}
        if args.device.type == "cuda":
            random["cuda"] = gather(torch.cuda.get_rng_state(args.device)[None].to(args.device))
        if self._job.sharded or args.process_index == 0:
            told = optimizer.state_dict()
            tensors: dict[str, Tensor] = {f"weights.{name}": weight for name, weight in self._weights.items()}
            tensors |= {f"best.{name}": weight for name, weight in self._best.items()}
            tensors |= {f"random.{name}": rows for name, rows in random.items()}
            for index, moments in told["state"].items():
                tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(one) for name, one in moments.items()}
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tensors(self.folder / self._file, {name: local(one.detach()) for name, one in tensors.items()})
        PartialState().wait_for_everyone()
        if args.process_index == 0:
            groups = {"optimizer": told["param_groups"], "scheduler": scheduler.state_dict()}
            state = {"identity": self._identity, "groups": groups, "notes": asdict(self.notes)}
            with written_whole(self.folder / f"step-{self.notes.step:08d}") as partial:
                partial.mkdir()
                for file in self.folder.glob("*.safetensors"):  # no process writes its next one before this one is done
                    file.replace(partial / file.name)
                (partial / STATE).write_text(json.dumps(state), encoding="utf-8")
            for folder in sorted(self.folder.glob("step-*"), reverse=True)[2:]:
                shutil.rmtree(folder, ignore_errors=True)
        now = time.monotonic()
        self._next = now + (max(self._job.save_every, (now - started) * SAVING_SHARE) if self._job.save_every else 0)


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds: all of it, unless it is sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _divided_as(parameter: Tensor, part: Tensor) -> Tensor:
    """Return what ``local`` gave of a parameter's moment as the moment itself; a count of steps stays as it is."""
    if not isinstance(parameter, DTensor) or part.dim() == 0:
        return part
    how: Any = {"run_check": False, "shape": parameter.shape, "stride": parameter.stride()}
    return DTensor.from_local(part.to(parameter.device), parameter.device_mesh, parameter.placements, **how)


def _part(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Return the tensors of a kind, by the rest of their names."""
    return {name.removeprefix(f"{kind}."): one for name, one in tensors.items() if name.startswith(f"{kind}.")}
