"""What a tuning is made of: its job, examples as token numbers, who sees which when, and Trainer over those passes.

Shape letters: N examples, S optimiser steps, A passes that a step accumulates, P processes, M examples of a pass,
T tokens of the longest, K target tokens of a pass, V vocabulary.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from accelerate.utils import reduce
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from transformers import PrinterCallback, Trainer, TrainingArguments

from kgqa_core.artifacts import written_whole
from kgqa_core.config_lm import ReasonerSection
from kgqa_core.errors import ConfigError, InputError, is_out_of_memory
from kgqa_core.lm.folders import encode_answers, encode_prompts
from kgqa_core.lm.generate import sees_all, shared_prefix
from kgqa_core.lm.types import Prompt

Int = NDArray[np.int64]
Row = dict[str, Any]  # one example, by column
READ_ROWS = 1024  # rows of instruction data in memory at once
CPU_TOKENS = 2048  # of a pass on a CPU, padding included: larger ones leave the caches, and their memory comes and goes
MOST_COPIED = 10**8  # gradients that are copied before each pass: an adapter's, not those of a whole model
BUCKET_UNITS = 64  # forward passes whose examples are sorted by length together
COLUMNS = ["instruction", "split", "system", "prompt", "target", "weight"]
STREAM, ROWS, FACTS = "tokens.int32", "rows.npy", "facts.json"
_log = logging.getLogger(__name__)
ROW = np.dtype([("length", "i4"), ("num_prompt", "i4"), ("instruction", "i2"), ("dev", "?"), ("weight", "f4")])


class TuneJob(BaseModel):
    """One tuning, as JSON where several processes do it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: Path  # a transformers folder
    adapter: Path | None = None  # of it, in peft's format, that the tuning goes on from
    examples: tuple[Path, ...]  # files of schemas.INSTRUCTIONS; splits train and dev are used
    section: ReasonerSection  # how it is tuned; what it says of the examples was heeded when they were made
    seed: int = 0  # of new weights, dropout and the order of examples
    # From here on: where and how, which shapes nothing.
    out: Path  # gets adapter/ or model/
    journal: Path | None = None  # folder from which a killed training goes on; also keeps the tokens
    device: str = "cpu"  # or cuda; under torchrun each process takes the GPU of its rank
    sharded: bool = False  # weights, gradients and moments are divided over the processes, of torchrun, as FSDP2 does
    threads: int = 1
    curve_every: int = 10  # steps per point of the training curves
    save_every: float = 20.0  # seconds between two states, at least; more where saving takes long; 0: each step

    @property
    def tuned(self) -> Path:
        """Where the tuned model will be: an adapter in peft's format, or a transformers folder."""
        return self.out / ("model" if self.section.tuning == "full" else "adapter")


@dataclass(frozen=True, slots=True)
class Tokens:
    """N examples, one after another: prompt, target, end token."""

    tokens: NDArray[np.int32]  # [all], memory-mapped where they come from a folder
    starts: Int  # [N + 1]
    num_prompt: NDArray[np.int32]  # [N] tokens before the target
    weights: NDArray[np.float32]  # [N] of the loss; their mean over the training examples is 1
    instruction: NDArray[np.int16]  # [N] index into names
    dev: NDArray[np.bool_]  # [N] True: dev, False: train
    names: tuple[str, ...]  # of instructions, sorted
    too_long: dict[str, int]  # instruction -> examples that were dropped

    @property
    def lengths(self) -> Int:
        """Tokens per example [N]."""
        return np.diff(self.starts)

    @property
    def num_targets(self) -> Int:
        """Target tokens per example [N], its end token included."""
        return self.lengths - self.num_prompt

    def of(self, instruction: str, *, dev: bool) -> Int:
        """Return the examples of an instruction in a split."""
        return np.flatnonzero((self.instruction == self.names.index(instruction)) & (self.dev == dev))

    def shares(self, batches: Int) -> dict[str, float]:
        """Return how much each instruction counts in the loss of ``batches``: its target tokens by their weights."""
        drawn = batches.ravel()
        counted = np.bincount(self.instruction[drawn], self.weights[drawn] * self.num_targets[drawn], len(self.names))
        return dict(zip(self.names, counted.tolist(), strict=True))


def read_tokens(folder: Path) -> Tokens:
    """Return what ``write_tokens`` left."""
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    rows = np.load(folder / ROWS, allow_pickle=False)
    starts = np.concatenate([[0], rows["length"].cumsum(dtype=np.int64)])
    weights, dev = np.ascontiguousarray(rows["weight"]), np.ascontiguousarray(rows["dev"])
    stream = np.memmap(folder / STREAM, np.int32, "r")
    return Tokens(stream, starts, rows["num_prompt"], weights, rows["instruction"], dev, tuple(facts["names"]),
                  facts["too_long"])  # fmt: skip


