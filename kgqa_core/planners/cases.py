"""What planners learn from and are scored on, at rest: questions as they are read, and their relation paths."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import InputError, shorten
from kgqa_core.graph.formats import MAX_REJECT_TEXT, NOT_AN_OBJECT, NOT_JSON
from kgqa_core.graph.kg import write_step
from kgqa_core.graph.supervision import Mode, read_supervision
from kgqa_core.planners.types import LabelPath, PlanQuestion
from kgqa_core.questions.formats import Fault, parse_lines
from kgqa_core.schemas import ASKED, SUPERVISION
from kgqa_core.types import Question, Reject, Split

ASKED_FILE, PATHS_FILE = "asked.parquet", "paths.parquet"


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


def read_cases(folder: Path, split: Split, mode: Mode = "best", threshold: float = 0.5) -> list[PlanQuestion]:
    """Return the questions of a split, in their order, each with the paths that count as right; some have none."""
    taught = read_supervision(folder / PATHS_FILE, mode, threshold, split=split)
    return [
        PlanQuestion(
            row["question_id"],
            row["text"],
            tuple(row["topics"]),
            tuple(one.path for one in taught.get(row["question_id"], ())),
        )
        for row in pq.read_table(folder / ASKED_FILE, filters=[("split", "=", split)]).to_pylist()
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


# ------ Plan files: JSON lines of ``id``, ``question`` and ``relation_paths``, as the question sets of RoG give them.


PATHS = "relation_paths"
NO_TEXT = "no question text"
NOT_TEXT = "characters that are no text"  # half a surrogate pair: no tokenizer takes it
DUPLICATE = "id given twice"  # the first line counts
NO_LIST = f"{PATHS} is no list"
BAD_PATH = "a path that is no list of labels"  # that path is left out; the rest of the line is used


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan file: the lines that are used, and those that are not."""

    questions: tuple[PlanQuestion, ...]
    rejects: tuple[Reject, ...]  # lines that are not used, and lines of which a path is not

    @property
    def reject_counts(self) -> dict[str, int]:
        """Return how many lines were rejected for each reason."""
        return dict(Counter(reject.reason for reject in self.rejects))


def read_plan_file(path: Path, *, signed: bool = False) -> PlanFile:
    """Read a plan file; InputError where it is missing, or no line of it can be used."""
    questions: dict[str, PlanQuestion] = {}
    rejects: list[Reject] = []
    for number, line, parsed in parse_lines(path, partial(_parse, name=path.stem, signed=signed)):
        if isinstance(parsed, Fault):
            fault = parsed.reason
        else:
            question, num_bad = parsed
            fault = DUPLICATE if question.id in questions else BAD_PATH if num_bad else ""
            questions.setdefault(question.id, question)
        if fault:
            rejects.append(Reject(str(path), number, fault, line[:MAX_REJECT_TEXT]))
    if not questions:
        reasons = dict(Counter(reject.reason for reject in rejects)) or "it is empty"
        raise InputError(
            f"{shorten(str(path))} holds no question with plans ({shorten(reasons)}); expected JSON lines such as "
            '{"id": "q1", "question": "who directed it", "relation_paths": [["directed_by"]]}'
        )
    return PlanFile(tuple(questions.values()), tuple(rejects))


def _parse(line: str, number: int, *, name: str, signed: bool) -> tuple[PlanQuestion, int] | Fault:
    """Return the question of a line with the number of its paths that are none, or why the line cannot be used."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # ValueError: also a number of too many digits
        return Fault(NOT_JSON)
    if not isinstance(row, dict):
        return Fault(NOT_AN_OBJECT)
    text, values, given = row.get("question"), row.get(PATHS), row.get("id")
    id = str(given) if isinstance(given, str | int) and str(given) else f"{name}-{number}"
    if not isinstance(text, str) or not text.strip():
        return Fault(NO_TEXT)
    if not _is_text(text) or not _is_text(id):
        return Fault(NOT_TEXT)
    if not isinstance(values, list | None):
        return Fault(NO_LIST)
    paths = [_path(value, signed=signed) for value in values or []]
    good = tuple(dict.fromkeys(path for path in paths if path is not None))
    return PlanQuestion(id, text, paths=good), paths.count(None)


def _path(value: object, *, signed: bool) -> LabelPath | None:
    if not isinstance(value, list):
        return None
    if not all(isinstance(label, str) and label.strip() and _is_text(label) for label in value):
        return None
    return tuple(label if signed else write_step(label) for label in value)


def _is_text(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)
