"""What planners learn from and are scored on, at rest: questions as they are read, and their relation paths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.disk import written_whole
from kgqa_core.planners.types import LabelPath, PlanQuestion
from kgqa_core.schemas import ASKED, SUPERVISION
from kgqa_core.types import Question, Split

ASKED_FILE, PATHS_FILE = "asked.parquet", "paths.parquet"
Mode = Literal["best", "all_shortest", "precise"]


@dataclass(frozen=True, slots=True)
class Teaching:
    """Which of a question's shortest paths count as right.

    ``best``: of the highest F1 when followed. ``all_shortest``: all (RoG's Z*). ``precise``: those of which at least
    ``threshold`` of what they reach is right (EPERM Eq. 5).
    """

    mode: Mode = "best"
    threshold: float = 0.5  # 0..1

    def takes(self, row: dict[str, Any]) -> bool:
        """Say whether a row of schemas.SUPERVISION counts; paths without a graph all do."""
        if self.mode == "all_shortest" or row["num_reached"] is None:
            return True
        if self.mode == "best":
            return bool(row["best"])
        return bool(row["num_right"] >= self.threshold * row["num_reached"])


BEST = Teaching()


def write_asked(questions: Iterable[Question], out: Path, *, mask_topics: bool) -> None:
    """Write the questions as planners read them: schemas.ASKED."""
    rows = [
        {
            "question_id": question.id,
            "split": question.split,
            "text": question.asked(mask_topics),
            "topics": list(question.topics),
            "hops": question.hops,
        }
        for question in questions
    ]
    _write(rows, ASKED, out / ASKED_FILE)


def write_given(questions: Sequence[tuple[Split, PlanQuestion]], out: Path) -> None:
    """Write questions whose paths a file gives, with both: schemas.ASKED and schemas.SUPERVISION."""
    asked: list[dict[str, Any]] = [
        {"question_id": question.id, "split": split, "text": question.text, "topics": [], "hops": None}
        for split, question in questions
    ]
    paths = [
        {"question_id": question.id, "split": split, "path": list(path), "best": True}
        for split, question in questions
        for path in question.paths
    ]
    _write(asked, ASKED, out / ASKED_FILE)
    _write(paths, SUPERVISION, out / PATHS_FILE)


def _write(rows: list[dict[str, Any]], schema: pa.Schema, path: Path) -> None:
    with written_whole(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial)


def read_cases(folder: Path, split: Split, teaching: Teaching = BEST) -> list[PlanQuestion]:
    """Return the questions of a split, in their order, each with the paths that count as right; some have none."""
    chosen = [("split", "=", split)]
    paths: dict[str, list[LabelPath]] = defaultdict(list)
    for row in pq.read_table(folder / PATHS_FILE, filters=chosen).to_pylist():
        if teaching.takes(row):
            paths[row["question_id"]].append(tuple(row["path"]))
    return [
        PlanQuestion(row["question_id"], row["text"], tuple(row["topics"]), tuple(paths[row["question_id"]]))
        for row in pq.read_table(folder / ASKED_FILE, filters=chosen).to_pylist()
    ]


def read_hops(folder: Path) -> dict[str, int | None]:
    """Return the number of hops of each question, where the dataset says it."""
    table = pq.read_table(folder / ASKED_FILE, columns=["question_id", "hops"])
    return dict(zip(table["question_id"].to_pylist(), table["hops"].to_pylist(), strict=True))


def read_best_f1(folder: Path) -> dict[str, float]:
    """Return the F1, in percent, of each question's best shortest path; questions without one are not in it."""
    best: dict[str, float] = {}
    table = pq.read_table(folder / PATHS_FILE, columns=["question_id", "f1"], filters=[("best", "=", True)])
    for question_id, f1 in zip(table["question_id"].to_pylist(), table["f1"].to_pylist(), strict=True):
        if f1 is not None:
            best[question_id] = 100.0 * f1
    return best
