"""The published splits of WebQSP and ComplexWebQuestions: what moves to dev, what is dropped, and that it is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kgqa_core.errors import InputError
from kgqa_core.questions.build import QuestionReport
from kgqa_core.questions.formats import QuestionSource
from kgqa_core.questions.store import read_questions
from kgqa_core.questions.subset import plan_variant
from tests.questions.freebase_files import cwq_question, webqsp_parse, webqsp_question, write_json, write_webqsp

Build = Callable[..., QuestionReport]


def write_splits(folder: Path, num_train: int = 40) -> list[str]:
    """Write a train file whose questions 3 and 5 have no answer, and a test file where question 1 has none."""
    parse = webqsp_parse("m.ann", ["people.person.parents"], ["m.bob"])
    train = [webqsp_question(f"WebQTrn-{n}", f"who {n}?", *([] if n in (3, 5) else [parse])) for n in range(num_train)]
    test = [webqsp_question(f"WebQTest-{n}", f"what {n}?", *([] if n == 1 else [parse])) for n in range(3)]
    write_webqsp(folder / "WebQSP.train.json", train)
    write_webqsp(folder / "WebQSP.test.json", test)
    return [question["QuestionId"] for question in train]


def test_official_is_the_files_as_they_are(tmp_path: Path, build_family: Build) -> None:
    write_splits(tmp_path)
    report = build_family("webqsp")
    assert (report.per_split, report.variant) == ({"train": 40, "test": 3}, None)
    assert not (tmp_path / "questions/variant.json").exists()


def test_etd_draws_dev_questions_and_rog_drops_those_without_an_answer(tmp_path: Path, build_family: Build) -> None:
    ids = write_splits(tmp_path)
    assert build_family("webqsp", variant="etd").per_split == {"train": 36, "dev": 4, "test": 3}
    drawn = json.loads((tmp_path / "questions/variant.json").read_text())
    assert set(drawn["dev_ids"]) <= set(ids)
    assert (drawn["dev"], drawn["num_before"], drawn["dropped"]) == (
        "drawn by hash of the ids",
        {"train": 40, "dev": 0, "test": 3},
        [],
    )
    dev = read_questions(tmp_path / "questions", "dev")
    assert sorted(question.id for question in dev) == drawn["dev_ids"]

    report = build_family("webqsp", variant="rog")
    left = json.loads((tmp_path / "questions/variant.json").read_text())
    assert left["dev_ids"] == drawn["dev_ids"]  # the same draw
    assert sorted(dropped["id"] for dropped in left["dropped"]) == ["WebQTest-1", "WebQTrn-3", "WebQTrn-5"]
    assert {dropped["reason"] for dropped in left["dropped"]} == {"the file gives no answer"}
    assert sum(report.per_split.values()) == 40 and report.per_split["test"] == 2
    assert left["num_left"] == report.per_split
    doubts = {(finding.kind, finding.split): finding.count for finding in report.lint.findings}
    assert doubts["dropped_by_variant", "test"] == 1
    assert "no_gold" not in {kind for kind, _ in doubts}


def test_dev_questions_may_be_listed(tmp_path: Path, build_family: Build) -> None:
    write_splits(tmp_path)
    (tmp_path / "dev.jsonl").write_text('WebQTrn-7\n\n{"id": "WebQTrn-9", "question": "who 9?"}\n')
    report = build_family("webqsp", variant="etd", dev_ids=tmp_path / "dev.jsonl")
    assert report.variant is not None
    assert (report.variant.dev_ids, report.variant.dev) == (("WebQTrn-7", "WebQTrn-9"), "listed in dev.jsonl")
    for text, message in (
        ("WebQTest-0\n", "1 of its 1 ids are no training question's, 'WebQTest-0' first"),
        ('{"id": 3}\n', "dev.jsonl:1: the object has no field 'id'"),
        ("q1\n{\n", "dev.jsonl:2: neither an id nor a JSON object"),
    ):
        (tmp_path / "dev.jsonl").write_text(text)
        with pytest.raises(InputError, match=message):
            build_family("webqsp", variant="etd", dev_ids=tmp_path / "dev.jsonl")


def test_a_dev_file_is_the_dev_split_and_a_single_file_has_no_variant(tmp_path: Path, build_family: Build) -> None:
    for split, count in (("train", 20), ("dev", 2), ("test", 2)):
        items = [cwq_question(f"{split}-{n}", f"who {n}?", "ns:m.ann", ["m.bob"]) for n in range(count)]
        write_json(tmp_path / f"ComplexWebQuestions_{split}.json", items)
    answered = [cwq_question("answered", "who?", "ns:m.ann", ["m.bob"])]
    write_json(tmp_path / "ComplexWebQuestions_test_wans.json", answered)
    report = build_family("cwq", variant="etd")
    assert report.per_split == {"train": 20, "dev": 2, "test": 1}  # of the test files the one with answers
    assert report.variant is not None
    assert report.variant.dev == "their own file"
    with pytest.raises(InputError, match="variant 'rog' needs a file per split"):
        plan_variant(QuestionSource("cwq", tmp_path / "ComplexWebQuestions_train.json", variant="rog"))
