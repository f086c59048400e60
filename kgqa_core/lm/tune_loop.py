"""The training loop: transformers' Trainer over passes that were drawn beforehand, and a journal to go on from.

Shape letters: B rows, T tokens of a row, K target tokens of a forward pass, P processes, V vocabulary.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast, gather
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import KgqaError, shorten
from kgqa_core.lm.tune_data import TuneJob

Weights = dict[str, nn.Parameter]
CURVES = {"loss": "loss", "gradient_norm": "grad_norm", "learning_rate": "learning_rate"}  # ours -> Trainer's
TENSORS, STATE, BEST = "state.safetensors", "state.json", "best-{step}.safetensors"
SAVING_SHARE = 20  # saving takes at most one part in so many of the time
_log = logging.getLogger(__name__)


class Loop(Trainer):
    """Trainer over passes that were drawn beforehand, with the weighted loss, and a schedule over all steps.

    A pass's loss is a sum over its targets, weighted so that all passes of a step add up to the step's loss: in a sum,
    it does not matter how many passes and processes share a step.

    Args:
        passes: this process's, each as ``collate`` makes it; ``args.max_steps`` says how many steps they are.
        steps: of the whole training, of which a resumed one only does the rest.
    """

    loss_is_scaled_for_ga = True  # Trainer then does not divide it by the number of accumulated passes

    def __init__(
        self, passes: Iterable[dict[str, Tensor]], steps: int, precision: torch.dtype = torch.float32, **options: Any
    ) -> None:
        super().__init__(**options)
        self._passes, self._steps, self._precision = passes, steps, precision
        self.remove_callback(PrinterCallback)

    def get_train_dataloader(self) -> Any:
        """Return the passes, which no loader has to batch or shuffle."""
        return self._passes

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the schedule of the whole training."""
        return super().create_scheduler(self._steps, optimizer)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the loss of one pass, times the processes, over which gradients are averaged."""
        nll = target_nll(model, inputs, self._precision)
        loss = (nll * inputs["weights"]).sum() * self.args.world_size
        return (loss, nll) if return_outputs else loss


def target_nll(model: Any, inputs: dict[str, Tensor], precision: torch.dtype) -> Tensor:
    """Return the negative log-likelihood [K] of each target token, natural log, at least float32.

    The head is applied where a target token is predicted and nowhere else. Autocast is around this one pass: around a
    loop it would go on using the first step's weights.
    """
    reads = {name: inputs[name] for name in ("input_ids", "position_ids", "logits_to_keep") if name in inputs}
    with _autocast(inputs["input_ids"].device, precision):
        logits = model(**reads, use_cache=False).logits  # [K, V]
    return cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)), inputs["targets"], reduction="none"
    )


def _autocast(device: torch.device, precision: torch.dtype) -> Any:
    return torch.autocast(device.type, precision) if precision != torch.float32 else nullcontext()


@torch.no_grad()
def packs_cleanly(model: Any, precision: torch.dtype = torch.float32, *, length: int = 8) -> bool:
    """Say whether the second of two packed examples has the logits that it has alone, to 1 % of their spread.

    Architectures differ in this, so the model itself is asked. What comes first is given twice, with other tokens: what
    leaks from it would show.
    """
    device, was_training = next(model.parameters()).device, model.training
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(model.get_input_embeddings().weight.shape[0], (3, 1, length), generator=generator).to(device)
    positions = torch.arange(length, device=device).repeat(2)[None]
    model.eval()
    try:
        with _autocast(device, precision):
            alone = model(input_ids=drawn[0], use_cache=False).logits.float()
            rows = [torch.cat([before, drawn[0]], dim=1) for before in drawn[1:]]
            packed = [model(input_ids=row, position_ids=positions, use_cache=False).logits.float() for row in rows]
    except TypeError:  # it takes no positions
        return False
    finally:
        model.train(was_training)
    return all(bool((one[:, length:] - alone).abs().max() <= 0.01 * alone.std()) for one in packed)


def training_arguments(work: str, device: str, **options: Any) -> TrainingArguments:
    """Return Trainer's arguments; under torchrun this joins the other processes, which share no GPU."""
    arguments = TrainingArguments(
        output_dir=work,  # stays empty: Trainer saves nothing
        use_cpu=device == "cpu",
        optim="adamw_torch_fused",
        activation_checkpointing_kwargs={"use_reentrant": False},
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
        **options,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs are for several processes, never for DataParallel
    return arguments


@dataclass
class Notes:
    """What is known of an unfinished training beside its tensors; JSON at rest."""

    step: int = 0  # optimiser steps done
    points: list[tuple[str, int, float]] = field(default_factory=list)  # of curves: name, step, value
    since: list[list[float]] = field(default_factory=list)  # CURVES of each step after the last point
    best_step: int = 0  # whose weights are kept; 0: dev was not judged yet
    best_loss: float | None = None  # mean over the instructions
    dev_losses: dict[str, float] = field(default_factory=dict)  # instruction -> loss of the weights that are kept
    cpu_seconds: float = 0.0


class Journal(TrainerCallback):
    """Accounts for each step, judges dev, and saves now and then all that an exact continuation needs.

    States are folders ``step-N`` of safetensors and JSON, each whole or not there; two are kept. Trainer's own
    checkpoints are pickled, so they are not used.

    Args:
        job: says how often states are saved (without ``journal`` never), when dev is judged, which weights are kept.
        folder: of states and best weights.
        identity: hash of all that the training is made of; states of another one are removed.
        weights: the trained parameters by name; those of a state that is found are put into them.
        judge: returns the dev loss per instruction, the same in every process; empty without dev examples.
        steps: of the whole training.
        on_point: told each point of the curves (name, step, value), those of a training that is gone on with first.
        progress: told (steps done, steps in all).
    """

    def __init__(
        self,
        job: TuneJob,
        folder: Path,
        *,
        identity: str,
        weights: Weights,
        judge: Callable[[], dict[str, float]],
        steps: int,
        on_point: Callable[[str, int, float], None],
        progress: Callable[[int, int], None],
    ) -> None:
        self._job, self._folder, self._identity = job, folder, identity
        self._weights, self._judge, self._steps = weights, judge, steps
        self._on_point, self._progress = on_point, progress
        times = job.section.num_evaluations  # evenly, the last after the last step
        self._judged_at = {max(1, round(steps * (index + 1) / times)) for index in range(times)}
        self._next = time.monotonic() + job.save_every  # when the next state is due
        self.notes, self._tensors, self._groups = Notes(), dict[str, Tensor](), dict[str, Any]()
        self._find_state()
        self._saved_best = self.notes.best_step  # best step when a state was last saved
        for point in self.notes.points:
            on_point(*point)

    def _find_state(self) -> None:
        """Take up the last state that can be read, if there is one."""
        for folder in sorted(self._folder.glob("step-*"), reverse=True):
            try:
                told = json.loads((folder / STATE).read_text(encoding="utf-8"))
                if told["identity"] != self._identity:
                    _log.warning("%s is of another training: beginning anew", folder)
                    shutil.rmtree(folder, ignore_errors=True)
                    continue
                self._tensors = load_file(folder / TENSORS)
                set_weights(self._weights, _part(self._tensors, "weights"))
                self.notes, self._groups = Notes(**told["notes"]), told["groups"]
                _log.info("going on after step %d of %d", self.notes.step, self._steps)
                return
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as problem:
                _log.warning("cannot go on from %s: %s", folder, shorten(str(problem)))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set optimiser, schedule and random numbers to where the state that was found has them."""
        if self._groups:
            moments: dict[int, dict[str, Tensor]] = {}
            for name, tensor in _part(self._tensors, "optimizer").items():
                index, _, rest = name.partition(".")
                moments.setdefault(int(index), {})[rest] = tensor
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
        notes, job, is_first = self.notes, self._job, args.process_index == 0
        notes.step += 1
        for name, what in (("loss", "loss"), ("grad_norm", "gradient")):
            if not math.isfinite(logs[name]):
                raise KgqaError(f"the {what} became {logs[name]} in step {notes.step} of {self._steps}. {self._cure()}")
        points = []
        notes.since.append([logs[name] for name in CURVES.values()])
        if len(notes.since) >= job.curve_every or notes.step == self._steps:
            for name, values in zip(CURVES, zip(*notes.since, strict=True), strict=True):
                points.append((f"train.{name}", notes.step, math.fsum(values) / len(values)))
            notes.since.clear()
        if notes.step in self._judged_at and (losses := self._judge()):
            points += [(f"dev.loss.{name}", notes.step, loss) for name, loss in losses.items()]
            self._note_losses(losses, is_first)
        notes.points += points
        notes.cpu_seconds = time.process_time() - self._began
        due = torch.tensor([time.monotonic() >= self._next], dtype=torch.int64, device=args.device)
        if job.journal is not None and broadcast(due).item():  # the first process's clock counts
            self._save(args, kwargs["optimizer"], kwargs["lr_scheduler"])
        if is_first:
            for point in points:
                self._on_point(*point)
            self._progress(notes.step, self._steps)

    def _cure(self) -> str:
        section = self._job.section
        cure = f"Lower learning_rate ({section.learning_rate:g}) or raise warmup ({section.warmup:g})"
        cure += ", or clip gradients (gradient_norm 1)" if section.gradient_norm == 0 else ""
        return f"{cure}; if it is so from the first step, set precision to float32"

    def _note_losses(self, losses: dict[str, float], is_first: bool) -> None:
        notes, mean, best = self.notes, math.fsum(losses.values()) / len(losses), self._job.section.keep == "best"
        if best and notes.best_loss is not None and mean >= notes.best_loss:
            return
        notes.best_loss, notes.best_step, notes.dev_losses = mean, notes.step, losses
        if best and is_first:
            self._folder.mkdir(parents=True, exist_ok=True)
            with written_whole(self._folder / BEST.format(step=notes.step)) as partial:
                save_file(_at_rest(self._weights), partial)

    def _save(self, args: Any, optimizer: Any, scheduler: Any) -> None:
        """Save a state; every process gives its random numbers, the first one writes."""
        started = time.monotonic()
        random = {"cpu": gather(torch.get_rng_state()[None].to(args.device))}
        if args.device.type == "cuda":
            random["cuda"] = gather(torch.cuda.get_rng_state(args.device)[None].to(args.device))
        if args.process_index == 0:
            told = optimizer.state_dict()
            tensors: dict[str, Tensor] = {f"weights.{name}": weight for name, weight in self._weights.items()}
            tensors |= {f"random.{name}": rows for name, rows in random.items()}
            for index, moments in told["state"].items():
                tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(one) for name, one in moments.items()}
            groups = {"optimizer": told["param_groups"], "scheduler": scheduler.state_dict()}
            state = {"identity": self._identity, "groups": groups, "notes": asdict(self.notes)}
            self._folder.mkdir(parents=True, exist_ok=True)
            with written_whole(self._folder / f"step-{self.notes.step:08d}") as partial:
                partial.mkdir()
                save_file(_at_rest(tensors), partial / TENSORS)
                (partial / STATE).write_text(json.dumps(state), encoding="utf-8")
            for folder in sorted(self._folder.glob("step-*"), reverse=True)[2:]:
                shutil.rmtree(folder, ignore_errors=True)
            for file in self._folder.glob(BEST.format(step="*")):
                if int(file.stem.partition("-")[2]) < self._saved_best:  # the state before this one may need its own
                    file.unlink(missing_ok=True)
        self._saved_best = self.notes.best_step
        now = time.monotonic()
        self._next = now + (max(self._job.save_every, (now - started) * SAVING_SHARE) if self._job.save_every else 0)

    def restore_best(self) -> None:
        """Set the weights to those of the lowest dev loss, where they are wanted and dev was judged."""
        if self._job.section.keep == "best" and self.notes.best_step:
            set_weights(self._weights, load_file(self._folder / BEST.format(step=self.notes.best_step)))


def _part(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Return the tensors of a kind, by the rest of their names."""
    return {name.removeprefix(f"{kind}."): one for name, one in tensors.items() if name.startswith(f"{kind}.")}


def _at_rest(tensors: Any) -> dict[str, Tensor]:
    return {name: one.detach().cpu().contiguous() for name, one in tensors.items()}


def set_weights(weights: Weights, saved: dict[str, Tensor]) -> None:
    """Set the trained parameters to what was saved under their names; KeyError where names differ."""
    if set(weights) != set(saved):
        raise KeyError(f"{len(set(weights) ^ set(saved))} names of weights differ")
    with torch.no_grad():
        for name, parameter in weights.items():
            parameter.copy_(saved[name])