def write_tokens(files: Sequence[Path], tokenizer: Any, folder: Path, *, max_length: int) -> None:
    """Tokenise schemas.INSTRUCTIONS files into a folder; of each example only a few bytes stay in memory.

    Raises InputError where a file is missing or lacks a column, or no training example is short enough.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    numbers: dict[str, int] = {}  # instruction -> its number in order of appearance
    too_long: dict[str, int] = {}
    parts = [np.empty(0, ROW)]
    with written_whole(folder) as partial:
        partial.mkdir()
        with (partial / STREAM).open("wb") as stream:
            for batch in _read_batches(files):
                kept = []
                prompts = encode_prompts(tokenizer, [Prompt(row["prompt"], row["system"]) for row in batch])
                answers = encode_answers(tokenizer, [row["target"] for row in batch])
                for row, prompt, answer in zip(batch, prompts, answers, strict=True):
                    target = [*answer, tokenizer.eos_token_id]
                    name, length = row["instruction"], len(prompt) + len(target)
                    if length > max_length:
                        too_long[name] = too_long.get(name, 0) + 1
                        continue
                    stream.write(np.array(prompt + target, np.int32).tobytes())
                    number = numbers.setdefault(name, len(numbers))
                    kept.append((length, len(prompt), number, row["split"] == "dev", row["weight"]))
                parts.append(np.array(kept, ROW))
        rows = np.concatenate(parts)
        if rows["dev"].all():
            dropped = f"; {sum(too_long.values())} are longer than max_length {max_length}" if too_long else ""
            raise InputError(f"no training example is in {', '.join(map(str, files))}{dropped}")
        mean = rows["weight"][~rows["dev"]].mean(dtype=np.float64)
        if not mean > 0 or rows["weight"].min() < 0:
            raise InputError(f"the weights of the training examples must not be negative, nor all 0: mean {mean}")
        rows["weight"] /= mean
        rows["instruction"] = np.array([sorted(numbers).index(name) for name in numbers])[rows["instruction"]]
        np.save(partial / ROWS, rows)
        (partial / FACTS).write_text(json.dumps({"names": sorted(numbers), "too_long": too_long}), encoding="utf-8")


def _read_batches(files: Sequence[Path]) -> Iterator[list[Row]]:
    for file in files:
        try:
            parquet = pq.ParquetFile(file)
        except (OSError, ValueError) as problem:
            raise InputError(f"cannot read the instruction data {file}: {problem}") from problem
        if missing := set(COLUMNS) - set(parquet.schema_arrow.names):
            raise InputError(f"{file} is no instruction data: it has no column {', '.join(sorted(missing))}")
        for batch in parquet.iter_batches(batch_size=READ_ROWS, columns=COLUMNS):
            yield [row for row in batch.to_pylist() if row["split"] in ("train", "dev")]


def draw_batches(tokens: Tokens, section: ReasonerSection, *, seed: int = 0, num_processes: int = 1) -> Int:
    """Return which examples each forward pass sees [S, A, P, M]; so a step's number is all of a sampler's state.

    A step sees the same examples however many processes share them. An instruction's examples come in a random order,
    each once before any comes again, and the instructions are evenly spread. Raises ConfigError where a batch cannot be
    divided.
    """
    share, rest = divmod(section.batch_size, num_processes)
    size = section.micro_batch or share
    if rest or not share or share % size:
        raise ConfigError(
            f"batch_size {section.batch_size} must be a multiple of the number of processes ({num_processes}) times "
            f"micro_batch ({section.micro_batch})"
        )
    num_train = int((~tokens.dev).sum())
    steps = section.max_steps or max(1, math.ceil(section.epochs * num_train / section.batch_size))
    generator = np.random.default_rng([seed, 5])
    counts = {name: many for name in sorted(tokens.names) if (many := tokens.of(name, dev=False).size)}
    streams = {name: _endless(tokens.of(name, dev=False), generator) for name in tokens.names}
    parts = apportion([*counts.values()], steps * section.batch_size)
    taken, places = [], []
    for name, part in zip(counts, parts, strict=True):
        taken.append(np.fromiter(islice(streams[name], part), np.int64, part))
        places.append((np.arange(part) + generator.random(part)) / max(part, 1))
    mixed = np.concatenate(taken)[np.argsort(np.concatenate(places), kind="stable")]
    unit = size * num_processes
    for start in range(0, mixed.size if section.batching == "buckets" else 0, unit * BUCKET_UNITS):
        window = mixed[start : start + unit * BUCKET_UNITS]  # units of one instruction and like length, shuffled
        units = window[np.lexsort((tokens.lengths[window], tokens.instruction[window]))].reshape(-1, unit)
        mixed[start : start + window.size] = generator.permutation(units).ravel()
    return mixed.reshape(steps, share // size, num_processes, size)


def apportion(weights: Sequence[float], total: int) -> list[int]:
    """Return whole numbers that sum to ``total``, in proportion to ``weights`` (largest remainders)."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [math.floor(one) for one in exact]
    by_rest = sorted(range(len(exact)), key=lambda index: (counts[index] - exact[index], index))
    for index in by_rest[: total - sum(counts)]:
        counts[index] += 1
    return counts


