"""Tuning a model on instruction data, start to end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from kgqa_core.artifacts import hash_file, hash_json
from kgqa_core.errors import KgqaError
from kgqa_core.lm.folders import HashFile, hash_model
from kgqa_core.lm.tune.base import Tunable, open_tunable, precision_of, save_tuned
from kgqa_core.lm.tune.batches import Int, draw_batches
from kgqa_core.lm.tune.evaluate import dev_sample, dev_sums, losses_of
from kgqa_core.lm.tune.journal import Journal
from kgqa_core.lm.tune.loop import Loop, Parts
from kgqa_core.lm.tune.packing import packs_cleanly
from kgqa_core.lm.tune.processes import Processes, join_processes
from kgqa_core.lm.tune.tokens import Tokens, forget_other_tokens, read_tokens, tokens_key, write_tokens
from kgqa_core.lm.tune.types import TuneReport, TuneRun, TuneSettings
from kgqa_core.lm.tune.watch import Watch, set_weights

VERSION = 1  # of how the same inputs become weights
_log = logging.getLogger(__name__)


def tune(
    base: Path,
    examples: Path | Sequence[Path],
    settings: TuneSettings,
    run: TuneRun,
    *,
    hash_base: HashFile = hash_file,
) -> TuneReport:
    """Fine-tune a local model on instruction data (RoG Eq. 7, EPERM Eq. 8) and save it under ``run.out``.

    Under torchrun or accelerate every process calls this; the first one writes, all return the same figures.

    Args:
        base: a transformers folder.
        examples: files of schemas.INSTRUCTIONS; splits train and dev are used.
        settings: all that shapes the outcome.
        run: where and how.
        hash_base: SHA-256 of a file of ``base``; ``FileHashes.hash`` remembers those of large ones.

    Raises:
        InputError: a folder or file that cannot be used, or no example to learn from.
        ConfigError: settings that do not fit.
        KgqaError: the loss became NaN, or a GPU has too little memory; the message says what to lower.
    """
    torch.set_num_threads(run.threads)
    files = [examples] if isinstance(examples, Path) else list(examples)
    processes = join_processes(run.device)
    with TemporaryDirectory(prefix="kgqa-tune-") as scratch:
        work = run.journal or Path(scratch)
        tunable = open_tunable(base, settings, base_sha256=hash_model(base, hash_base), device=processes.device)
        key = tokens_key(files, tunable.tokenizer, tunable.max_length)
        shared = processes if run.journal else Processes()  # without a journal each process makes its own
        tokens = _tokens(files, tunable, work / "tokens" / key[:16], shared)
        identity = hash_json([VERSION, asdict(settings), tunable.base_sha256, key, run.device, processes.count])
        task = _Task(tunable, tokens, draw_batches(tokens, settings, processes.count), settings, run, processes)
        try:
            watch = _train(task, Journal(work / "states", identity, run.save_every), work / "trainer")
        except torch.cuda.OutOfMemoryError as problem:
            raise KgqaError(_out_of_memory(settings, task.batches)) from problem
        folder = run.out
        if processes.is_first:
            folder = save_tuned(tunable, run.out, settings)
        processes.leave()
    return _report(folder, task, watch)


@dataclass(frozen=True, slots=True)
class _Task:
    """All that a training works with."""

    tunable: Tunable
    tokens: Tokens
    batches: Int  # [S, A, P, M]
    settings: TuneSettings
    run: TuneRun
    processes: Processes

    @property
    def precision(self) -> torch.dtype:
        return precision_of(self.settings, self.run.device)

    @property
    def pad(self) -> int:
        """Return the token beyond a row's end; nothing ever sees it."""
        tokenizer = self.tunable.tokenizer
        return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)


def _tokens(files: Sequence[Path], tunable: Tunable, folder: Path, processes: Processes) -> Tokens:
    """Return the examples as tokens, made by the first process where they are not there."""
    if processes.is_first and not folder.exists():
        write_tokens(files, tunable.tokenizer, folder, max_length=tunable.max_length)
        forget_other_tokens(folder)
    processes.wait()
    tokens = read_tokens(folder)
    for name, count in sorted(tokens.too_long.items()):
        _log.warning("%d examples of %s are longer than %d tokens: dropped", count, name, tunable.max_length)
    return tokens


