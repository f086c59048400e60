"""Tuning a language model on instructions: opened, given LoRA weights, trained, and saved as others load it.

In one process: ``tune``. In several, one per GPU: ``tune_in_processes``, or as everyone starts them,
``torchrun --nproc-per-node 4 -m kgqa_core.lm.tune JOB.json``, where the file holds a ``TuneJob``.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import reduce
from pydantic import BaseModel, ConfigDict

from kgqa_core import errors
from kgqa_core.artifacts import hash_file, hash_json, written_whole
from kgqa_core.config_lm import ReasonerSection
from kgqa_core.errors import ConfigError, KgqaError, shorten
from kgqa_core.lm.folders import ABOUT, hash_model, load
from kgqa_core.lm.tune_data import Int, Tokens, TuneJob, collate, draw_batches, read_tokens, write_tokens
from kgqa_core.lm.tune_loop import Journal, Loop, Weights, packs_cleanly, target_nll, training_arguments

VERSION = 2  # of how the same inputs become weights: no state of another version is gone on with
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
    dev_losses: dict[str, float]  # instruction -> mean per target token, natural log; of the weights that are kept
    best_step: int  # whose weights are kept
    cpu_seconds: float  # of the steps and evaluations; one process


@dataclass(frozen=True, slots=True)
class Tunable:
    """A model in training, with what it is made of."""

    model: Any  # a transformers model, in a peft model where LoRA is tuned
    tokenizer: Any
    base_sha256: str
    max_length: int  # tokens of an example
    precision: torch.dtype  # of matrix products

    @property
    def weights(self) -> Weights:
        """The parameters that are trained, by name."""
        return {name: one for name, one in self.model.named_parameters() if one.requires_grad}

    @property
    def pad(self) -> int:
        """The token beyond a row's end; nothing ever sees it."""
        own = self.tokenizer.pad_token_id
        return int(self.tokenizer.eos_token_id if own is None else own)


def tune(
    job: TuneJob,
    on_point: Callable[[str, int, float], None] = lambda name, step, value: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TuneReport:
    """Fine-tune a local model on instruction data (RoG Eq. 7, EPERM Eq. 8) and save it as ``job.tuned``.

    Under torchrun every process calls this; the first one writes and tells, all return the same figures.

    Args:
        job: what is tuned, how and where.
        on_point: told each point of the curves (name, step, value), those before a kill again.
        progress: told (steps done, steps in all).

    Raises:
        InputError: a folder or file that cannot be used, or no example to learn from.
        ConfigError: settings that do not fit.
        KgqaError: the loss became NaN, or a GPU has too little memory; the message says what to lower.
    """
    torch.set_num_threads(job.threads)
    with TemporaryDirectory(prefix="kgqa-tune-") as scratch:
        work = job.journal or Path(scratch)
        arguments = _arguments(job, scratch)  # here several processes find each other
        rank, count = arguments.process_index, arguments.world_size
        tunable = open_tunable(job, device=str(arguments.device))
        tokens, key = _tokens(job, tunable, work)
        batches = draw_batches(tokens, job.section, seed=job.seed, num_processes=count)
        judged = dev_sample(tokens, job.section.dev_examples, job.seed)[rank::count]
        journal = Journal(
            job,
            work / "states",
            identity=hash_json([VERSION, key, job.section.model_dump(mode="json"), job.seed, job.device, count]),
            weights=tunable.weights,
            judge=lambda: dev_losses(tunable, tokens, judged, batch_size=batches.shape[3]),
            steps=len(batches),
            on_point=on_point if rank == 0 else lambda name, step, value: None,
            progress=progress if rank == 0 else lambda done, total: None,
        )
        _train(tunable, tokens, batches, job.section, arguments, journal)
        if rank == 0:
            save_tuned(tunable, job)
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
        best_step=notes.best_step or notes.step,
        cpu_seconds=notes.cpu_seconds,
    )


def _arguments(job: TuneJob, scratch: str) -> Any:
    section = job.section
    return training_arguments(
        scratch,
        job.device,
        learning_rate=section.learning_rate,
        lr_scheduler_type=section.lr_schedule,
        warmup_steps=section.warmup,
        weight_decay=section.weight_decay,
        adam_beta2=section.adam_beta2,
        max_grad_norm=section.gradient_norm,
        activation_checkpointing=section.gradient_checkpointing,
        seed=job.seed,
    )


def _tokens(job: TuneJob, tunable: Tunable, work: Path) -> tuple[Tokens, str]:
    """Return the examples as tokens, made once for all processes that share a journal, and the hash of their making."""
    files = [hash_file(file) for file in job.examples]
    key = hash_json([files, tunable.base_sha256, job.path_tokens, tunable.max_length])
    folder = work / "tokens" / key[:16]
    if not folder.exists() and (PartialState().is_main_process or job.journal is None):
        write_tokens(job.examples, tunable.tokenizer, folder, max_length=tunable.max_length)
    PartialState().wait_for_everyone()
    tokens = read_tokens(folder)
    for name, count in sorted(tokens.too_long.items()):
        _log.warning("%d examples of %s are longer than %d tokens: dropped", count, name, tunable.max_length)
    return tokens, key


