"""Which questions of a system a tracker shows call by call, and what it shows of them; knows no tracker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core.evaluation.runs import read_system_run

Kind = Literal["failed", "stopped", "wrong", "right"]
KINDS: tuple[Kind, ...] = ("failed", "stopped", "wrong", "right")  # whoever opens a run looks for what went wrong
UNASKED = "budget"  # the problem of a call that a budget forbade: it costs nothing


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One call of a language model."""

    instruction: str
    round: int
    prompt: str
    system_prompt: str
    texts: tuple[str, ...]
    problem: str
    num_prompt_tokens: int  # the question's, shared out by the lengths of its prompts: only their sum is known
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TracedQuestion:
    """One question with all that a system did for it."""

    kind: Kind
    is_right: bool  # was its answer, by the fixed pick among ties? Also where a budget stopped it
    row: dict[str, Any]  # of schemas.SYSTEM_PREDICTIONS
    calls: tuple[TracedCall, ...]


def traced_questions(predictions: Path, calls: Path, *, limit: int) -> list[TracedQuestion]:
    """Return at most ``limit`` questions: those that failed first, then stopped, wrong and right ones.

    Among those of a kind, questions that made calls come first, then they go by their ids. Skipped questions, of which
    there is nothing to see, are left out.

    Args:
        predictions: schemas.SYSTEM_PREDICTIONS.
        calls: schemas.SYSTEM_CALLS of the same questions.
        limit: how many; 0 for none.

    Raises:
        InputError: predictions that are damaged or empty.
    """
    if not limit:
        return []
    judged = read_system_run(predictions).run
    right = dict(zip(judged.scores.question_ids, judged.picked_right.tolist(), strict=True))
    table = pq.read_table(predictions, columns=["question_id", "status", "stopped", "num_calls"], partitioning=None)
    kinds = {
        row["question_id"]: (_kind(row, right[row["question_id"]]), not row["num_calls"])
        for row in table.to_pylist()
        if row["status"] != "skipped"
    }
    ranked = sorted(kinds, key=lambda id: (KINDS.index(kinds[id][0]), kinds[id][1], id))
    chosen = ranked[:limit]
    rows = {row["question_id"]: row for row in _rows_of(predictions, chosen)}
    asked: dict[str, list[dict[str, Any]]] = {id: [] for id in chosen}
    for row in _rows_of(calls, chosen):
        asked[row["question_id"]].append(row)
    return [TracedQuestion(kinds[id][0], right[id], rows[id], _calls(rows[id], asked[id])) for id in chosen]


def _kind(row: dict[str, Any], right: bool) -> Kind:
    if row["status"] == "failed":
        return "failed"
    if row["stopped"]:
        return "stopped"
    return "right" if right else "wrong"


def _rows_of(path: Path, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of some questions, batch by batch: a table of calls may be large."""
    wanted = pa.array(ids, pa.string())
    with pq.ParquetFile(path) as file:
        batches = (
            batch.filter(pc.is_in(batch["question_id"], value_set=wanted)).to_pylist() for batch in file.iter_batches()
        )
        return [row for batch in batches for row in batch]


def _calls(row: dict[str, Any], asked: Sequence[dict[str, Any]]) -> tuple[TracedCall, ...]:
    ordered = sorted(asked, key=lambda call: int(call["number"]))
    lengths = [len(call["prompt"]) + len(call["system_prompt"]) for call in ordered]
    read = share_out(
        row["num_prompt_tokens"],
        [0 if call["problem"] == UNASKED else size for call, size in zip(ordered, lengths, strict=True)],
    )
    return tuple(
        TracedCall(
            instruction=call["instruction"],
            round=call["round"],
            prompt=call["prompt"],
            system_prompt=call["system_prompt"],
            texts=tuple(call["texts"]),
            problem=call["problem"],
            num_prompt_tokens=tokens,
            num_tokens=call["num_tokens"],
        )
        for call, tokens in zip(ordered, read, strict=True)
    )


def share_out(total: int, weights: Sequence[int]) -> list[int]:
    """Return ``total`` shared out by ``weights``, whole numbers that sum to it; zeros without any weight."""
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    ends = [total * passed // whole for passed in accumulate(weights, initial=0)]
    return [end - start for start, end in pairwise(ends)]