def _train(task: _Task, journal: Journal, scratch: Path) -> Watch:
    """Train to the end and leave in the model the weights that are kept."""
    weights, num_steps = task.tunable.trainable(), len(task.batches)
    state = journal.load() if task.run.journal else None
    if state is not None:
        set_weights(weights, state.weights)
        _log.info("going on after step %d of %d", state.step, num_steps)
    watch = Watch(
        task.settings,
        task.run,
        state=state,
        weights=weights,
        judge=_judge(task),
        evaluate_at=evaluation_steps(num_steps, task.settings.num_evaluations),
        journal=journal,
        processes=task.processes,
    )
    watch.tell_again()
    if watch.step < num_steps:
        loop = Loop(
            model=task.tunable.model,
            args=arguments_of(task.settings, task.run, scratch, task.batches, steps=num_steps - watch.step),
            parts=_parts(task, watch.step),
            all_steps=num_steps,
            precision=task.precision,
            callbacks=[watch],
        )
        loop.train()
    if task.settings.keep == "best" and watch.notes.best_step:
        set_weights(weights, journal.load_best(watch.notes.best_step))
    return watch


def _judge(task: _Task) -> Callable[[], dict[str, float]]:
    """Return what gives the dev loss per instruction, over what all processes read of dev."""
    sample = dev_sample(task.tokens, task.settings.dev_examples, task.settings.seed)
    mine, size = sample[task.processes.rank :: task.processes.count], task.batches.shape[3]

    def judge() -> dict[str, float]:
        model, pad, precision = task.tunable.model, task.pad, task.precision
        sums = dev_sums(model, task.tokens, mine, batch_size=size, pad=pad, precision=precision)
        return losses_of(task.tokens, task.processes.add(sums))

    return judge


def _parts(task: _Task, first: int) -> Parts:
    """Return this process's forward passes after the ``first`` steps."""
    packed = task.settings.batching == "packed"
    if packed and not packs_cleanly(task.tunable.model):
        _log.warning("%s does not keep packed examples apart: one example per row", task.tunable.name)
        packed = False
    return Parts(
        task.tokens,
        task.batches,
        rank=task.processes.rank,
        first=first,
        pad=task.pad,
        row_length=task.tunable.max_length if packed else None,
        per_example=task.settings.loss_mean == "example",
    )


def evaluation_steps(steps: int, count: int) -> list[int]:
    """Return after which steps dev is judged: evenly, the last after the last."""
    return sorted({max(1, round(steps * (index + 1) / max(count, 1))) for index in range(max(count, 1))})


def arguments_of(settings: TuneSettings, run: TuneRun, work: Path, batches: Int, *, steps: int) -> Any:
    """Return how Trainer is told to do ``steps`` more optimiser steps."""
    from transformers import TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(work / "trainer"),  # stays empty: nothing is saved by Trainer
        max_steps=steps,
        gradient_accumulation_steps=batches.shape[1],
        per_device_train_batch_size=batches.shape[3],
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        adam_beta2=settings.adam_beta2,
        max_grad_norm=settings.gradient_norm,
        optim="adamw_torch_fused",
        activation_checkpointing=settings.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=run.device == "cpu",
        seed=settings.seed,
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


def _out_of_memory(settings: TuneSettings, batches: Int) -> str:
    cures = [f"lower micro_batch (now {batches.shape[3]})"] if batches.shape[3] > 1 else []
    cures += [] if settings.gradient_checkpointing else ["set gradient_checkpointing"]
    cures += [f"lower max_length (now {settings.max_length})"]
    return f"the GPU's memory does not hold a step: {', or '.join(cures)}"


def _report(folder: Path, task: _Task, watch: Watch) -> TuneReport:
    tokens, notes = task.tokens, watch.notes
    losses = [value for name, _, value in notes.points if name == "train.loss"]
    return TuneReport(
        folder=folder,
        num_steps=watch.step,
        num_examples={name: int(tokens.of(name, dev=False).size) for name in tokens.names},
        num_too_long=tokens.too_long,
        num_tokens=int(tokens.lengths[task.batches].sum()),
        train_loss=losses[-1],
        dev_losses=notes.dev_losses,
        best_step=notes.best_step or watch.step,
        num_trainable=sum(one.numel() for one in task.tunable.trainable().values()),
        num_parameters=sum(one.numel() for one in task.tunable.model.parameters()),
        cpu_seconds=notes.cpu_seconds,
        wall_seconds=notes.wall_seconds,
    )