def _train(
    tunable: Tunable, tokens: Tokens, batches: Int, section: ReasonerSection, arguments: Any, journal: Journal
) -> None:
    """Do the steps that the journal has not seen, and leave in the model the weights that are kept."""
    steps, accumulated, _, size = batches.shape
    done, model = journal.notes.step, tunable.model
    if done < steps:
        packed = section.batching == "packed"
        if packed and not packs_cleanly(model, tunable.precision):
            _log.warning("%s does not keep packed examples apart: one example per row", model.config.model_type)
            packed = False
        row_length, per_example = tunable.max_length if packed else None, section.loss_mean == "example"
        rest = {"rank": arguments.process_index, "pad": tunable.pad, "row_length": row_length}
        passes = passes_of(tokens, batches[done:], **rest, per_example=per_example)
        arguments.max_steps, arguments.gradient_accumulation_steps = steps - done, accumulated
        arguments.per_device_train_batch_size = size
        loop = Loop(passes, steps, tunable.precision, model=model, args=arguments, callbacks=[journal])
        try:
            loop.train()
        except torch.cuda.OutOfMemoryError as problem:
            cures = [f"lower micro_batch (now {size})"] if size > 1 else []
            cures += [] if section.gradient_checkpointing else ["set gradient_checkpointing"]
            cures += [f"lower max_length (now {section.max_length})"]
            raise KgqaError(f"the GPU's memory does not hold a step: {', or '.join(cures)}") from problem
    journal.restore_best()


def passes_of(
    tokens: Tokens, batches: Int, *, rank: int, pad: int, row_length: int | None = None, per_example: bool = False
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield one process's passes over ``batches`` [S, A, P, M].

    Each target token of a step counts the same, or each target where ``per_example``; times its example's weight.
    """
    many = tokens.num_targets
    for batch in batches:
        for mine in batch[:, rank]:
            share = many[mine] * batch.size if per_example else many[batch].sum()
            yield collate(tokens, mine, tokens.weights[mine] / share, pad=pad, row_length=row_length)


def dev_sample(tokens: Tokens, per_instruction: int, seed: int) -> Int:
    """Return the dev examples that are judged, of like length together."""
    generator = np.random.default_rng([seed, 7])
    chosen = [generator.permutation(tokens.of(name, dev=True))[:per_instruction] for name in tokens.names]
    examples = np.concatenate(chosen)
    return examples[np.argsort(tokens.lengths[examples], kind="stable")]


@torch.no_grad()
def dev_losses(tunable: Tunable, tokens: Tokens, examples: Int, *, batch_size: int) -> dict[str, float]:
    """Return the mean negative log-likelihood of a target token, of each instruction that has dev examples."""
    tunable.model.eval()
    device = tunable.model.device
    sums = torch.zeros(len(tokens.names), 2, dtype=torch.float64)  # of each: negative log-likelihood, target tokens
    for first in range(0, examples.size, batch_size):
        batch = examples[first : first + batch_size]
        inputs = collate(tokens, batch, np.ones(batch.size, np.float32), pad=tunable.pad)
        nll = target_nll(tunable.model, {name: one.to(device) for name, one in inputs.items()}, tunable.precision)
        kinds = torch.from_numpy(np.repeat(tokens.instruction[batch], tokens.num_targets[batch]).astype(np.int64))
        sums.index_add_(0, kinds, torch.stack([nll.double().cpu(), torch.ones(len(kinds), dtype=torch.float64)], dim=1))
    rows = reduce(sums.to(device), "sum").tolist()
    return {name: total / count for name, (total, count) in zip(tokens.names, rows, strict=True) if count}


def open_tunable(job: TuneJob, *, device: str = "cpu") -> Tunable:
    """Open a local folder for tuning.

    With LoRA the base's own weights are frozen, and kept in the type of matrix products. Weights that are trained, and
    their optimiser's moments, are float32.

    Raises:
        InputError: the folder is no model that can be used.
        ConfigError: the section does not fit it.
    """
    torch.manual_seed(job.seed)
    section, base_sha256 = job.section, hash_model(job.base, hash_file)
    on_gpu = device.startswith("cuda") and torch.cuda.is_bf16_supported()
    half = section.precision == "bfloat16" or (section.precision == "auto" and on_gpu)
    loaded = load(job.base, dtype="bfloat16" if half and section.tuning == "lora" else "float32", device=device)
    model, tokenizer = loaded.model, loaded.tokenizer
    add_tokens(model, tokenizer, job.path_tokens)
    if section.tuning == "lora":
        rows = sorted(int(tokenizer.convert_tokens_to_ids(text)) for text in set(job.path_tokens))
        model = with_lora(model, section, trained_rows=rows, autocast=half)
        model.peft_config["default"].base_model_name_or_path = f"{job.base.name}-{base_sha256[:12]}"
    limit = min(section.max_length, loaded.context)
    return Tunable(model, tokenizer, base_sha256, limit, torch.bfloat16 if half else torch.float32)


def add_tokens(model: Any, tokenizer: Any, texts: tuple[str, ...]) -> None:
    """Make each text one token, where it is none; a new token's row is the mean of its text's old tokens' rows."""
    from tokenizers import AddedToken

    spelled = {text: tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts}
    new = [text for text in texts if len(spelled[text]) != 1]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in new])
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tables = {id(table): table for table in (model.get_input_embeddings(), model.get_output_embeddings()) if table}
    with torch.no_grad():
        for text in new:
            for table in tables.values():
                table.weight[tokenizer.convert_tokens_to_ids(text)] = table.weight[spelled[text]].mean(dim=0)


