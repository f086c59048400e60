"""Instruction data as token numbers, made once and memory-mapped."""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kgqa_core.artifacts import hash_file, hash_json, written_whole
from kgqa_core.errors import InputError, nearest
from kgqa_core.lm.chat import encode_answers, encode_prompts
from kgqa_core.lm.types import Prompt

ROWS = 1024  # of instruction data in memory at once
COLUMNS = ["instruction", "split", "system", "prompt", "target", "weight"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """N examples: prompt, target and end, one after another."""

    tokens: NDArray[np.int32]  # [all], memory-mapped
    starts: NDArray[np.int64]  # [N + 1]
    num_prompt: NDArray[np.int32]  # [N] tokens before the target
    weights: NDArray[np.float32]  # [N] of the loss; 1 in the mean over training examples
    instruction: NDArray[np.int16]  # [N] index into names
    dev: NDArray[np.bool_]  # [N] else train
    names: tuple[str, ...]  # of instructions, sorted
    too_long: dict[str, int]  # instruction -> examples that were dropped

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the tokens per example."""
        return np.diff(self.starts)

    @property
    def num_targets(self) -> NDArray[np.int64]:
        """Return the target tokens per example, its end included."""
        return self.lengths - self.num_prompt

    def of(self, instruction: str, *, dev: bool) -> NDArray[np.int64]:
        """Return the examples of an instruction in a split."""
        if instruction not in self.names:
            close = nearest(instruction, self.names) or list(self.names)
            raise InputError(f"the instruction data has no {instruction!r}; did you mean {', '.join(close)}?")
        return np.flatnonzero((self.instruction == self.names.index(instruction)) & (self.dev == dev))


def tokens_key(examples: Sequence[Path], tokenizer: Any, max_length: int) -> str:
    """Return what the tokens are made of: the contents of files and tokenizer, and the limit."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items())
    told = [rules, tokenizer.chat_template, tokenizer.eos_token_id]
    return hash_json([[hash_file(file) for file in examples], told, max_length])


def write_tokens(examples: Sequence[Path], tokenizer: Any, folder: Path, *, max_length: int) -> None:
    """Tokenise schemas.INSTRUCTIONS files into a folder; only a few numbers per row are ever in memory.

    Raises:
        InputError: a file is missing or lacks a column, or no training example is short enough.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(folder) as partial:
        partial.mkdir()
        columns, too_long = _Columns(), dict[str, int]()
        with _Growing(partial / "tokens.npy") as grow:
            for row in _rows(examples, tokenizer):
                if row.length > max_length:
                    too_long[row.instruction] = too_long.get(row.instruction, 0) + 1
                    continue
                grow(row.prompt + row.target)
                columns.add(row)
        if all(columns.dev):
            dropped = f"; {sum(too_long.values())} are longer than max_length {max_length}" if too_long else ""
            raise InputError(f"no training example is in {', '.join(map(str, examples))}{dropped}")
        columns.save(partial)
        facts = {"names": sorted(columns.numbers), "too_long": too_long}
        (partial / "facts.json").write_text(json.dumps(facts, sort_keys=True), encoding="utf-8")


def read_tokens(folder: Path) -> Tokens:
    """Return what ``write_tokens`` left."""
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    one = {name: np.load(folder / f"{name}.npy") for name in ("starts", "num_prompt", "weights", "instruction", "dev")}
    tokens = np.load(folder / "tokens.npy", mmap_mode="r")
    return Tokens(tokens=tokens, names=tuple(facts["names"]), too_long=facts["too_long"], **one)


def forget_other_tokens(folder: Path) -> None:
    """Remove what other data or tokenizers left beside ``folder``."""
    for other in folder.parent.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Row:
    instruction: str
    dev: bool
    weight: float
    prompt: list[int]
    target: list[int]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.target)


def _rows(examples: Sequence[Path], tokenizer: Any) -> Iterator[_Row]:
    for file in examples:
        try:
            parquet = pq.ParquetFile(file)
        except (OSError, ValueError) as problem:
            raise InputError(f"cannot read the instruction data {file}: {problem}") from problem
        if missing := set(COLUMNS) - set(parquet.schema_arrow.names):
            raise InputError(f"{file} is no instruction data: it has no column {', '.join(sorted(missing))}")
        for batch in parquet.iter_batches(batch_size=ROWS, columns=COLUMNS):
            rows = [row for row in batch.to_pylist() if row["split"] in ("train", "dev")]
            prompts = encode_prompts(tokenizer, [Prompt(row["prompt"], row["system"]) for row in rows])
            targets = encode_answers(tokenizer, [row["target"] for row in rows])
            for row, prompt, target in zip(rows, prompts, targets, strict=True):
                dev = row["split"] == "dev"
                yield _Row(row["instruction"], dev, row["weight"], prompt, [*target, tokenizer.eos_token_id])


class _Columns:
    """All but the tokens: a few bytes per example."""

    def __init__(self) -> None:
        self.length, self.prompt, self.instruction = array("i"), array("i"), array("h")
        self.weight, self.dev = array("d"), array("b")
        self.numbers: dict[str, int] = {}  # instruction -> its number in order of appearance

    def add(self, row: _Row) -> None:
        """Append an example."""
        self.length.append(row.length)
        self.prompt.append(len(row.prompt))
        self.instruction.append(self.numbers.setdefault(row.instruction, len(self.numbers)))
        self.weight.append(row.weight)
        self.dev.append(row.dev)

    def save(self, folder: Path) -> None:
        """Write what ``read_tokens`` reads; instructions are numbered in order of their names."""
        dev, weights = np.array(self.dev, np.bool_), np.array(self.weight)
        mean = weights[~dev].mean()
        if not mean > 0 or weights.min() < 0:
            raise InputError(f"the weights of the training examples must not be negative, nor all 0: mean {mean}")
        ranks = np.array([sorted(self.numbers).index(name) for name in self.numbers], np.int16)
        np.save(folder / "starts.npy", np.concatenate([[0], np.cumsum(self.length, dtype=np.int64)]))
        np.save(folder / "num_prompt.npy", np.array(self.prompt, np.int32))
        np.save(folder / "weights.npy", (weights / mean).astype(np.float32))
        np.save(folder / "instruction.npy", ranks[np.array(self.instruction)])
        np.save(folder / "dev.npy", dev)


class _Growing:
    """Appends numbers to a .npy file; numpy leaves room in the header for the count, which comes last."""

    def __init__(self, path: Path) -> None:
        self._path, self._count = path, 0
        self._stream: BinaryIO

    def __enter__(self) -> _Growing:
        self._stream = self._path.open("w+b")
        self._header()
        return self

    def __call__(self, numbers: list[int]) -> None:
        self._stream.write(np.array(numbers, np.int32).tobytes())
        self._count += len(numbers)

    def _header(self) -> None:
        told = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.int32)), "fortran_order": False}
        np.lib.format.write_array_header_1_0(self._stream, {**told, "shape": (self._count,)})

    def __exit__(self, *_: object) -> None:
        self._stream.seek(0)
        self._header()
        self._stream.close()
