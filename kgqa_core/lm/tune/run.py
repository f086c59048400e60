"""Tuning a model on instruction data, start to end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from kgqa_core.artifacts import hash_file, hash_json
from kgqa_core.errors import KgqaError
from kgqa_core.lm.identity import HashFile, hash_model
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
        tunable = open_tunable(base, settings, base_sha256=hash_model(base, hash_base), device=run.device)
        tokens = _tokens(files, tunable, work, shared=run.journal is not None, processes=processes)
        batches = draw_batches(tokens, settings, processes.count)
        try:
            watch = _train(tunable, tokens, batches, settings=settings, run=run, work=work, processes=processes)
        except torch.cuda.OutOfMemoryError as problem:
            raise KgqaError(_out_of_memory(settings, batches)) from problem
        folder = run.out
        if processes.is_first:
            folder = save_tuned(tunable, run.out, settings)
        processes.leave()
    return _report(folder, tunable, tokens, batches, watch)


def _tokens(files: Sequence[Path], tunable: Tunable, work: Path, *, shared: bool, processes: Processes) -> Tokens:
    """Return the examples as tokens, made by the first process that needs them."""
    key = tokens_key(files, tunable.tokenizer, tunable.max_length)
    folder = work / "tokens" / key[:16]
    if not folder.exists() and (processes.is_first or not shared):
        write_tokens(files, tunable.tokenizer, folder, max_length=tunable.max_length)
        forget_other_tokens(folder)
    processes.wait()
    tokens = read_tokens(folder)
    for name, count in sorted(tokens.too_long.items()):
        _log.warning("%d examples of %s are longer than %d tokens: dropped", count, name, tunable.max_length)
    return tokens


def _train(
    tunable: Tunable,
    tokens: Tokens,
    batches: Int,
    *,
    settings: TuneSettings,
    run: TuneRun,
    work: Path,
    processes: Processes,
) -> Watch:
    """Train to the end and leave in the model the weights that are kept."""
    identity = [VERSION, asdict(settings), tunable.base_sha256, run.device, processes.count]
    journal = Journal(work / "states", hash_json([*identity, tokens_key([], tunable.tokenizer, 0)]), run.save_every)
    weights = tunable.trainable()
    precision = precision_of(settings, run.device)
    pad = _pad(tunable.tokenizer)
    state = journal.load() if run.journal else None
    if state is not None:
        set_weights(weights, state.weights)
        _log.info("going on after step %d of %d", state.step, len(batches))
    sample = dev_sample(tokens, settings.dev_examples, settings.seed)

    def judge() -> dict[str, float]:
        mine = sample[processes.rank :: processes.count]
        sums = dev_sums(tunable.model, tokens, mine, batch_size=batches.shape[3], pad=pad, precision=precision)
        return losses_of(tokens, processes.add(sums))

    watch = Watch(
        settings,
        run,
        state=state,
        weights=weights,
        judge=judge,
        evaluate_at=evaluation_steps(len(batches), settings.num_evaluations),
        journal=journal,
        processes=processes,
    )
    packed = settings.batching == "packed"
    if packed and not packs_cleanly(tunable.model):
        _log.warning("%s does not keep packed examples apart: one example per row", tunable.name)
        packed = False
    parts = Parts(
        tokens,
        batches,
        rank=processes.rank,
        first=watch.step,
        pad=pad,
        row_length=tunable.max_length if packed else None,
        per_example=settings.loss_mean == "example",
    )
    if len(parts):
        loop = Loop(
            model=tunable.model,
            args=_arguments(settings, run, work, batches, steps=len(batches) - watch.step),
            parts=parts,
            all_steps=len(batches),
            precision=precision,
            callbacks=[watch],
        )
        _quieten(loop)
        loop.train()
    if settings.keep == "best" and 0 < watch.notes.best_step < watch.step:
        set_weights(weights, journal.load_best(watch.notes.best_step))
    return watch


def evaluation_steps(steps: int, count: int) -> list[int]:
    """Return after which steps dev is judged: evenly, the last after the last."""
    return sorted({max(1, round(steps * (index + 1) / max(count, 1))) for index in range(max(count, 1))})


def _arguments(settings: TuneSettings, run: TuneRun, work: Path, batches: Int, *, steps: int) -> Any:
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


def _quieten(loop: Loop) -> None:
    from transformers import PrinterCallback

    loop.remove_callback(PrinterCallback)


def _pad(tokenizer: Any) -> int:
    """Return the token beyond a row's end; nothing ever sees it."""
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)


def _out_of_memory(settings: TuneSettings, batches: Int) -> str:
    cures = [f"lower micro_batch (now {batches.shape[3]})"] if batches.shape[3] > 1 else []
    cures += [] if settings.gradient_checkpointing else ["set gradient_checkpointing"]
    cures += [f"lower max_length (now {settings.max_length})"]
    return f"the GPU's memory does not hold a step: {', or '.join(cures)}"


def _report(folder: Path, tunable: Tunable, tokens: Tokens, batches: Int, watch: Watch) -> TuneReport:
    train = [point for point in watch.notes.points if point[0] == "train.loss"]
    notes = watch.notes
    return TuneReport(
        folder=folder,
        num_steps=watch.step,
        num_examples={name: int(tokens.of(name, dev=False).size) for name in tokens.names},
        num_too_long=tokens.too_long,
        num_tokens=int(tokens.lengths[batches].sum()),
        train_loss=train[-1][2],
        dev_losses=notes.dev_losses,
        best_step=notes.best_step or watch.step,
        num_trainable=sum(one.numel() for one in tunable.trainable().values()),
        num_parameters=sum(one.numel() for one in tunable.model.parameters()),
        cpu_seconds=notes.cpu_seconds,
        wall_seconds=notes.wall_seconds,
    )
