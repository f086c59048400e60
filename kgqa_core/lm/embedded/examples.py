"""Instruction data as the embedded model reads it: distinct examples with the weight of all that are equal.

Questions repeat their wording, topics aside: where topics are masked, tens of thousands of planning examples are a few
thousand distinct pairs of prompt and plan. Reading those, each as often as its weight says, teaches the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.errors import InputError
from kgqa_core.lm.constraints import shared_start

MIN_FRAME = 12  # characters; a shorter text that all prompts share is left to the tokenizer
COLUMNS = ["instruction", "system", "prompt", "target"]


@dataclass(frozen=True, slots=True)
class Distinct:
    """One prompt with one target."""

    instruction: str
    system: str
    prompt: str
    target: str
    weight: float  # of all examples that are equal, in sum


def read_distinct(files: Sequence[Path], split: str = "train") -> list[Distinct]:
    """Return the distinct examples of schemas.INSTRUCTIONS files, sorted; InputError where there are none."""
    tables = []
    for file in files:
        try:
            table = pq.read_table(file, columns=[*COLUMNS, "weight"], filters=[("split", "=", split)])
        except (OSError, ValueError) as problem:
            raise InputError(f"{file} cannot be read as instruction data: {problem}") from problem
        tables.append(table)
    summed = (
        pa.concat_tables(tables)
        .group_by(COLUMNS)
        .aggregate([("weight", "sum")])
        .sort_by([(c, "ascending") for c in COLUMNS])
    )
    rows = [Distinct(**{name: row[name] for name in COLUMNS}, weight=row["weight_sum"]) for row in summed.to_pylist()]
    rows = [row for row in rows if row.weight > 0]
    if not rows:
        raise InputError(f"no {split} example is in {', '.join(map(str, files))}: nothing to learn from")
    return rows


def find_frames(texts: Iterable[str]) -> list[str]:
    """Return what distinct prompts of one instruction all begin with, and all end with, where that is long enough.

    Both are cut where a word ends, so that nothing of a question gets into them.
    """
    distinct = sorted(set(texts))
    if len(distinct) < 2:
        return []
    start = shared_start(distinct[0], distinct[-1])
    start = start[: max(start.rfind(" "), start.rfind("\n")) + 1].rstrip(" ")
    rests = [text[len(start) :][::-1] for text in distinct]
    end = shared_start(min(rests), max(rests))[::-1]
    cuts = [at for at in (end.find(" "), end.find("\n")) if at >= 0]
    end = end[min(cuts) :] if cuts else ""
    return [frame for frame in (start, end) if len(frame) >= MIN_FRAME]
