"""What planners learn from, at rest, and which paths count as right."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core.graph.supervision import Mode
from kgqa_core.planners.cases import PATHS_FILE, read_best_f1, read_cases, read_hops, write_asked, write_given
from kgqa_core.planners.types import LabelPath, PlanQuestion
from kgqa_core.schemas import SUPERVISION
from kgqa_core.types import Question

QUESTIONS = [
    Question("q1", "who made Heat?", "who made []?", (3,), (5,), "train", hops=1),
    Question("q2", "who else?", "who else?", (2, 7), (5, 11), "test"),
]


def row(path: LabelPath, *, reached: int, right: int, best: bool) -> dict[str, object]:
    counts = {"num_reached": reached, "num_right": right, "f1": 0.5}
    return {"question_id": "q1", "split": "train", "path": list(path), "best": best, **counts}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_asked(QUESTIONS, tmp_path, mask_topics=True)
    rows = [
        row(("made_by",), reached=2, right=2, best=True),
        row(("^made", "made_by"), reached=4, right=2, best=False),
        row(("seen_by",), reached=10, right=1, best=False),
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=SUPERVISION), tmp_path / PATHS_FILE)
    return tmp_path


@pytest.mark.parametrize(
    ("mode", "threshold", "paths"),
    [
        ("best", 0.5, [("made_by",)]),
        ("precise", 0.5, [("made_by",), ("^made", "made_by")]),
        ("precise", 0.51, [("made_by",)]),
        ("all_shortest", 0.5, [("made_by",), ("^made", "made_by"), ("seen_by",)]),
    ],
)
def test_the_mode_says_which_paths_teach(folder: Path, mode: Mode, threshold: float, paths: list[LabelPath]) -> None:
    assert read_cases(folder, "train", mode, threshold) == [PlanQuestion("q1", "who made []?", (3,), tuple(paths))]


def test_questions_without_paths_are_asked_too(folder: Path) -> None:
    assert read_cases(folder, "test") == [PlanQuestion("q2", "who else?", (2, 7))]
    assert read_cases(folder, "dev") == []
    assert read_hops(folder) == {"q1": 1, "q2": None}


def test_given_paths_all_count(tmp_path: Path) -> None:
    asked = PlanQuestion("a", "what?", paths=(("r1",), ("r2", "r3")))
    write_given([("train", asked), ("dev", PlanQuestion("b", "why?"))], tmp_path)
    assert read_cases(tmp_path, "train", "precise", 1.0) == [asked]
    assert read_cases(tmp_path, "dev") == [PlanQuestion("b", "why?")]


def test_the_best_shortest_path_of_a_question_is_what_a_plan_is_compared_with(folder: Path, tmp_path: Path) -> None:
    assert read_best_f1(folder) == {"q1": 50.0}
    (tmp_path / "given").mkdir()
    write_given([("train", PlanQuestion("a", "what?", paths=(("r1",),)))], tmp_path / "given")
    assert read_best_f1(tmp_path / "given") == {}
