"""Tuning a language model on instructions: transformers' Trainer over passes drawn beforehand, with exact resumption.

In one process: ``tune``. In several, one per GPU: ``tune_in_processes``, or as everyone starts them,
``torchrun --nproc-per-node 4 -m kgqa_core.lm.tune JOB.json``, where the file holds a ``TuneJob``.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import torch
from accelerate import PartialState
from pydantic import BaseModel, ConfigDict

from kgqa_core import errors
from kgqa_core.artifacts import hash_file, hash_json
from kgqa_core.errors import KgqaError, is_out_of_memory
from kgqa_core.lm import tune_data as data
from kgqa_core.lm.local import Tunable, open_tunable, save_tuned
from kgqa_core.lm.tune_data import Int, Tokens, TuneJob
from kgqa_core.lm.tune_journal import Journal, OnPoint, Progress, ignore
from kgqa_core.lm.tune_loop import Loop, dev_losses, training_arguments

VERSION = 5  # of how the same inputs become weights: no state of another version is gone on with
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


def tune(job: TuneJob, on_point: OnPoint = ignore, progress: Progress = ignore) -> TuneReport:
    """Fine-tune a local model on instruction data (RoG Eq. 7, EPERM Eq. 8) and save it as ``job.tuned``.

    Under torchrun every process calls this; the first one writes and tells, all return the same figures. Raises
    InputError or ConfigError for what cannot be used, and KgqaError where the loss became NaN, or memory is full.
    """
    torch.set_num_threads(job.threads)
    with TemporaryDirectory(prefix="kgqa-tune-") as scratch:
        work, section = job.journal or Path(scratch), job.section
        arguments = training_arguments(job, scratch)  # here several processes find each other
        rank, count = arguments.process_index, arguments.world_size
        tunable = open_tunable(job, device=str(arguments.device))
        tokens, key = _tokens(job, tunable, work)
        batches = data.draw_batches(tokens, section, seed=job.seed, num_processes=count)
        judged = data.dev_sample(tokens, section.dev_examples, job.seed)
        judging = {"rank": rank, "count": count, "batch_size": batches.shape[3]}
        made_of = [key, section.model_dump(mode="json"), job.seed, job.device, count]
        made_of += ["sharded"] if job.sharded else []
        journal = Journal(
            job,
            work / "states",
            identity=hash_json(made_of),
            weights=tunable.weights,
            shares=tokens.shares(batches),
            judge=lambda: dev_losses(tunable, tokens, judged, **judging),
            steps=len(batches),
            told=(on_point, progress) if rank == 0 else (ignore, ignore),
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
    brought = tunable.start_sha256  # an adapter may bring a tokenizer
    key = hash_json([VERSION, files, tunable.base_sha256, brought, tunable.max_length])
    folder = work / "tokens" / key[:16]
    if not folder.exists() and (PartialState().is_main_process or job.journal is None):
        data.write_tokens(job.examples, tunable.tokenizer, folder, max_length=tunable.max_length)
    PartialState().wait_for_everyone()
    tokens = data.read_tokens(folder)
    for name, count in sorted(tokens.too_long.items()):
        _log.warning("%d examples of %s are longer than %d tokens: dropped", count, name, tunable.max_length)
    return tokens, key


def _train(tunable: Tunable, tokens: Tokens, batches: Int, job: TuneJob, arguments: Any, journal: Journal) -> None:
    steps, accumulated, _, size = batches.shape
    done, section = journal.notes.step, job.section
    if done < steps:
        arguments.max_steps, arguments.gradient_accumulation_steps = steps - done, accumulated
        arguments.per_device_train_batch_size = size
        passes = data.passes_of(tokens, batches[done:], rank=arguments.process_index, pad=tunable.pad)
        loop = Loop(passes, steps, tunable.precision, model=tunable.model, args=arguments, callbacks=[journal])
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
    job: TuneJob, processes: int, on_point: OnPoint = ignore, progress: Progress = ignore
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
        own |= {"TMPDIR": scratch}  # processes that are killed, and torchrun always, leave folders behind
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
