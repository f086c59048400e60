"""Tuning a language model on instructions: transformers' Trainer over passes drawn beforehand, with exact resumption.

In one process: ``tune``. In several, one per GPU: ``tune_in_processes``, or as everyone starts them,
``torchrun --nproc-per-node 4 -m kgqa_core.lm.tune JOB.json``, where the file holds a ``TuneJob``.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast, gather
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from kgqa_core import errors
from kgqa_core.artifacts import hash_file, hash_json, written_whole
from kgqa_core.errors import KgqaError, is_out_of_memory, shorten
from kgqa_core.lm import tune_data as data
from kgqa_core.lm.local import Tunable, open_tunable, save_tuned
from kgqa_core.lm.tune_data import Int, Tokens, TuneJob

VERSION = 5  # of how the same inputs become weights: no state of another version is gone on with
CURVES = {"loss": "loss", "gradient_norm": "grad_norm", "learning_rate": "learning_rate"}  # ours -> Trainer's
TENSORS, STATE = "state.safetensors", "state.json"
SAVING_SHARE = 20  # saving takes at most one part in so many of the time
OnPoint = Callable[[str, int, float], None]  # told each point of the curves: name, step, value
Progress = Callable[[int, int], None]  # told steps done, and steps in all
_log = logging.getLogger(__name__)


class TuneReport(BaseModel):
    """What came of a tuning."""

    model_config = ConfigDict(frozen=True)

    folder: Path  # the adapter or the model
    num_steps: int
    num_too_long: dict[str, int]  # instruction -> examples dropped, train and dev
    num_tokens: int  # read by the model in all steps, padding aside
    num_trainable: int  # parameters
    num_parameters: int  # those frozen included
    train_loss: float  # mean over the last point of the curve
    dev_losses: dict[str, float]  # instruction -> mean per target token of the weights that are saved, natural log
    kept_step: int  # whose weights are saved
    cpu_seconds: float  # of the steps and evaluations; one process


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
            tensors = {name: local(one.detach()).cpu().contiguous() for name, one in tensors.items()}
            save_file(tensors, self.folder / self._file)
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


def tune(
    job: TuneJob, on_point: OnPoint = lambda name, step, value: None, progress: Progress = lambda done, total: None
) -> TuneReport:
    """Fine-tune a local model on instruction data (RoG Eq. 7, EPERM Eq. 8) and save it as ``job.tuned``.

    Under torchrun every process calls this; the first one writes and tells, all return the same figures. Raises
    InputError or ConfigError for what cannot be used, and KgqaError where the loss became NaN, or memory is full.
    """
    torch.set_num_threads(job.threads)
    with TemporaryDirectory(prefix="kgqa-tune-") as scratch:
        work, section = job.journal or Path(scratch), job.section
        arguments = data.training_arguments(  # here several processes find each other
            scratch,
            job.device,
            learning_rate=section.learning_rate,
            lr_scheduler_type=section.lr_schedule,
            warmup_steps=section.warmup,
            weight_decay=section.weight_decay,
            adam_beta2=section.adam_beta2,
            max_grad_norm=section.gradient_norm,
            activation_checkpointing=section.gradient_checkpointing,
            # Sharded gradients are summed after each pass: until then, they would be whole on each GPU.
            accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}} if job.sharded else None,
            seed=job.seed,
        )
        rank, count = arguments.process_index, arguments.world_size
        tunable = open_tunable(job, device=str(arguments.device))
        tokens, key = _tokens(job, tunable, work)
        batches = data.draw_batches(tokens, section, seed=job.seed, num_processes=count)
        judged = data.dev_sample(tokens, section.dev_examples, job.seed)
        judging: Any = {
            "rank": rank,
            "count": count,
            "pad": tunable.pad,
            "precision": tunable.precision,
            "batch_size": batches.shape[3],
        }
        journal = Journal(
            job,
            work / "states",
            identity=hash_json(
                [VERSION, key, tunable.start_sha256, section.model_dump(mode="json"), job.seed, job.device, count]
                + job.sharded * ["sharded"]
            ),
            weights=tunable.weights,
            shares=tokens.shares(batches),
            judge=lambda: data.dev_losses(tunable.model, tokens, judged, **judging),
            steps=len(batches),
            told=(on_point, progress) if rank == 0 else (lambda name, step, value: None, lambda done, total: None),
        )
        _train(tunable, tokens, batches, job, arguments, journal)
        journal.restore_best()
        if rank == 0:
            save_tuned(tunable, job)
        elif job.sharded:  # it hands the first one its shards
            tunable.model.save_pretrained(scratch, is_main_process=False)
        PartialState().wait_for_everyone()
    notes = journal.notes
    return TuneReport(
        folder=job.tuned,
        num_steps=notes.step,
        num_too_long=tokens.too_long,
        num_tokens=int(tokens.lengths[batches].sum()),
        num_trainable=sum(one.numel() for one in tunable.weights.values()),
        num_parameters=sum(one.numel() for one in tunable.model.parameters()),
        train_loss=[value for name, _, value in notes.points if name == "train.loss"][-1],
        dev_losses=notes.dev_losses,
        kept_step=notes.best[0] if notes.best else notes.step,
        cpu_seconds=notes.cpu_seconds,
    )


def _tokens(job: TuneJob, tunable: Tunable, work: Path) -> tuple[Tokens, str]:
    """Return the examples as tokens, made once for all processes that share a journal, and the hash of their making."""
    files = [hash_file(file) for file in job.examples]
    key = hash_json([files, tunable.base_sha256, tunable.max_length])
    folder = work / "tokens" / key[:16]
    if not folder.exists() and (PartialState().is_main_process or job.journal is None):
        data.write_tokens(job.examples, tunable.tokenizer, folder, max_length=tunable.max_length)
    PartialState().wait_for_everyone()
    tokens = data.read_tokens(folder)
    for name, count in sorted(tokens.too_long.items()):
        _log.warning("%d examples of %s are longer than %d tokens: dropped", count, name, tunable.max_length)
    return tokens, key


def _train(tunable: Tunable, tokens: Tokens, batches: Int, job: TuneJob, arguments: Any, journal: Journal) -> None:
    """Do the steps that the journal has not seen."""
    steps, accumulated, _, size = batches.shape
    done, section = journal.notes.step, job.section
    if done < steps:
        arguments.max_steps, arguments.gradient_accumulation_steps = steps - done, accumulated
        arguments.per_device_train_batch_size = size
        passes = data.passes_of(tokens, batches[done:], rank=arguments.process_index, pad=tunable.pad)
        loop = data.Loop(passes, steps, tunable.precision, model=tunable.model, args=arguments, callbacks=[journal])
        try:
            loop.train()
        except (RuntimeError, MemoryError) as problem:
            if not is_out_of_memory(problem):
                raise
            is_whole = size > 1 and (arguments.world_size > 1 or section.tuning == "full")
            cures = [f"lower micro_batch (now {size})"] if is_whole else []
            cures += [] if section.gradient_checkpointing else ["set gradient_checkpointing"]
            cures += [f"lower max_length (now {section.max_length})"]
            can_shard = section.tuning == "full" and arguments.device.type == "cuda"
            cures += ["divide the model over several GPUs (runtime.sharded)"] if can_shard and not job.sharded else []
            raise KgqaError(f"the memory does not hold a step: {', or '.join(cures)}") from problem


def do_job(file: Path) -> None:
    """Do the ``TuneJob`` in a file as one of torchrun's processes, and print a line of JSON for each thing to tell."""

    def tell(kind: str, *said: Any) -> None:
        sys.stdout.write(json.dumps([kind, *said]) + "\n")  # at once: print writes the end apart, and processes mix
        sys.stdout.flush()

    job = TuneJob.model_validate_json(file.read_text(encoding="utf-8"))
    try:
        report = tune(job, lambda *point: tell("point", *point), lambda *done: tell("progress", *done))
    except KgqaError as problem:
        tell("error", type(problem).__name__, str(problem))
        raise
    if PartialState().is_main_process:
        tell("report", report.model_dump(mode="json"))
    PartialState().destroy_process_group()


