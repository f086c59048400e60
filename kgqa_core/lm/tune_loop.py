"""What a tuning does with its model: Trainer over passes drawn beforehand, the loss of a pass, and the losses on dev.

Shape letters are those of ``tune_data``, and V is the vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from accelerate.utils import reduce
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from transformers import PrinterCallback, Trainer, TrainingArguments

from kgqa_core.errors import is_out_of_memory
from kgqa_core.lm.generate import sees_all, shared_prefix
from kgqa_core.lm.local import Tunable
from kgqa_core.lm.tune_data import Int, Tokens, TuneJob, collate

CPU_TOKENS = 2048  # of a pass on a CPU, padding included: larger ones leave the caches, and their memory comes and goes
MOST_COPIED = 10**8  # gradients that are copied before each pass: an adapter's, not those of a whole model
_log = logging.getLogger(__name__)


class Loop(Trainer):
    """Trainer over this process's passes, each as ``collate`` makes it, and a schedule over all steps of the training.

    A pass's loss is a sum over its targets, weighted so that all passes of a step add up to the step's loss: in a sum,
    it does not matter how many passes and processes share a step.
    """

    loss_is_scaled_for_ga = True  # Trainer then does not divide it by the number of accumulated passes

    def __init__(self, passes: Iterable[dict[str, Tensor]], steps: int, precision: torch.dtype, **options: Any) -> None:
        super().__init__(**options)
        self._passes, self._steps, self._precision = passes, steps, precision
        is_sharded = isinstance(self.model, FSDPModule)  # then all processes go through the blocks at the same time
        self._most = CPU_TOKENS if self.args.device.type == "cpu" and not is_sharded else None
        self.remove_callback(PrinterCallback)

    def get_train_dataloader(self) -> Any:
        """Return the passes, which no loader has to batch or shuffle."""
        return self._passes

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the schedule of the whole training, of which a resumed one only does the rest."""
        return super().create_scheduler(self._steps, optimizer)

    def training_step(self, model: Any, inputs: dict[str, Any], *more: Any, **options: Any) -> Tensor:
        """Do one pass, forwards and backwards, in parts that the memory holds; their losses add up to the pass's.

        Where a GPU's memory is full, this pass and all that follow are read in parts half as large. Not so where
        several processes average gradients: the others would wait for ever; nor where all weights are tuned: a copy of
        their gradients, to begin the pass again, would itself fill the memory.
        """
        trained = [one for one in model.parameters() if one.requires_grad]
        is_copied = sum(one.numel() for one in trained) <= MOST_COPIED
        while True:
            before = [None if one.grad is None else one.grad.clone() for one in trained] if is_copied else []
            try:
                return self._in_parts(model, inputs, *more, **options)
            except (RuntimeError, MemoryError) as problem:
                rows, width = inputs["input_ids"].shape
                self._most = min(self._most or rows * width, rows * width) // 2
                whole = not is_out_of_memory(problem) or rows == 1 or not is_copied
                if whole or self._most < width or self.args.world_size > 1:
                    raise
            for parameter, gradient in zip(trained, before, strict=True):
                parameter.grad = gradient
            torch.cuda.empty_cache()
            _log.warning("the memory does not hold a pass of %d x %d tokens: it is read in parts", rows, width)

    def _in_parts(self, model: Any, inputs: dict[str, Any], *more: Any, **options: Any) -> Tensor:
        *first, last = split_pass(inputs, self._most)
        losses = []
        for part in first:
            with model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext():
                losses.append(super().training_step(model, part, *more, **options))
        return torch.stack([*losses, super().training_step(model, last, *more, **options)]).sum()

    def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> Any:
        """Return the loss of one pass, times the processes, over which gradients are averaged."""
        nll = target_nll(model, inputs, self._precision)
        return (nll * inputs["weights"]).sum() * self.args.world_size


