"""Training of the explorer: batches, pruning, and a state from which a killed training goes on with equal results.

Attention becomes selective within the first hundred steps, and most of what a full exploration walks then carries
next to nothing. So after ``prune_after`` steps groups of low attention are not entered any more, which makes a step
about ten times cheaper. Nothing is lost by it: a question whose golds all fell to the threshold is explored again
without it, in one of the next steps.

Where no number of epochs is given, there are ``LEAST_EPOCHS``, or more until they are ``LEAST_STEPS``: small sets need
it. What it may cost is counted in edges, not by a clock, so that the same inputs give the same weights on any machine.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kgqa_core.artifacts import sync, write_tensors, written_whole
from kgqa_core.config import ExplorerSection
from kgqa_core.errors import KgqaError, is_out_of_memory, shorten
from kgqa_core.explorer.batch import Int
from kgqa_core.explorer.explore import Lessons, explore_rows, loss_sum
from kgqa_core.explorer.model import Explorer

GRADIENT_NORM = 1.0  # clipped: a hub that sums thousands of messages can make one batch's gradient huge
STATE = "state.safetensors"  # of an unfinished training; its header holds what is no tensor
# Before the names of the weights, of the optimiser's moments, and of the weights of the best epoch so far:
MODEL, ADAM, BEST = "model.", "adam.", "best."
SAVE_EVERY = 20.0  # seconds; a kill costs at most as much work
LEAST_EPOCHS, LEAST_STEPS = 15, 1800  # where no number of epochs is given
STEP_WORK, CLASS_WORK = 50_000, 16  # what a step costs beside its edges, and what a state class costs, in edges
WORK_PER_MINUTE = 5e8  # edges that one CPU walks in training, about
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainStep:
    """What one optimiser step saw."""

    step: int  # 1..num_steps
    num_steps: int  # at most
    epoch: int  # 1..epochs
    ends_epoch: bool
    loss: float  # mean over the questions that had a gold among their candidates; 0 where none had
    coverage: float  # percent of the batch's questions with a gold among their candidates
    learning_rate: float
    edges_per_question: float
    classes_per_node: float
    explored_again: float  # questions that the threshold had cost all golds, in percent of the batch


@dataclass(slots=True)
class TrainState:
    """Where a training stands; with the weights and the optimiser's moments, all that going on needs."""

    step: int = 0  # 0..num_steps, steps done
    work: int = 0  # done so far, in edges walked
    lost: list[list[int]] = field(default_factory=list)  # per lesson: rows to explore again
    hopeless: list[list[int]] = field(default_factory=list)  # per lesson: rows that full exploration did not help


