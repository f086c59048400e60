"""Questions of NSM files: all stay in the denominator, also those that nothing can answer."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kgqa_core.config_base import QuestionSection
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.search_graph import open_subgraphs
from kgqa_core.graph.subgraph_build import build_subgraphs
from kgqa_core.questions.build import QuestionReport, build_questions, read_questions
from kgqa_core.questions.coverage import Coverage
from kgqa_core.questions.link import load_question_file
from kgqa_core.types import Question
from tests.nsm import ROWS, write_nsm


@pytest.fixture
def graph(tmp_path: Path) -> KnowledgeGraph:
    build_graph(write_nsm(tmp_path / "dev.jsonl"), format="nsm", out_dir=tmp_path / "graph")
    return open_graph(tmp_path / "graph")


def build(graph: KnowledgeGraph, folder: Path, *, subgraphs: bool, **source: Any) -> QuestionReport:
    inside = None
    if subgraphs:
        build_subgraphs([folder / "dev.jsonl"], graph=graph, out_dir=folder)
        inside = open_subgraphs(folder)
    return build_questions(
        QuestionSection(**{"format": "nsm", "path": folder / "dev.jsonl", **source}),
        graph=graph,
        max_steps=2,
        reenter_topic=False,
        out_dir=folder / "questions",
        subgraphs=inside,
    )


def by_id(questions: list[Question]) -> dict[str, Question]:
    return {question.id: question for question in questions}


def test_every_usable_line_is_a_question(tmp_path: Path, graph: KnowledgeGraph) -> None:
    questions, rejects = load_question_file(tmp_path / "dev.jsonl", format="nsm", graph=graph)
    assert rejects == []
    assert [question.id for question in questions] == [row["id"] for row in ROWS]
    found = by_id(questions)
    assert [graph.label_of(topic) for topic in found["q1"].topics] == ["m.ann"]
    assert {graph.label_of(answer) for answer in found["q8"].answers} == {"m.bob", "m.cat"}
    assert [graph.label_of(answer) for answer in found["q3"].answers] == ["1971-10-13"]  # a date, and in no triple
    assert (found["q5"].answers, found["q6"].topics) == ((), ())
    assert all(question.hops is None and question.claim is None for question in questions)


def test_topics_are_masked_where_their_name_is_known(tmp_path: Path, graph: KnowledgeGraph) -> None:
    found = by_id(load_question_file(tmp_path / "dev.jsonl", format="nsm", graph=graph)[0])
    assert found["q4"].masked == "who plays [topic]"  # q2 gives the text of m.jazz
    assert found["q1"].masked == found["q1"].text == "who is the brother of ann"  # nobody gives that of m.ann


def test_without_an_id_the_file_and_the_line_name_a_question(tmp_path: Path, graph: KnowledgeGraph) -> None:
    rows = [{key: value for key, value in row.items() if key != "id"} for row in ROWS]
    path = write_nsm(tmp_path / "train.jsonl", ["", *rows])
    questions, _ = load_question_file(path, format="nsm", graph=graph)
    assert [question.id for question in questions] == [f"train-{number}" for number in range(2, len(ROWS) + 2)]


def test_lines_that_cannot_be_used_are_rejected_with_their_number(tmp_path: Path, graph: KnowledgeGraph) -> None:
    path = write_nsm(tmp_path / "dev.jsonl", [ROWS[0], "{", {**ROWS[1], "subgraph": {}}, ROWS[0], {"id": 1}, "[]"])
    path.write_bytes(path.read_bytes() + b'{"id": "q')
    questions, rejects = load_question_file(path, format="nsm", graph=graph)
    assert [question.id for question in questions] == ["q1"]
    assert [(reject.line, reject.reason) for reject in rejects] == [
        (2, "not JSON"),
        (3, "no subgraph with tuples"),
        (4, "id used before"),
        (5, "no question text"),
        (6, "not a JSON object"),
        (7, "truncated last line"),
    ]


@pytest.mark.parametrize(("subgraphs", "no_answer", "unreachable"), [(False, 2, 3), (True, 3, 5)])
def test_lint_and_coverage_are_of_what_is_explored(
    tmp_path: Path, graph: KnowledgeGraph, subgraphs: bool, no_answer: int, unreachable: int
) -> None:
    report = build(graph, tmp_path, subgraphs=subgraphs)
    assert (report.num_questions, report.num_rejects) == (8, 0)
    found = Counter({finding.kind: 0 for finding in report.lint.findings})
    for finding in report.lint.findings:
        found[finding.kind] += finding.count
    assert found == {
        "no_answer_in_graph": no_answer,  # in subgraphs q3, q5, q7
        "no_gold": 1,
        "no_topic": 1,
        "topic_not_in_text": 6,
        "unreachable_answer": unreachable,  # in subgraphs one of the two answers of q2 and of q8, and q3, q6, q7
    }
    rows = report.lint.coverage
    assert sum(row.num_questions for row in rows) == 8
    if subgraphs:  # of 8: q5 without a gold counts as not covered
        covered = [sum(getattr(row, gold) * row.num_questions for row in rows) for gold in ("any_gold", "all_golds")]
        assert [round(percent / 100) for percent in covered] == [4, 2]
    kept = json.loads((tmp_path / "questions" / "lint.json").read_text(encoding="utf-8"))
    assert [Coverage(**row) for row in kept["coverage"]] == list(rows)


def test_files_name_the_splits(tmp_path: Path, graph: KnowledgeGraph) -> None:
    files = {
        "train": write_nsm(tmp_path / "a.jsonl", ROWS[:4]),
        "dev": write_nsm(tmp_path / "b.jsonl", ROWS[4:6]),
        "test": write_nsm(tmp_path / "c.jsonl", ROWS[6:]),
    }
    report = build(graph, tmp_path, subgraphs=True, path=None, files=files)
    assert report.per_split == {"train": 4, "dev": 2, "test": 2}
    assert [question.id for question in read_questions(tmp_path / "questions", "test")] == ["q7", "q8"]
    assert pq.read_table(tmp_path / "questions" / "rejects.parquet").num_rows == 0