def _endless(examples: Int, generator: np.random.Generator) -> Iterator[int]:
    while True:
        yield from generator.permutation(examples).tolist()


def collate(tokens: Tokens, examples: Int, scales: NDArray[np.float32], *, pad: int) -> dict[str, Tensor]:
    """Return the tensors of one forward pass over ``examples`` [M], one per row.

    ``input_ids`` [M, T]; ``logits_to_keep`` [M, T], True where a target token is predicted; ``targets`` and ``weights``
    [K], in the order of the True places. ``scales`` [M] is the weight in the loss of each of an example's targets.
    Padding is on the right, where a causal model never looks back at it, so no attention mask is needed.
    """
    lengths, many = tokens.lengths[examples], tokens.num_targets[examples]
    places = np.arange(lengths.max())
    input_ids = np.full((len(examples), places.size), pad, np.int64)
    texts = [tokens.tokens[start:][:length] for start, length in zip(tokens.starts[examples], lengths, strict=True)]
    for row, text in zip(input_ids, texts, strict=True):
        row[: text.size] = text
    ends = (lengths - 1)[:, None]
    keep = (places >= ends - many[:, None]) & (places < ends)
    targets = np.concatenate([text[-num:] for text, num in zip(texts, many, strict=True)]).astype(np.int64)
    weights = np.repeat(scales.astype(np.float32), many)
    arrays = {"input_ids": input_ids, "logits_to_keep": keep, "targets": targets, "weights": weights}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def passes_of(tokens: Tokens, batches: Int, *, rank: int, pad: int) -> Iterator[dict[str, Tensor]]:
    """Yield a process's passes over ``batches`` [S, A, P, M]: a step's tokens count by their examples' weights."""
    many = tokens.num_targets
    for batch in batches:
        for mine in batch[:, rank]:
            yield collate(tokens, mine, tokens.weights[mine] / many[batch].sum(), pad=pad)


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

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, *_: Any, **__: Any) -> Any:
        """Return the loss of one pass, times the processes, over which gradients are averaged."""
        nll = target_nll(model, inputs, self._precision)
        loss = (nll * inputs["weights"]).sum() * self.args.world_size
        return (loss, nll) if return_outputs else loss


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


def dev_sample(tokens: Tokens, per_instruction: int, seed: int) -> Int:
    """Return the dev examples that are judged, of like length together."""
    generator = np.random.default_rng([seed, 7])
    chosen = [generator.permutation(tokens.of(name, dev=True))[:per_instruction] for name in tokens.names]
    examples = np.concatenate(chosen)
    return examples[np.argsort(tokens.lengths[examples], kind="stable")]


@torch.no_grad()
def dev_losses(
    model: Any,
    tokens: Tokens,
    examples: Int,
    *,
    rank: int,
    count: int,
    pad: int,
    precision: torch.dtype,
    batch_size: int,
) -> dict[str, float]:
    """Return the mean negative log-likelihood of a target token, of each instruction that has dev examples.

    Of ``examples`` this process, ``rank`` of ``count``, reads its share, in as many passes as all others: where they
    share a sharded model, none may go through it alone. So the last may be read once more, and is not counted.
    """
    model.eval()
    device = model.device
    mine = np.arange(rank, math.ceil(examples.size / count) * count, count)
    sums = torch.zeros(len(tokens.names), 2, dtype=torch.float64)  # of each: negative log-likelihood, target tokens
    for first in range(0, mine.size, batch_size):
        places = mine[first : first + batch_size]
        batch = examples[np.minimum(places, examples.size - 1)]
        inputs = collate(tokens, batch, np.ones(batch.size, np.float32), pad=pad)
        nll = target_nll(model, {name: one.to(device) for name, one in inputs.items()}, precision)
        many = tokens.num_targets[batch]
        kinds = torch.from_numpy(np.repeat(tokens.instruction[batch], many).astype(np.int64))
        counts = torch.from_numpy(np.repeat(places < examples.size, many).astype(np.float64))
        sums.index_add_(0, kinds, torch.stack([nll.double().cpu() * counts, counts], dim=1))
    rows = reduce(sums.to(device), "sum").tolist()
    return {name: total / count for name, (total, count) in zip(tokens.names, rows, strict=True) if count}