class Trainer:
    """One training, step by step; the same arguments give the same weights on one kind of machine.

    Adam, linear warm-up, linear decay to zero (the papers: 1e-4, weight decay 1e-3, batches of 20, up to 30 epochs; EtD
    B.4). Questions without golds or topics are left out. Batches of several lessons come in random order.
    """

    def __init__(self, model: Explorer, lessons: Sequence[Lessons], settings: ExplorerSection, *, seed: int) -> None:
        self.model, self.lessons, self.settings, self.seed = model, lessons, settings, seed
        self.state = TrainState(lost=[[] for _ in lessons], hopeless=[[] for _ in lessons])
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self._rows = [one.questions.teaching() for one in lessons]
        self._epoch_steps = sum(-(-len(rows) // settings.batch_size) for rows in self._rows)
        self.num_epochs = settings.epochs or max(LEAST_EPOCHS, -(-LEAST_STEPS // max(self._epoch_steps, 1)))
        self.num_steps = self.num_epochs * self._epoch_steps
        self._at_once = settings.batch_size  # questions explored together; fewer where the memory holds fewer

    @property
    def share_done(self) -> float:
        """How much of the training is done, 0..1: by steps or, without a number of epochs, by what they may cost."""
        most = math.inf if self.settings.epochs else self.settings.cpu_minutes * WORK_PER_MINUTE
        return max(self.state.step / self.num_steps, self.state.work / most) if self.num_steps else 1.0

    @property
    def threshold(self) -> float:
        """The attention below which groups are not entered now."""
        return self.settings.prune_below if self.state.step >= self.settings.prune_after else 0.0

    def steps(self) -> Iterator[TrainStep]:
        """Train in place, from where ``state`` stands; yield after every step.

        Raises ``KgqaError`` where the gradient is no longer finite: weights trained further would be worthless.
        """
        while self.share_done < 1:
            epoch, done = divmod(self.state.step, self._epoch_steps)
            for lesson, rows in self._batches(epoch + 1)[done:]:
                if self.share_done < 1:
                    yield self._step(lesson, rows)

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights and the optimiser's moments, by name."""
        found = {f"{MODEL}{name}": weight for name, weight in self.model.state_dict().items()}
        for index, moments in self.optimizer.state_dict()["state"].items():
            found |= {f"{ADAM}{index}.{name}": torch.as_tensor(value) for name, value in moments.items()}
        return found

    def go_on(self, state: TrainState, tensors: dict[str, Tensor]) -> None:
        """Continue where another trainer of the same arguments stood; an error says that the tensors do not fit."""
        moments = defaultdict[int, dict[str, Tensor]](dict)
        for name, tensor in _named(tensors, ADAM).items():
            index, moment = name.split(".")
            moments[int(index)][moment] = tensor
        self.model.load_state_dict(_named(tensors, MODEL))
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.state = state

    def _batches(self, epoch: int) -> list[tuple[int, Int]]:
        """Return the batches of an epoch, (lesson, rows); they depend on seed and epoch alone."""
        random, size = np.random.default_rng([self.seed, epoch]), self.settings.batch_size
        batches = []
        for lesson, rows in enumerate(self._rows):
            order = random.permutation(rows)
            batches += [(lesson, order[start : start + size]) for start in range(0, len(order), size)]
        return [batches[at] for at in random.permutation(len(batches))] if len(self.lessons) > 1 else batches

    def _step(self, lesson: int, rows: Int) -> TrainStep:
        """Take one step down the gradient of a batch, its norm clipped, and of what is to be explored again."""
        state, settings = self.state, self.settings
        rate = settings.learning_rate * min(1.0, (state.step + 1) / max(settings.warmup_steps, 1))
        rate *= 1 - self.share_done
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        lost, again = state.lost[lesson], list[int]()
        if len(lost) >= max(1, settings.batch_size // 4):  # enough to share their state classes
            again, state.lost[lesson] = lost[: settings.batch_size], lost[settings.batch_size :]
        size = len(rows) + len(again)
        still_lost, uncovered, seen = self._gradient(lesson, rows, again)
        state.hopeless[lesson] += still_lost
        if self.threshold and uncovered:
            hopeless = set(state.hopeless[lesson])
            state.lost[lesson] += [row for row in uncovered if row not in hopeless]
        if seen["covered"]:
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_NORM)
            if not torch.isfinite(norm):
                raise KgqaError(
                    f"training diverged (loss {seen['loss']:g}, gradient norm {norm:g}) at learning rate {rate:g}: "
                    "lower explorer.learning_rate"
                )
            self.optimizer.step()
        epoch, done = divmod(state.step, self._epoch_steps)
        state.step += 1
        state.work += int(seen["edges"]) + CLASS_WORK * int(seen["classes"]) + STEP_WORK
        return TrainStep(
            step=state.step,
            num_steps=self.num_steps,
            epoch=epoch + 1,
            ends_epoch=done == self._epoch_steps - 1,
            loss=seen["loss"] / max(seen["covered"], 1),
            coverage=100.0 * (len(rows) - len(uncovered)) / len(rows),
            learning_rate=rate,
            edges_per_question=seen["edges"] / size,
            classes_per_node=seen["classes"] / seen["nodes"],
            explored_again=100.0 * len(again) / len(rows),
        )

    def _gradient(self, lesson: int, rows: Int, again: list[int]) -> tuple[list[int], list[int], dict[str, float]]:
        """Compute a step's gradient; return which rows of ``again`` and of ``rows`` reached no gold, and what was seen.

        Where memory is full it is computed anew by half as many questions at once, as are those of all later steps.
        """
        while True:
            self.optimizer.zero_grad()
            size, seen = len(rows) + len(again), defaultdict[str, float](float)
            try:
                still_lost = self._backward(lesson, np.array(again), size, 0.0, seen) if again else []
                return still_lost, self._backward(lesson, rows, size, self.threshold, seen), seen
            except (RuntimeError, MemoryError) as problem:
                tried = min(self._at_once, max(len(rows), len(again)))
                if not is_out_of_memory(problem):
                    raise
                if tried == 1:
                    cure = "lower explorer.edge_budget or explorer.width"
                    raise KgqaError(f"the memory does not hold a training step of one question: {cure}") from problem
            self._at_once = tried // 2
            _log.warning("out of memory with %d questions at once: going on with %d", tried, self._at_once)
            if torch.cuda.is_available():  # the error is gone, and with it what the attempt held
                torch.cuda.empty_cache()

    def _backward(self, lesson: int, rows: Int, size: int, threshold: float, seen: dict[str, float]) -> list[int]:
        """Add the gradient of some rows, each weighing one ``size``-th; return those that reached no gold."""
        one, settings = self.lessons[lesson], self.settings
        one = replace(one, options=replace(one.options, attention_threshold=threshold))
        if settings.question_noise:
            seed = (self.seed * 1_000_003 + self.state.step) % 2**63  # what torch takes
            texts = one.texts.blurred(np.unique(one.questions.text[rows]), settings.question_noise, seed)
            one = replace(one, texts=texts)
        total, uncovered = 0.0, []
        with torch.autocast(one.texts.relations.device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"):
            # Inside the step: around the loop it would keep stale casts of the weights.
            for part, batch, found in explore_rows(self.model, one, rows, at_once=self._at_once, learn=True):
                loss, covered = loss_sum(found, batch, one.graph.num_entities, per_answer=settings.loss == "per_answer")
                if covered.any():
                    (loss / size).backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach())
                uncovered += part[~covered].tolist()
                for name, count in found.counts.items():
                    seen[name] += count
        seen["loss"] += total
        seen["covered"] += len(rows) - len(uncovered)
        return uncovered


class Journal:
    """Saves a training now and then, and sets a new trainer to where the last one was killed.

    Where ``folder`` is None nothing is kept. The state of a training of another ``identity`` is never gone on with.
    """

    def __init__(self, folder: Path | None, identity: str) -> None:
        self._folder, self._identity, self._saved = folder, identity, time.monotonic()

    def save(self, trainer: Trainer, best: dict[str, Tensor], notes: dict[str, Any], *, now: bool = False) -> None:
        """Keep the training as it stands, at most every ``SAVE_EVERY`` seconds unless ``now``."""
        if self._folder is None or (not now and time.monotonic() - self._saved < SAVE_EVERY):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        tensors = trainer.tensors() | {f"{BEST}{name}": weight for name, weight in best.items()}
        state = json.dumps({"identity": self._identity, "state": asdict(trainer.state), "notes": notes})
        with written_whole(self._folder / STATE) as partial:
            write_tensors(partial, tensors, {"state": state})
            sync(partial)  # after a power cut, too, the file that has the name is whole
        self._saved = time.monotonic()

    def go_on(self, trainer: Trainer, read: Callable[[dict[str, Any]], Any]) -> tuple[dict[str, Tensor], Any] | None:
        """Set ``trainer`` to where the last one stood; return its best weights and notes, or None: begin anew.

        ``read`` makes the notes of what JSON gives; a KeyError or TypeError says that they are of another release.
        """
        if self._folder is None or not (path := self._folder / STATE).is_file():
            return None
        try:
            with safe_open(path, "pt") as file:
                kept = json.loads(file.metadata()["state"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if kept["identity"] != self._identity:
                _log.warning("%s is of another training: beginning anew", path)
                return None
            notes = read(kept["notes"])  # first, so that a trainer that begins anew is fresh
            trainer.go_on(TrainState(**kept["state"]), tensors)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as problem:
            _log.warning("cannot go on from %s: %s", path, shorten(str(problem)))
            return None
        return _named(tensors, BEST), notes


def _named(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Return the tensors of a kind, by the rest of their names."""
    return {name.removeprefix(kind): one for name, one in tensors.items() if name.startswith(kind)}
