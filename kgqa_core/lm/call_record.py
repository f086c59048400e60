"""One kept call, in memory, as a line of a journal and as a row of Parquet."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

import pyarrow as pa

from kgqa_core.lm.types import Generation
from kgqa_core.schemas import CALLS


@dataclass(frozen=True, slots=True)
class CallRecord:
    """What one call gave and what it cost when it was paid."""

    text: str
    log_prob: float | None  # of a scored option its log-likelihood
    num_tokens: int
    finished: bool
    num_prompt_tokens: int  # of the whole call; samples of one call each have all of it
    seconds: float  # of this text: samples of one call share its seconds

    @property
    def generation(self) -> Generation:
        """Return the text as a model gives it."""
        return Generation(self.text, self.log_prob, self.num_tokens, self.finished)


FIELDS = tuple(field.name for field in fields(CallRecord))


def record_of(generation: Generation, *, num_prompt_tokens: int, seconds: float) -> CallRecord:
    """Return the record of a text; a log-probability that is no finite number is none."""
    known = generation.log_prob is not None and math.isfinite(generation.log_prob)
    return CallRecord(
        text=generation.text,
        log_prob=float(generation.log_prob) if known and generation.log_prob is not None else None,
        num_tokens=int(generation.num_tokens),
        finished=generation.finished,
        num_prompt_tokens=int(num_prompt_tokens),
        seconds=float(seconds),
    )


def to_line(key: str, record: CallRecord) -> bytes:
    """Return one line of a journal, line break included; ASCII, so that a cut never splits a character."""
    return json.dumps({"key": key, **{name: getattr(record, name) for name in FIELDS}}).encode("ascii") + b"\n"


def from_line(line: bytes) -> tuple[str, CallRecord] | None:
    """Return what a line holds, or None where it is torn or damaged."""
    try:
        fields = json.loads(line)
        key = fields.pop("key")
        record = CallRecord(**fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return (key, record) if _is_sound(key, record) else None


def to_table(records: dict[str, CallRecord]) -> pa.Table:
    """Return the records sorted by key, so that equal records give equal bytes."""
    keys = sorted(records)
    columns = [[getattr(records[key], name) for key in keys] for name in FIELDS]
    return pa.table([keys, *columns], schema=CALLS)


def from_table(table: pa.Table) -> Iterable[tuple[str, CallRecord]]:
    """Yield key and record of each row."""
    columns = [table.column(name).to_pylist() for name in CALLS.names]
    for key, *values in zip(*columns, strict=True):
        yield key, CallRecord(*values)


def _is_sound(key: object, record: CallRecord) -> bool:
    """Are all fields of the types that they should be? A damaged line can be JSON of something else."""
    numbers = (record.num_tokens, record.num_prompt_tokens)
    return (
        isinstance(key, str)
        and isinstance(record.text, str)
        and isinstance(record.log_prob, float | None)
        and isinstance(record.finished, bool)
        and isinstance(record.seconds, float)
        and all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    )
