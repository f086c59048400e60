"""Doubts are counted by kind and split, and coverage agrees with walking by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.coverage import Coverage, lint_questions
from kgqa_core.types import Question

Ids = Callable[..., tuple[int, ...]]


@pytest.fixture
def asked(ids: Ids) -> Callable[..., Question]:
    """A question by labels."""

    def make(name: str, topics: list[str], answers: list[str], **more: object) -> Question:
        base = Question(name, name, name, topics=ids(*topics), answers=ids(*answers), split="train")
        return replace(base, **more)  # type: ignore[arg-type]

    return make


def test_coverage_counts_any_and_all_golds(films: KnowledgeGraph, asked: Callable[..., Question]) -> None:
    questions = [
        asked("a", ["f1"], ["p1"], hops=1),  # one step
        asked("b", ["f1"], ["p1", "f2"], hops=1),  # one and two steps
        asked("c", ["f1"], ["f2"], hops=1),
        asked("d", ["f1"], ["p4"], hops=1),  # another part of the graph
        asked("e", ["f1"], ["f1"], hops=1),  # the topic itself
        asked("f", ["f1"], [], hops=1, claim=0, verdict=True),  # nothing to reach
        asked("g", ["f1", "f4"], ["p4"], hops=2, split="test"),
    ]
    report = lint_questions(questions, films, max_steps=1, reenter_topic=False)
    assert report.coverage == (
        Coverage(hops=1, split="train", num_questions=5, any_gold=40.0, all_golds=20.0),
        Coverage(hops=2, split="test", num_questions=1, any_gold=100.0, all_golds=100.0),
    )
    (unreachable,) = [finding for finding in report.findings if finding.kind == "unreachable_answer"]
    assert (unreachable.count, unreachable.examples) == (4, ("b", "c", "d", "e"))
    wider = lint_questions(questions, films, max_steps=2, reenter_topic=True)
    assert wider.coverage[0] == Coverage(hops=1, split="train", num_questions=5, any_gold=80.0, all_golds=80.0)


def test_repeated_questions_are_told_from_leaks(films: KnowledgeGraph, asked: Callable[..., Question]) -> None:
    first = asked("a", ["f1"], ["p1"], masked="who directed [topic]")
    questions = [
        first,
        replace(first, id="b"),
        replace(first, id="c", split="test"),
        replace(first, id="d", claim=1, verdict=True),
        asked("e", ["f2"], ["p1"], masked="who directed [topic]"),
    ]
    findings = lint_questions(questions, films, max_steps=1, reenter_topic=False).findings
    found = {(finding.kind, finding.split): finding.examples for finding in findings}
    assert found["duplicate_question", "train"] == ("a = b",)
    assert found["question_in_two_splits", "test"] == ("a = c",)


def test_names_that_several_entities_share_are_a_finding_about_the_graph(films: KnowledgeGraph) -> None:
    (finding,) = lint_questions([], films, max_steps=1, reenter_topic=False).findings
    assert (finding.kind, finding.count, finding.split, finding.examples) == ("shared_name", 1, "", ("Rear Window",))