def tune_in_processes(
    job: TuneJob,
    processes: int,
    on_point: OnPoint = lambda name, step, value: None,
    progress: Progress = lambda done, total: None,
) -> TuneReport:
    """Do what ``tune`` does, in several processes of torchrun where more than one is asked for, a GPU for each.

    Raises what ``tune`` raises in any of them, or KgqaError with the last words of one that ended otherwise.
    """
    if processes == 1:
        return tune(job, on_point, progress)
    with TemporaryDirectory(prefix="kgqa-tune-") as scratch, TemporaryFile("w+") as log:
        file = Path(scratch) / "job.json"
        shared = job.model_copy(update={"journal": job.journal or Path(scratch) / "journal"})
        file.write_text(shared.model_dump_json(), encoding="utf-8")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command, own = [*torchrun, "-m", "kgqa_core.lm.tune", str(file)], {"OMP_NUM_THREADS": str(job.threads)}
        own |= {"CUDA_VISIBLE_DEVICES": ""} if job.device == "cpu" else {}  # else shards would be put on a GPU
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": log, "env": {**os.environ, **own}, "text": True}
        with subprocess.Popen(command, **pipes) as started:
            try:
                for line in started.stdout or ():
                    match json.loads(line if line.startswith('["') else "[]"):
                        case ["point", *point]:
                            on_point(*point)
                        case ["progress", *done]:
                            progress(*done)
                        case ["error", kind, message]:
                            raise getattr(errors, kind, KgqaError)(message)
                        case ["report", report]:
                            started.wait()
                            return TuneReport.model_validate(report)
            finally:
                started.terminate()  # torchrun ends its processes with it
        log.seek(0)
        raise KgqaError(f"tuning in {processes} processes ended with {started.returncode}: {log.read()[-1000:]}")


if __name__ == "__main__":
    do_job(Path(sys.argv[1]))
