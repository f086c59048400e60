"""Out-of-fold candidates at rest: what explorers that never saw a question propose for it (DualR's tuned choose).

An explorer that was trained on a question nearly always ranks its gold first, and a language model tuned on such
candidates learns to say "A".
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.disk import written_whole
from kgqa_core.schemas import CANDIDATES
from kgqa_core.types import Prediction, Step

CANDIDATES_FILE = "candidates.parquet"


def write_candidates(predictions: Iterable[Prediction], folder: Path, *, num_candidates: int) -> None:
    """Write the first candidates of each question with their evidence: schemas.CANDIDATES."""
    rows = [
        {
            "question_id": one.question_id,
            "candidates": list(one.candidates[:num_candidates]),
            "scores": list(one.scores[:num_candidates]),
            "paths": [[_as_row(step) for step in path] for path in one.paths[:num_candidates]],
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


def _as_row(step: Step) -> dict[str, Any]:
    return {"head": step.head, "relation": step.relation, "tail": step.tail, "reverse": step.reverse}
