"""Coverage counts all questions, also those that nothing can answer; hops are filled in; doubts are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions import coverage
from kgqa_core.questions.build import QuestionReport
from kgqa_core.questions.coverage import Coverage, fill_hops, lint_questions
from kgqa_core.types import Question
from tests.loading import searched
from tests.questions.freebase_files import webqsp_parse, webqsp_question, write_webqsp

Ids = Callable[..., tuple[int, ...]]
Build = Callable[..., QuestionReport]
Asked = Callable[..., Question]


def test_coverage_says_what_is_within_each_number_of_steps(tmp_path: Path, build_family: Build) -> None:
    step = webqsp_parse("m.01n", None, ["m.02b"])
    two = webqsp_parse("m.01n", None, ["m.03v", "value:1971-10-13"])
    partly = webqsp_parse("m.01n", None, ["m.02b", "m.05l"])
    itself = webqsp_parse("m.01n", None, ["m.01n"])
    asked = [
        webqsp_question(f"q{n}", f"who {n}?", *parses)
        for n, parses in enumerate([[step], [two], [partly], [itself], [webqsp_parse("m.04g", None, ["m.02b"])], []])
    ]
    write_webqsp(tmp_path / "WebQSP.test.json", asked)
    report = build_family("webqsp")
    rows = pq.read_table(tmp_path / "questions/coverage.parquet").to_pylist()
    common = {"split": "test", "num_questions": 6, "num_with_topic": 4, "num_with_answer": 5}
    assert rows == [
        {**common, "steps": 0, "num_any": 1, "num_all": 1},
        {**common, "steps": 1, "num_any": 4, "num_all": 2},
        {**common, "steps": 2, "num_any": 4, "num_all": 3},
    ]
    (names,) = report.lint.names
    assert (names.num_topics, names.num_topics_named) == (1, 1)
    assert (names.num_answers, names.num_answers_named) == (4, 3)  # m.03v has no name; a date is its own


# Doubts


@pytest.fixture
def asked(ids: Ids) -> Asked:
    """A question by labels."""

    def make(name: str, topics: list[str], answers: list[str], **more: object) -> Question:
        base = Question(name, name, name, topics=ids(*topics), answers=ids(*answers), split="train")
        return replace(base, **more)  # type: ignore[arg-type]

    return make


def test_coverage_counts_any_and_all_golds(films: KnowledgeGraph, asked: Asked) -> None:
    questions = [
        asked("a", ["f1"], ["p1"], hops=1),  # one step
        asked("b", ["f1"], ["p1", "f2"], hops=1),  # one and two steps
        asked("c", ["f1"], ["f2"], hops=1),
        asked("d", ["f1"], ["p4"], hops=1),  # another part of the graph
        asked("e", ["f1"], ["f1"], hops=1),  # the topic itself
        asked("f", ["f1"], [], hops=1, claim=0, verdict=True),  # nothing to reach
        asked("g", ["f1", "f4"], ["p4"], hops=2, split="test"),
    ]
    report = lint_questions(questions, searched(films, 1), {})
    assert report.coverage == (
        Coverage(hops=1, split="train", num_questions=5, any_gold=40.0, all_golds=20.0),
        Coverage(hops=2, split="test", num_questions=1, any_gold=100.0, all_golds=100.0),
    )
    (unreachable,) = [finding for finding in report.findings if finding.kind == "unreachable_answer"]
    assert (unreachable.count, unreachable.examples) == (4, ("b", "c", "d", "e"))
    wider = lint_questions(questions, searched(films, 2, reenter_topic=True), {})
    assert wider.coverage[0] == Coverage(hops=1, split="train", num_questions=5, any_gold=80.0, all_golds=80.0)


def test_repeated_questions_are_told_from_leaks(films: KnowledgeGraph, asked: Asked) -> None:
    first = asked("a", ["f1"], ["p1"], masked="who directed [topic]")
    questions = [
        first,
        replace(first, id="b"),
        replace(first, id="c", split="test"),
        replace(first, id="d", claim=1, verdict=True),
        asked("e", ["f2"], ["p1"], masked="who directed [topic]"),
    ]
    findings = lint_questions(questions, searched(films, 1), {}).findings
    found = {(finding.kind, finding.split): finding.examples for finding in findings}
    assert found["shared_name", ""] == ("Rear Window",)  # by several entities: about the graph
    assert found["duplicate_question", "train"] == ("a = b",)
    assert found["question_in_two_splits", "test"] == ("a = c",)


def test_shared_names_are_told_by_names_in_order_however_few_are_read_at_once(
    films: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duckdb.connect", None)  # which held all names, whatever the run's limit of memory
    for at_once in (1, 2, 2**16):
        monkeypatch.setattr(coverage, "NAMES_AT_ONCE", at_once)
        (finding,) = lint_questions([], searched(films, 1), {}).findings
        assert (finding.kind, finding.count, finding.examples) == ("shared_name", 1, ("Rear Window",))


# Hops of questions whose dataset does not say


@pytest.mark.parametrize(
    ("topic", "golds", "hops"),
    [
        ("f1", ["p1"], 1),
        ("p1", ["f2"], 1),  # against the direction that is stored
        ("p2", ["p1"], 2),
        ("p2", ["1958"], 4),  # p2 - f1 - p1 - f2 - 1958
        ("f1", ["1958", "f2", "p2"], 1),  # the nearest gold counts
        ("f1", ["1958", "f2"], 2),
        ("f1", ["1998"], None),  # no path at all
        ("f1", [], None),
    ],
)
def test_the_shortest_path_to_any_gold(
    films: KnowledgeGraph, asked: Asked, topic: str, golds: list[str], hops: int | None
) -> None:
    (question,) = fill_hops([asked("q", [topic], golds)], searched(films, 2))
    assert question.hops == hops


def test_what_the_dataset_says_comes_first_then_the_gold_chain(films: KnowledgeGraph, asked: Asked) -> None:
    plain = asked("q", ["f1"], ["p1"])
    given, chained = replace(plain, hops=3, chain=(0,)), replace(plain, chain=(0, 3))
    assert fill_hops([given], searched(films, 2)) == [given]
    assert [question.hops for question in fill_hops([chained, plain], searched(films, 2))] == [2, 1]


def test_a_gold_that_is_the_topic_is_reached_only_by_reentry(films: KnowledgeGraph, asked: Asked) -> None:
    question = asked("q", ["f1"], ["f1"])
    assert fill_hops([question], searched(films, 2))[0].hops is None
    assert fill_hops([question], searched(films, 2, reenter_topic=True))[0].hops == 2
