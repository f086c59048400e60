"""MOOC Q&A: query and true/false questions with their triples, as an array or line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.closed_domains import walk
from kgqa_core.questions.link import load_question_file
from tests.questions.freebase_files import write_json

QUERY = {
    "question": "Who directed the film that Grace Kelly starred in?",
    "answer": "Alfred Hitchcock",
    "triples": [["f1", "starred_actors", "p2"], ["f1", "directed_by", "Alfred Hitchcock"]],
}
LISTED = {"question": "What came out in 1958 or Vertigo?", "answer": ["1958", "Vertigo"], "id": "m7"}
TRUE = {"question": "Did Alfred Hitchcock direct Vertigo?", "answer": True, "triples": [["f2", "directed_by", "p1"]]}
FALSE = {"question": "Did Grace Kelly direct Vertigo?", "answer": "No", "triples": [["f2", "directed_by", "p2"]]}


@pytest.mark.parametrize("as_lines", [False, True])
def test_questions_are_read_as_an_array_or_as_lines(tmp_path: Path, films: KnowledgeGraph, as_lines: bool) -> None:
    items = [QUERY, LISTED, TRUE, FALSE]
    path = tmp_path / "test.json"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in items)) if as_lines else write_json(path, items)
    questions, rejects = load_question_file(path, format="mooc", graph=films)
    assert rejects == []
    query, listed, true, false = questions
    assert [question.id for question in questions] == ["test-1", "m7", "test-3", "test-4"]
    names = [films.relation_labels.index(name) for name in ("starred_actors", "directed_by")]
    assert query.chain == (names[0] + films.num_relations, names[1])  # the first triple is walked backwards
    assert [films.label_of(topic) for topic in query.topics] == ["p2"]
    assert [films.label_of(answer) for answer in query.answers] == ["p1"]
    assert [films.label_of(topic) for topic in listed.topics] == ["f2"]  # by the longest name in the text
    assert [films.label_of(answer) for answer in listed.answers] == ["1958", "f2"]
    assert true.claim is not None and false.claim is not None
    assert (films.label_of(true.claim), true.verdict, true.answers) == ("p1", True, (true.claim,))
    assert (films.label_of(false.claim), false.verdict, false.answers) == ("p2", False, ())


def test_a_chain_of_triples_is_walked_from_its_topic() -> None:
    there, back = ("a", "r", "b"), ("c", "s", "b")
    assert walk([there]) == (("a", "b"), ("r",))
    assert walk([there, back]) == (("a", "b", "c"), ("r", "~s"))
    assert walk([("b", "r", "a"), back]) == (("a", "b", "c"), ("~r", "~s"))
    assert walk([("a", "r", "a"), ("a", "s", "b")]) == (("a", "a", "b"), ("r", "s"))
    assert walk([there, ("x", "s", "y")]) is None
    assert walk([]) == ((), ())


BAD: list[tuple[Any, str]] = [
    ([], "not a JSON object"),
    ({"answer": "x"}, "field question: Field required"),
    ({"question": "who?"}, "field answer: Field required"),
    ({"question": "who?", "answer": []}, "field answer"),
    ({"question": "who?", "answer": True}, "true/false question without triples"),
    ({"question": "who?", "answer": "p1", "triples": [["a", "b"]]}, "field triples"),
    ({"question": "w?", "answer": "p1", "triples": [["a", "r", "b"], ["c", "r", "d"]]}, "field triples: they do not"),
    ({**QUERY, "answer": "nobody"}, "no answer in the graph"),
    ({"question": "who is it?", "answer": "p1"}, "no entity name in the text"),
]


def test_bad_questions_are_rejects(tmp_path: Path, films: KnowledgeGraph) -> None:
    path = write_json(tmp_path / "all.json", [one for one, _ in BAD])
    questions, rejects = load_question_file(path, format="mooc", graph=films)
    assert questions == []
    for reject, (number, (_, reason)) in zip(rejects, enumerate(BAD, 1), strict=True):
        assert reject.line == number
        assert reject.reason.startswith(reason), reject
