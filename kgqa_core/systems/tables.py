"""What a system answered, at rest: a predictions table with its costs (schemas.SYSTEM_PREDICTIONS), and its calls.

Both are written in parts, as questions are answered, and put together at the end without holding them in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core.artifacts import written_whole
from kgqa_core.evaluation.predictions import ROWS_AT_ONCE, NameTables, SystemSource, make_row
from kgqa_core.graph.input_files import rebatch
from kgqa_core.schemas import CANDIDATES, SYSTEM_CALLS, SYSTEM_PREDICTIONS
from kgqa_core.systems.types import Answered, Round
from kgqa_core.types import Prediction, Step

AS_PART: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
"""How a part is written, which is read once and then gone; the merged file is compressed."""
CANDIDATES_FILE = "candidates.parquet"
SPENT = ("num_calls", "num_prompt_tokens", "num_tokens", "seconds")
FREE: dict[str, Any] = {**dict.fromkeys(SPENT, 0), "money": 0.0, "stopped": None}


def write_answered(path: Path, done: Round, names: NameTables, source: SystemSource) -> None:
    """Write one row per question, in order; the file appears only when it is complete."""
    spent = sum_usage(done.usage)
    rows = []
    for one in done.answered:
        prediction = one.answer.prediction
        row = make_row(one.question, prediction, names)
        supported = dict(zip(prediction.answers, one.faithful, strict=False))
        rows.append(
            row
            | spent.get(one.question.id, FREE)
            | {
                "status": one.status,
                "error": one.error.encode("utf-8", "replace").decode() or None,  # a traceback may quote anything
                "topics": one.question.topics,
                "topic_source": source.topics,
                "unmatched": one.answer.unmatched,
                "faithful": [supported.get(entity, False) for entity in row["answer_ids"]],
                "counts": [*one.answer.counts.items(), ("num_invented", one.num_invented)],
                "plans": [" → ".join(plan) for plan in one.answer.plans],
                "raw": "\n".join(one.calls[-1].texts) if one.calls else None,
                "confidence": one.confidence,
            }
        )
    schema = SYSTEM_PREDICTIONS.with_metadata(source.metadata())
    with written_whole(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial, **AS_PART)


def write_calls(path: Path, answered: Iterable[Answered]) -> None:
    """Write one row per call of each question, in order; see schemas.SYSTEM_CALLS."""
    rows = [
        {"question_id": one.question.id, "number": number, **asdict(call)}
        for one in answered
        for number, call in enumerate(one.calls, start=1)
    ]
    with written_whole(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=SYSTEM_CALLS), partial, **AS_PART)


def merge_parts(parts: Sequence[Path], path: Path) -> None:
    """Put files of one schema together, in order: the same rows give the same bytes, however they were cut.

    At most a part and ``ROWS_AT_ONCE`` rows are in memory. There is a part at least.
    """
    schema = pq.read_schema(parts[0])
    batches = (batch for part in parts for batch in pq.ParquetFile(part).iter_batches())
    with written_whole(path) as partial, pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        for table in rebatch(pa.RecordBatchReader.from_batches(schema, batches), ROWS_AT_ONCE):
            writer.write_table(table)


def sum_usage(usage: pa.Table) -> dict[str, dict[str, Any]]:
    """Return what each question spent over all rows, and the limit that stopped it.

    Money is None where a model that was asked has no price.
    """
    money = pc.if_else(pc.greater(usage["num_calls"], 0), usage["money"], 0.0)
    table = usage.select(["question_id", *SPENT, "num_stopped"]).append_column("money", money)
    known = pc.ScalarAggregateOptions(skip_nulls=False)
    sums = [*((name, "sum") for name in (*SPENT, "num_stopped")), ("money", "sum", known)]
    spent: dict[str, dict[str, Any]] = {}
    for row in table.group_by("question_id", use_threads=False).aggregate(sums).to_pylist():
        own = {name: row[f"{name}_sum"] for name in (*SPENT, "money")}
        spent[row["question_id"]] = {**own, "stopped": "calls" if row["num_stopped_sum"] else None}
    return spent


# ------ Out-of-fold candidates: what explorers that never saw a question propose for it (DualR's tuned choose).
#
# An explorer that was trained on a question nearly always ranks its gold first, and a language model tuned on such
# candidates learns to say "A".


def write_candidates(predictions: Iterable[Prediction], folder: Path, *, num_candidates: int) -> None:
    """Write the first candidates of each question with their evidence: schemas.CANDIDATES."""
    rows = [
        {
            "question_id": one.question_id,
            "candidates": one.candidates[:num_candidates],
            "scores": one.scores[:num_candidates],
            "paths": [[asdict(step) for step in path] for path in one.paths[:num_candidates]],
        }
        for one in predictions
    ]
    with written_whole(folder / CANDIDATES_FILE) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=CANDIDATES), partial)


def read_candidates(folder: Path) -> dict[str, Prediction]:
    """Return question id -> its out-of-fold prediction; of the answers nothing is kept."""
    return {
        row["question_id"]: Prediction(
            row["question_id"],
            tuple(row["candidates"]),
            tuple(row["scores"]),
            (),
            paths=tuple(tuple(Step(**step) for step in path) for path in row["paths"]),
        )
        for row in pq.read_table(folder / CANDIDATES_FILE).to_pylist()
    }
