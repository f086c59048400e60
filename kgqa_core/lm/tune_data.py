"""What a tuning is made of: its job, examples as token numbers, and who sees which when.

Shape letters: N examples, S optimiser steps, A passes that a step accumulates, P processes, M examples of a pass,
T tokens of the longest, K target tokens of a pass.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from kgqa_core.artifacts import written_whole
from kgqa_core.config_lm import ReasonerSection
from kgqa_core.errors import ConfigError, InputError
from kgqa_core.lm.folders import encode_answers, encode_prompts
from kgqa_core.lm.types import Prompt

Int = NDArray[np.int64]
Row = dict[str, Any]  # one example, by column
READ_ROWS = 1024  # rows of instruction data in memory at once
BUCKET_UNITS = 64  # forward passes whose examples are sorted by length together
COLUMNS = ["instruction", "split", "system", "prompt", "target", "weight"]
STREAM, ROWS, FACTS = "tokens.int32", "rows.npy", "facts.json"
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

    A step sees the same examples however many processes share them, unless ``micro_batch`` and buckets say what a pass
    holds. An instruction's examples come in a random order, each once before any comes again, and the instructions are
    evenly spread. Raises ConfigError where a batch cannot be divided.
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
    parts = apportion([*counts.values()], steps * section.batch_size)
    taken, places = [], []
    for name, part in zip(counts, parts, strict=True):
        own = tokens.of(name, dev=False)
        rounds = [generator.permutation(own) for _ in range(math.ceil(part / own.size))]
        taken.append(np.concatenate([own[:0], *rounds])[:part])
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


def dev_sample(tokens: Tokens, per_instruction: int, seed: int) -> Int:
    """Return the dev examples that are judged, of like length together."""
    generator = np.random.default_rng([seed, 7])
    chosen = [generator.permutation(tokens.of(name, dev=True))[:per_instruction] for name in tokens.names]
    examples = np.concatenate(chosen)
    return examples[np.argsort(tokens.lengths[examples], kind="stable")]
