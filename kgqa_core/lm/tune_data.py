"""What a tuning is told, its examples as token numbers, who sees which of them when, and the tensors of one pass.

Shape letters: N examples, S optimiser steps, A passes that a step accumulates, P processes, M examples of a pass,
B rows, T tokens of a row, K target tokens of a pass.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
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
    examples: tuple[Path, ...]  # files of schemas.INSTRUCTIONS; splits train and dev are used
    section: ReasonerSection  # how it is tuned; what it says of the examples was heeded when they were made
    seed: int = 0  # of new weights, dropout and the order of examples
    path_tokens: tuple[str, ...] = ()  # texts that become single tokens where they are not; their rows are trained.
    # With LoRA they are in the adapter as peft's trainable tokens, which vLLM cannot read yet (vllm issue 36501)
    # From here on: where and how, which shapes nothing.
    out: Path  # gets adapter/ or model/
    journal: Path | None = None  # folder from which a killed training goes on; also keeps the tokens
    device: str = "cpu"  # or cuda; under torchrun each process takes the GPU of its rank
    threads: int = 1
    curve_every: int = 10  # steps per point of the training curves
    save_every: float = 20.0  # seconds between two states, at least; more where saving takes long; 0: each step

    @property
    def tuned(self) -> Path:
        """Where the tuned model will be: an adapter in peft's format, or a transformers folder."""
        return self.out / ("adapter" if self.section.tuning == "lora" else "model")


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


def read_tokens(folder: Path) -> Tokens:
    """Return what ``write_tokens`` left."""
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    rows = np.load(folder / ROWS, allow_pickle=False)
    return Tokens(
        tokens=np.memmap(folder / STREAM, np.int32, "r"),
        starts=np.concatenate([[0], rows["length"].cumsum(dtype=np.int64)]),
        num_prompt=rows["num_prompt"],
        weights=np.ascontiguousarray(rows["weight"]),
        instruction=rows["instruction"],
        dev=np.ascontiguousarray(rows["dev"]),
        names=tuple(facts["names"]),
        too_long=facts["too_long"],
    )


def write_tokens(files: Sequence[Path], tokenizer: Any, folder: Path, *, max_length: int) -> None:
    """Tokenise schemas.INSTRUCTIONS files into a folder; of each example only a few bytes stay in memory.

    Raises:
        InputError: a file is missing or lacks a column, or no training example is short enough.
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
                for row, prompt, target in encode_examples(batch, tokenizer):
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


def encode_examples(rows: Sequence[Row], tokenizer: Any) -> Iterator[tuple[Row, list[int], list[int]]]:
    """Yield each row with the tokens of its prompt and of its target, which the end token follows."""
    prompts = encode_prompts(tokenizer, [Prompt(row["prompt"], row["system"]) for row in rows])
    for row, prompt, target in zip(rows, prompts, encode_answers(tokenizer, [r["target"] for r in rows]), strict=True):
        yield row, prompt, [*target, tokenizer.eos_token_id]


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
    each once before any comes again, across phases too. Within a phase the instructions are evenly spread.

    Raises:
        ConfigError: the batch cannot be divided as the section says.
        InputError: a phase names an instruction without training examples.
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
    counts = {name: tokens.of(name, dev=False).size for name in tokens.names}
    streams = {name: _endless(tokens.of(name, dev=False), generator) for name in tokens.names}
    first, drawn = 0, []
    for phase in section.mixtures:
        weights = {name: weight for name, weight in sorted((phase.weights or counts).items()) if weight}
        if missing := [name for name in weights if not counts.get(name)]:
            have = ", ".join(name for name, count in counts.items() if count)
            raise InputError(f"a phase draws {missing[0]!r}, of which there is no training example; there are {have}")
        last = round(phase.until * steps)
        taken, places = [], []
        for name, part in zip(
            weights, apportion([*weights.values()], (last - first) * section.batch_size), strict=True
        ):
            taken.append(np.fromiter(islice(streams[name], part), np.int64, part))
            places.append((np.arange(part) + generator.random(part)) / max(part, 1))
        mixed = np.concatenate(taken)[np.argsort(np.concatenate(places), kind="stable")]
        if section.batching == "buckets":
            mixed = _by_length(mixed, tokens.lengths, size * num_processes, generator)
        drawn.append(mixed)
        first = last
    return np.concatenate(drawn).reshape(steps, share // size, num_processes, size)


def apportion(weights: Sequence[float], total: int) -> list[int]:
    """Return whole numbers that sum to ``total``, in proportion to ``weights`` (largest remainders)."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [math.floor(one) for one in exact]
    by_rest = sorted(range(len(exact)), key=lambda index: (counts[index] - exact[index], index))
    for index in by_rest[: total - sum(counts)]:
        counts[index] += 1
    return counts