def with_lora(model: Any, section: ReasonerSection, *, trained_rows: list[int], autocast: bool) -> Any:
    """Return the model frozen, with float32 LoRA weights that do nothing yet, and the rows of some tokens trained.

    Where products are made under ``autocast``, peft's own casts before them would be for nothing.

    Raises:
        ConfigError: it has none of the targets, or an adapter of them could not be loaded again.
    """
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora.layer import ParamWrapper

    names = {id(module): name.rpartition(".")[2] for name, module in model.named_modules()}
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    tables = [table] if head is None or head.weight is table.weight else [table, head]
    targets = section.targets if isinstance(section.targets, str) else list(section.targets)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=section.rank,
        lora_alpha=section.alpha,  # type: ignore[arg-type] # a float is as good
        lora_dropout=section.dropout,
        target_modules=targets,
        trainable_token_indices={names[id(one)]: trained_rows for one in tables} if trained_rows else None,
    )
    try:
        with warnings.catch_warnings():  # peft still asks under a name that transformers gave up
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
            adapted = get_peft_model(model, config)
    except ValueError as problem:
        raise ConfigError(f"no LoRA weights for targets {targets!r}: {shorten(str(problem))}") from problem
    module: Any
    for name, module in adapted.named_modules():
        if isinstance(module, ParamWrapper):
            raise ConfigError(
                f"targets {targets!r} reach the fused experts of {model.config.model_type} ({name}): an adapter of "
                "them cannot be loaded again. Name modules, such as targets: [q_proj, k_proj, v_proj, o_proj]"
            )
        if autocast and hasattr(module, "cast_input_dtype_enabled"):
            module.cast_input_dtype_enabled = False
    return adapted


def save_tuned(tunable: Tunable, job: TuneJob) -> None:
    """Write the tuned model, whole or not there; an adapter says which base it is for."""
    job.out.mkdir(parents=True, exist_ok=True)
    with written_whole(job.tuned) as folder:
        folder.mkdir()
        if job.section.tuning == "full":
            tunable.model.config.use_cache = True
            tunable.model.save_pretrained(folder)
            tunable.tokenizer.save_pretrained(folder)
            return
        tunable.model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)  # a form with nothing filled in
        config = folder / "adapter_config.json"
        told = json.loads(config.read_text(encoding="utf-8"))
        if isinstance(told["target_modules"], list):
            told["target_modules"].sort()  # a set, in the order of the day
        config.write_text(json.dumps(told, indent=2, sort_keys=True), encoding="utf-8")
        about = {"base_sha256": tunable.base_sha256, "path_tokens": list(job.path_tokens)}
        (folder / ABOUT).write_text(json.dumps(about, indent=2), encoding="utf-8")
        if job.path_tokens:  # by its tokenizer peft's Auto classes know how far to resize the base
            tunable.tokenizer.save_pretrained(folder)


def do_job(file: Path) -> None:
    """Do the ``TuneJob`` in a file as one of torchrun's processes, and print a line of JSON for each thing to tell.

    Where nobody reads them any more printing fails, and with it the process: nobody waits for what it makes.
    """

    def tell(kind: str, *said: Any) -> None:
        print(json.dumps([kind, *said]), flush=True)

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
    on_point: Callable[[str, int, float], None] = lambda name, step, value: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TuneReport:
    """Do what ``tune`` does, in several processes of this machine where more than one is asked for.

    torchrun starts them; on GPUs each takes one.

    Raises:
        KgqaError: what ``tune`` raises in any of them, or the last words of one that ended otherwise.
    """
    if processes == 1:
        return tune(job, on_point, progress)
    with TemporaryDirectory(prefix="kgqa-tune-") as scratch, TemporaryFile("w+") as log:
        file = Path(scratch) / "job.json"
        shared = job.model_copy(update={"journal": job.journal or Path(scratch) / "journal"})
        file.write_text(shared.model_dump_json(), encoding="utf-8")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command, threads = [*torchrun, "-m", "kgqa_core.lm.tune", str(file)], {"OMP_NUM_THREADS": str(job.threads)}
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": log, "env": {**os.environ, **threads}, "text": True}
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
