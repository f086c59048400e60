"""What planners learn from, at rest: which paths count as right, and what is read of plan files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import InputError
from kgqa_core.graph.kg import unsigned
from kgqa_core.graph.supervision import Mode
from kgqa_core.instructions.plan import PlanQuestion
from kgqa_core.planners.evaluate import (
    PATHS_FILE,
    read_best_f1,
    read_cases,
    read_hops,
    read_plan_file,
    write_asked,
    write_given,
)
from kgqa_core.schemas import SUPERVISION
from kgqa_core.types import LabelPath, Question

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


GOOD = {"id": "q1", "question": "who directed it", "relation_paths": [["film.directed_by"], ["a", "b"]]}


@pytest.fixture
def write(tmp_path: Path):
    def write(*rows: object) -> Path:
        path = tmp_path / "plans.jsonl"
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        path.write_bytes(b"\n".join(lines) + b"\n")
        return path

    return write


def test_a_line_is_a_question_with_its_paths(write) -> None:
    (question,) = read_plan_file(write(GOOD)).questions
    assert (question.id, question.text) == ("q1", "who directed it")
    assert question.paths == (("film.directed_by",), ("a", "b"))


def test_the_empty_path_is_a_path_and_no_path_at_all_is_none(write) -> None:
    read = read_plan_file(
        write(
            {"id": 1, "question": "what is venus named for", "relation_paths": [[]]},
            {"id": 2, "question": "why", "relation_paths": []},
            {"id": 3, "question": "when"},
            {"id": 4, "question": "where", "relation_paths": None},
        )
    )
    assert [question.paths for question in read.questions] == [((),), (), (), ()]
    assert [question.id for question in read.questions] == ["1", "2", "3", "4"]
    assert not read.rejects


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b'{"id": "q2", "question"', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"question": "caf\xe9"}', "not UTF-8"),
        (["q2"], "not a JSON object"),
        ({"id": "q2", "relation_paths": []}, "no question text"),
        ({"id": "q2", "question": "  "}, "no question text"),
        ({"id": "q2", "question": ["who"]}, "no question text"),
        ({"id": "q2", "question": "who \ud800"}, "not JSON"),
        ({"id": "q2", "question": "who", "relation_paths": "film.directed_by"}, "relation_paths is no list"),
        ({**GOOD, "question": "who else"}, "id given twice"),
    ],
)
def test_a_line_that_cannot_be_used_is_kept_with_its_reason(write, row: object, reason: str) -> None:
    read = read_plan_file(write(GOOD, row))
    assert [question.text for question in read.questions] == ["who directed it"]
    assert [(reject.line, reject.reason) for reject in read.rejects] == [(2, reason)]
    assert read.reject_counts == {reason: 1}


@pytest.mark.parametrize("path", ["film.directed_by", [1], [None], [""], [" "], ["a", ["b"]], {"a": 1}])
def test_a_path_that_is_no_list_of_labels_is_left_out_and_the_line_kept_as_a_reject(write, path: object) -> None:
    read = read_plan_file(write({**GOOD, "relation_paths": [path, ["a"]]}))
    assert read.questions[0].paths == (("a",),)
    assert read.reject_counts == {"a path that is no list of labels": 1}


def test_repeated_paths_count_once_and_ids_may_be_missing(write) -> None:
    read = read_plan_file(write({"question": "who", "relation_paths": [["a"], ["a"]]}, b"", {"question": "what"}))
    assert [(question.id, question.paths) for question in read.questions] == [("plans-1", (("a",),)), ("plans-3", ())]


def test_plain_labels_that_look_like_steps_are_escaped_and_steps_are_kept(write) -> None:
    path = write({"id": "q", "question": "who", "relation_paths": [["^odd", "\\odd", "even"]]})
    (plain,) = read_plan_file(path).questions
    (signed,) = read_plan_file(path, signed=True).questions
    assert plain.paths == (("\\^odd", "\\\\odd", "even"),)
    assert unsigned(plain.paths[0]) == ("^odd", "\\odd", "even")
    assert signed.paths == (("^odd", "\\odd", "even"),)


@given(
    st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)), unique_by=tuple)
)
def test_any_label_survives(tmp_path_factory, paths: list[list[str]]) -> None:
    path = tmp_path_factory.mktemp("plans") / "plans.jsonl"
    path.write_text(json.dumps({"id": "q", "question": "who", "relation_paths": paths}) + "\n", encoding="utf-8")
    (question,) = read_plan_file(path).questions
    assert [unsigned(found) for found in question.paths] == [tuple(labels) for labels in paths]


def test_a_file_without_any_question_says_what_is_expected(write, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not JSON.*relation_paths"):
        read_plan_file(write(b"<html>"))
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(InputError, match="it is empty"):
        read_plan_file(empty)
    with pytest.raises(InputError, match=r"does not exist\. Nearest beside it: plans\.jsonl"):
        read_plan_file(tmp_path / "plan.jsonl")