def _by_length(drawn: Int, lengths: Int, unit: int, generator: np.random.Generator) -> Int:
    """Return the draws with units of like length: sorted within a window, the units then shuffled."""
    bucketed = [drawn[:0]]
    for first in range(0, drawn.size, unit * BUCKET_UNITS):
        window = drawn[first : first + unit * BUCKET_UNITS]
        units = window[np.argsort(lengths[window], kind="stable")].reshape(-1, unit)
        bucketed.append(generator.permutation(units).ravel())
    return np.concatenate(bucketed)


def _endless(examples: Int, generator: np.random.Generator) -> Iterator[int]:
    """Yield the examples in a random order, and again in another one."""
    while True:
        yield from generator.permutation(examples).tolist()


def collate(
    tokens: Tokens, examples: Int, scales: NDArray[np.float32], *, pad: int, row_length: int | None = None
) -> dict[str, Tensor]:
    """Return the tensors of one forward pass: one example per row, or several where they are packed.

    ``input_ids`` [B, T]; ``logits_to_keep`` [B, T], True where a target token is predicted; ``targets`` and ``weights``
    [K], in the order of the True places. Padding is on the right, where a causal model never looks back at it, so no
    attention mask is needed. Packed rows have ``position_ids`` [B, T], which begin at 0 for each example: by them the
    model keeps the examples apart.

    Args:
        tokens: the examples.
        examples: those of this pass [M].
        scales: weight in the loss of each of an example's target tokens [M].
        pad: token beyond a row's end.
        row_length: pack examples into rows of up to so many tokens.
    """
    lengths, many = tokens.lengths[examples], tokens.num_targets[examples]
    rows = [[one] for one in range(len(examples))] if row_length is None else pack(lengths.tolist(), row_length)
    shape = len(rows), max(int(lengths[row].sum()) for row in rows)
    input_ids, positions, keep = np.full(shape, pad, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    targets, weights = [], []
    for row, members in enumerate(rows):
        place = 0
        for one in members:
            end = place + lengths[one]
            text = tokens.tokens[tokens.starts[examples[one]] :][: lengths[one]]
            input_ids[row, place:end], positions[row, place:end] = text, np.arange(lengths[one])
            keep[row, end - many[one] - 1 : end - 1] = True
            targets.append(text[-many[one] :])
            weights.append(np.full(many[one], scales[one], np.float32))
            place = end
        positions[row, place:] = np.arange(shape[1] - place)  # padding is an example of its own
    wanted = np.concatenate(targets).astype(np.int64)
    arrays = {"input_ids": input_ids, "logits_to_keep": keep, "targets": wanted, "weights": np.concatenate(weights)}
    if row_length is not None:
        arrays["position_ids"] = positions
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def pack(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Return which examples share a row of up to ``row_length`` tokens: the longest first, into the first with room."""
    rows: list[list[int]] = []
    room: list[int] = []
    for one in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        row = next((row for row, left in enumerate(room) if lengths[one] <= left), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(row_length)
        rows[row].append(one)
        room[row] -= lengths[one]
    return rows