def split_pass(inputs: dict[str, Tensor], most: int | None) -> list[dict[str, Tensor]]:
    """Return a pass as parts of rows that hold at most ``most`` tokens each, padding included; one row at least."""
    num_rows, width = inputs["input_ids"].shape
    size = num_rows if most is None else max(1, most // width)
    if size >= num_rows:
        return [inputs]
    many = inputs["logits_to_keep"].sum(dim=1)
    parts, done = [], 0
    for start in range(0, num_rows, size):
        rows = slice(start, start + size)
        keep, targets = inputs["logits_to_keep"][rows], slice(done, done + int(many[rows].sum()))
        ends = int(keep.any(dim=0).nonzero().max()) + 1  # what is behind the last place that predicts tells nothing
        part = {"input_ids": inputs["input_ids"][rows, :ends], "logits_to_keep": keep[:, :ends]}
        parts.append(part | {name: inputs[name][targets] for name in ("targets", "weights")})
        done = targets.stop
    return parts


def target_nll(model: Any, inputs: dict[str, Tensor], precision: torch.dtype) -> Tensor:
    """Return the negative log-likelihood [K] of each target token, natural log, at least float32.

    The head is applied where a target token is predicted and nowhere else. What all prompts begin with (the words of
    one instruction) is read once, and every row goes on from its keys and values, through which its gradients flow.
    Autocast is around this one pass: around a loop it would go on using the first step's weights.
    """
    tokens, keep = inputs["input_ids"], inputs["logits_to_keep"]
    half: Any = nullcontext() if precision == torch.float32 else torch.autocast(tokens.device.type, precision)
    prompts = tokens[:, : int(keep.int().argmax(dim=1).min()) + 1].tolist()
    shared = shared_prefix(prompts)
    with half:
        states = read_shared(model, tokens[0, :shared], len(tokens)) if shared else None
        start = shared if states else 0
        own = {"input_ids": tokens[:, start:], "logits_to_keep": keep[:, start:], "use_cache": states is not None}
        logits = model(**own, past_key_values=states).logits  # [K, V]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(logits, inputs["targets"], reduction="none")


def read_shared(model: Any, tokens: Tensor, num_rows: int) -> Any:
    """Return the cache of ``tokens`` [T], read once, for so many rows; None where the model cannot go on from one."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model  # whose forwards all ranks do alike
    if getattr(inner, "is_activation_checkpointing", False) or not sees_all(inner.config):
        return None  # it keeps no states, or forgets what is behind a window
    if isinstance(inner, FSDPModule):
        return None  # the processes go through its blocks together, and their passes have not the same beginnings
    read = inner(input_ids=tokens[None], logits_to_keep=1, use_cache=True).past_key_values
    layer: Any
    for layer in read.layers:
        layer.keys, layer.values = (one.expand(num_rows, -1, -1, -1) for one in (layer.keys, layer.values))
    return read


def training_arguments(job: TuneJob, scratch: str) -> TrainingArguments:
    """Return Trainer's arguments; under torchrun this joins the other processes, which share no GPU."""
    section = job.section
    arguments = TrainingArguments(
        output_dir=scratch,  # stays empty: Trainer saves nothing
        use_cpu=job.device == "cpu",
        optim="adamw_torch_fused",
        learning_rate=section.learning_rate,
        lr_scheduler_type=section.lr_schedule,
        warmup_steps=section.warmup,
        weight_decay=section.weight_decay,
        adam_beta2=section.adam_beta2,
        max_grad_norm=section.gradient_norm,
        activation_checkpointing=section.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        # Sharded gradients are summed after each pass: until then, they would be whole on each GPU.
        accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}} if job.sharded else None,
        seed=job.seed % 2**32,  # what NumPy takes
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs are for several processes, never for DataParallel
    return arguments


@torch.no_grad()
def dev_losses(
    tunable: Tunable, tokens: Tokens, examples: Int, *, rank: int, count: int, batch_size: int
) -> dict[str, float]:
    """Return the mean negative log-likelihood of a target token, of each instruction that has dev examples.

    Of ``examples`` this process, ``rank`` of ``count``, reads its share, in as many passes as all others: where they
    share a sharded model, none may go through it alone. So the last may be read once more, and is not counted.
    """
    model = tunable.model.eval()
    mine = np.arange(rank, math.ceil(examples.size / count) * count, count)
    sums = torch.zeros(len(tokens.names), 2, dtype=torch.float64)  # of each: negative log-likelihood, target tokens
    for first in range(0, mine.size, batch_size):
        places = mine[first : first + batch_size]
        batch = examples[np.minimum(places, examples.size - 1)]
        inputs = collate(tokens, batch, np.ones(batch.size, np.float32), pad=tunable.pad)
        own = {name: one.to(model.device) for name, one in inputs.items()}
        nll = target_nll(model, own, tunable.precision)
        many = tokens.num_targets[batch]
        kinds = torch.from_numpy(np.repeat(tokens.instruction[batch], many).astype(np.int64))
        counts = torch.from_numpy(np.repeat(places < examples.size, many).astype(np.float64))
        sums.index_add_(0, kinds, torch.stack([nll.double().cpu() * counts, counts], dim=1))
    rows = reduce(sums.to(model.device), "sum").tolist()
    return {name: total / count for name, (total, count) in zip(tokens.names, rows, strict=True) if count}
