"""Plan files: JSON lines of ``id``, ``question`` and ``relation_paths``, as the question sets with plans are published.

Relation paths are lists of labels; unsigned files hold plain labels, signed ones steps ("^label" is walked backward).
In memory both are label paths (``planners.types``): a plain label that looks like a step is escaped. The empty list is
a path too: the answer is the topic itself. A question without paths is asked but cannot be scored. Other fields are
not read, unless ``read_column`` is asked for one: plans of other systems must not slip into ours.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kgqa_core.errors import InputError, shorten
from kgqa_core.graph.formats import MAX_REJECT_TEXT, NOT_AN_OBJECT, NOT_JSON, NOT_UTF8, line_blocks, require_file
from kgqa_core.graph.label_paths import write_step
from kgqa_core.planners.types import LabelPath, PlanQuestion
from kgqa_core.types import Reject

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
    for number, line, row in _rows(path):
        parsed = row if isinstance(row, str) else _question(row, f"{path.stem}-{number}", signed=signed)
        if isinstance(parsed, tuple):
            question, num_bad = parsed
            fault = DUPLICATE if question.id in questions else BAD_PATH if num_bad else ""
            questions.setdefault(question.id, question)
        else:
            fault = parsed
        if fault:
            rejects.append(Reject(str(path), number, fault, line[:MAX_REJECT_TEXT]))
    if not questions:
        reasons = dict(Counter(reject.reason for reject in rejects)) or "it is empty"
        raise InputError(
            f"{shorten(str(path))} holds no question with plans ({shorten(reasons)}); expected JSON lines such as "
            '{"id": "q1", "question": "who directed it", "relation_paths": [["directed_by"]]}'
        )
    return PlanFile(tuple(questions.values()), tuple(rejects))


def read_column(path: Path, column: str, *, signed: bool = False) -> dict[str, tuple[LabelPath, ...]]:
    """Return the paths that another field holds, best first, by question id; for comparison only.

    Paths that are no lists of labels are left out, and so are lines that ``read_plan_file`` rejects. InputError where
    no line has the field.
    """
    found: dict[str, tuple[LabelPath, ...]] = {}
    names: set[str] = set()
    for number, _, row in _rows(path):
        if isinstance(row, str) or isinstance(parsed := _question(row, f"{path.stem}-{number}", signed=signed), str):
            continue
        names |= row.keys()
        values = row.get(column)
        if parsed[0].id not in found and isinstance(values, list):
            paths = [_path(value, signed=signed) for value in values]
            found[parsed[0].id] = tuple(dict.fromkeys(path for path in paths if path is not None))
    if not found:
        raise InputError(f"{shorten(str(path))} has no field {column!r} with paths; it has {shorten(sorted(names))}")
    return found


def _rows(path: Path) -> Iterator[tuple[int, str, dict[str, object] | str]]:
    """Yield (line number, line, its object or why it is none) for each line that is not blank."""
    require_file(path, what="plan file")
    before = 0
    for lines, _ in line_blocks(path):
        for number, line in enumerate(lines, before + 1):
            if isinstance(line, bytes):
                yield number, line.decode("utf-8", errors="replace"), NOT_UTF8
            elif line.strip():
                yield number, line, _object(line)
        before += len(lines)


def _object(line: str) -> dict[str, object] | str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # ValueError: also a number of too many digits
        return NOT_JSON
    return row if isinstance(row, dict) else NOT_AN_OBJECT


def _question(row: dict[str, object], default_id: str, *, signed: bool) -> tuple[PlanQuestion, int] | str:
    """Return the question with the number of its paths that are none, or why the line cannot be used."""
    text, values, given = row.get("question"), row.get(PATHS), row.get("id")
    name = str(given) if isinstance(given, str | int) and str(given) else default_id
    if not isinstance(text, str) or not text.strip():
        return NO_TEXT
    if not _is_text(text) or not _is_text(name):
        return NOT_TEXT
    if not isinstance(values, list | None):
        return NO_LIST
    paths = [_path(value, signed=signed) for value in values or []]
    good = tuple(dict.fromkeys(path for path in paths if path is not None))
    return PlanQuestion(name, text, paths=good), paths.count(None)


def _path(value: object, *, signed: bool) -> LabelPath | None:
    if not isinstance(value, list):
        return None
    if not all(isinstance(label, str) and label.strip() and _is_text(label) for label in value):
        return None
    return tuple(label if signed else write_step(label) for label in value)


def _is_text(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)
