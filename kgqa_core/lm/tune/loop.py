"""The training loop: transformers' Trainer over batches that were drawn beforehand, with a loss of our own."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, Trainer

from kgqa_core.lm.tune.batches import Int
from kgqa_core.lm.tune.collate import collate
from kgqa_core.lm.tune.tokens import Tokens


class Parts(Dataset[dict[str, Tensor]]):
    """One process's forward passes from a step on, in order.

    Args:
        tokens: the examples.
        batches: of all steps and processes [S, A, P, M].
        rank: of this process.
        first: optimiser steps already done.
        pad: token for what is beyond a row's end.
        row_length: of packed rows; None: padded.
        per_example: does each target count the same, rather than each target token?
    """

    def __init__(
        self,
        tokens: Tokens,
        batches: Int,
        *,
        rank: int = 0,
        first: int = 0,
        pad: int = 0,
        row_length: int | None = None,
        per_example: bool = False,
    ) -> None:
        self._tokens, self._batches, self._rank, self._first = tokens, batches, rank, first
        self._pad, self._row_length, self._per_example = pad, row_length, per_example
        self._targets = tokens.num_targets

    def __len__(self) -> int:
        steps, parts, _, _ = self._batches.shape
        return int((steps - self._first) * parts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        step, part = divmod(index, self._batches.shape[1])
        batch = self._batches[self._first + step]
        mine = batch[part, self._rank]
        scales = self._tokens.weights[mine]
        scales = scales / (self._targets[mine] * batch.size if self._per_example else self._targets[batch].sum())
        return collate(self._tokens, mine.tolist(), scales.tolist(), pad=self._pad, row_length=self._row_length)


class Loop(Trainer):
    """Trainer, with the drawn batches in place of its sampler, the weighted loss, and a schedule over all steps.

    A loss is the sum over this process's targets, already divided by what the whole step has: so accumulated parts
    and processes add up to the same whatever their number.
    """

    loss_is_scaled_for_ga = True

    def __init__(self, *, parts: Parts, all_steps: int, precision: torch.dtype, **options: Any) -> None:
        super().__init__(train_dataset=parts, **options)
        self._parts, self._all_steps, self._precision = parts, all_steps, precision
        self.remove_callback(PrinterCallback)  # what is told goes through our own

    def get_train_dataloader(self) -> DataLoader[dict[str, Tensor]]:
        """Return this process's parts in order; the generator is there so that the global one stays untouched."""
        return DataLoader(self._parts, batch_size=None, shuffle=False, generator=torch.Generator())

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the schedule of the whole training, of which a resumed one only does the rest."""
        return super().create_scheduler(self._all_steps, optimizer)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the loss of one part, times the processes over which gradients are averaged."""
        nll = target_nll(model, inputs, self._precision)
        loss = (nll * inputs["weights"]).sum() * self.args.world_size
        return (loss, nll) if return_outputs else loss

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], None]:
        """Return the parts of one step; there are no targets to count, since losses are divided already."""
        return [next(epoch_iterator) for _ in range(num_batches)], None


def target_nll(model: Any, inputs: dict[str, Tensor], precision: torch.dtype) -> Tensor:
    """Return the negative log-likelihood [B, K] of each target token, natural log, float32.

    Autocast is around this one pass: around a loop it would go on using the first step's weights.
    """
    kept, targets = inputs["logits_to_keep"], inputs["targets"]
    reads: dict[str, Tensor] = {name: inputs[name] for name in ("input_ids", "position_ids") if name in inputs}
    if selects := selects_logits(model):
        reads["logits_to_keep"] = kept
    with autocast(targets.device, precision):
        logits = model(**reads, use_cache=False).logits
    if not selects:
        logits = logits.take_along_dim(kept[..., None], dim=1)
    flat = cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    return flat.view_as(targets)


def autocast(device: torch.device, precision: torch.dtype) -> AbstractContextManager[Any]:
    """Return the context in which matrix products are of ``precision``."""
    return nullcontext() if precision == torch.float32 else torch.autocast(device.type, dtype=precision)


def selects_logits(model: Any) -> bool:
    """Can the model be told for which positions logits are wanted?"""
    inner: Any = getattr(model, "module", model)  # of DistributedDataParallel
    inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
    return "logits_to_keep" in inspect.signature(inner.forward).parameters


def random_state(device: torch.device, gather: Any = None) -> dict[str, Tensor]:
    """Return the state of torch's generators, a row per process; nothing else is drawn from while training."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    gather = gather or (lambda state: state)
    return {name: gather(state[None].to(device)).cpu() for name, state in states.items()}


def set_random_state(states: dict[str, Tensor], device: torch.device, rank: int) -> None:
    """Set torch's generators to what ``random_state`` returned."""
    torch.set_rng_state(states["cpu"][rank].clone())  # of a view, torch would read the first row
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"][rank].clone(), device)
