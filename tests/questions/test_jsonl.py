"""Own questions as JSON lines: each field, and each way in which a line can be unusable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.errors import InputError
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.build import load_question_file
from kgqa_core.types import Question

Ids = Callable[..., tuple[int, ...]]
Write = Callable[[Path, list[dict[str, Any]]], Path]


@pytest.fixture
def load(tmp_path: Path, films: KnowledgeGraph, write_jsonl: Write) -> Callable[..., Question]:
    """Load a file of one line that must be usable."""

    def load_one(**row: Any) -> Question:
        questions, rejects = load_question_file(
            write_jsonl(tmp_path / "test.jsonl", [row]), format="jsonl", graph=films, split="test"
        )
        assert rejects == []
        return questions[0]

    return load_one


def test_a_line_with_all_fields(load: Callable[..., Question], films: KnowledgeGraph, ids: Ids) -> None:
    question = load(
        id="q7",
        question="Which films did the director of Vertigo make?",
        topics=["f2"],
        answers=["Rear Window", "f2"],
        hops=2,
        chain=["directed_by", "~directed_by"],
        note="keys that we do not know are ignored",
    )
    directed_by = films.relation_labels.index("directed_by")
    assert question == Question(
        id="q7",
        text="Which films did the director of Vertigo make?",
        masked="Which films did the director of [topic] make?",
        topics=ids("f2"),
        answers=ids("f1", "f2", "f3"),
        split="test",
        hops=2,
        chain=(directed_by, directed_by + films.num_relations),
    )


def test_a_minimal_line_is_linked_by_name(load: Callable[..., Question], ids: Ids) -> None:
    question = load(question="Who directed Vertigo?", answers=["Alfred Hitchcock"])
    assert (question.id, question.topics, question.masked) == ("test-1", ids("f2"), "Who directed [topic]?")
    assert (question.hops, question.chain, question.claim, question.verdict) == (None, None, None, None)


def test_the_chain_gives_the_hops_where_they_are_not_said(load: Callable[..., Question]) -> None:
    assert load(question="Vertigo?", answers=["1958"], chain=["release_year"]).hops == 1


def test_a_chain_of_unknown_relations_is_no_reason_to_drop_a_question(load: Callable[..., Question]) -> None:
    assert load(question="Vertigo?", answers=["1958"], chain=["made_in"]).chain is None


def test_numbers_may_be_written_as_numbers(load: Callable[..., Question], ids: Ids) -> None:
    question = load(question="Which films came out in 1958?", topics=[1958], answers=["f2"])
    assert question.topics == ids("1958")
    assert question.masked == "Which films came out in [topic]?"


def test_several_topics_are_all_masked(load: Callable[..., Question], ids: Ids) -> None:
    question = load(
        question="What did Alfred Hitchcock make with Grace Kelly?",
        topics=["Alfred Hitchcock", "p2"],
        answers=["f1"],
    )
    assert question.topics == ids("p1", "p2")
    assert question.masked == "What did [topic] make with [topic]?"


def test_a_true_or_false_question(load: Callable[..., Question], ids: Ids) -> None:
    question = load(
        question="Was Vertigo directed by Grace Kelly?", topics=["Vertigo"], claim="Grace Kelly", verdict=False
    )
    assert question.masked == "Was [topic] directed by [claim]?"
    assert (question.claim, question.verdict, question.answers) == (ids("p2")[0], False, ())


def test_what_is_claimed_is_no_topic(load: Callable[..., Question], ids: Ids) -> None:
    question = load(question="Did Alfred Hitchcock make Vertigo?", claim="p1", verdict=True)
    assert question.topics == ids("f2")
    assert question.masked == "Did [claim] make [topic]?"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"answers": ["f1"]}, "field question: Field required"),
        ({"question": "", "answers": ["f1"]}, "field question: String should have at least 1 character"),
        ({"question": "Vertigo?"}, "no answers given"),
        ({"question": "Vertigo?", "answers": "f1"}, "field answers: Input should be a valid array"),
        ({"question": "Vertigo?", "answers": [None]}, "field answers: Input should be a valid string"),
        (
            {"question": "Vertigo?", "answers": ["f1"], "hops": 0},
            "field hops: Input should be greater than or equal to 1",
        ),
        ({"question": "Vertigo?", "answers": ["1985"]}, "no answer in the graph"),
        ({"question": "Vertigo?", "answers": ["f1"], "topics": ["Vertiga"]}, "no topic in the graph"),
        ({"question": "Psycho?", "answers": ["f1"]}, "no entity name in the text"),
        ({"question": "Vertigo?", "answers": ["f1"], "verdict": True}, "claim and verdict belong together"),
        ({"question": "Vertigo?", "claim": "f1"}, "claim and verdict belong together"),
        ({"question": "Vertigo?", "claim": "Psycho", "verdict": True}, "claim not in the graph"),
        ({"question": "Vertigo?", "claim": "Rear Window", "verdict": True}, "claim names several entities"),
    ],
)
def test_an_unusable_line_is_rejected(
    tmp_path: Path, films: KnowledgeGraph, write_jsonl: Write, row: dict[str, Any], reason: str
) -> None:
    good = {"question": "Vertigo?", "answers": ["f1"]}
    path = write_jsonl(tmp_path / "own.jsonl", [good, row])
    questions, (reject,) = load_question_file(path, format="jsonl", graph=films)
    assert len(questions) == 1
    assert (reject.file, reject.line, reject.reason) == ("own.jsonl", 2, reason)
    assert json.loads(reject.text) == row


def test_lines_that_are_no_json_objects(tmp_path: Path, films: KnowledgeGraph) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(b'[1]\n{"question": \n\n{"question": "caf\xe9"}\n"text"\n{"question": "Vertigo?", "ans')
    questions, rejects = load_question_file(path, format="jsonl", graph=films)
    assert questions == []
    assert [(reject.line, reject.reason) for reject in rejects] == [
        (1, "not a JSON object"),
        (2, "not JSON"),
        (4, "not UTF-8"),
        (5, "not a JSON object"),
        (6, "truncated last line"),
    ]


def test_a_last_line_that_was_ended_is_not_cut_off(tmp_path: Path, films: KnowledgeGraph) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"question": "Vertigo?", "ans\n', encoding="utf-8")
    _, (reject,) = load_question_file(path, format="jsonl", graph=films)
    assert reject.reason == "not JSON"


def test_an_id_may_be_used_once(tmp_path: Path, films: KnowledgeGraph, write_jsonl: Write) -> None:
    row = {"id": "q", "question": "Vertigo?", "answers": ["f1"]}
    questions, (reject,) = load_question_file(
        write_jsonl(tmp_path / "q.jsonl", [row, row]), format="jsonl", graph=films
    )
    assert len(questions) == 1
    assert (reject.line, reject.reason) == (2, "id used before")


def test_a_missing_file_is_an_input_error(tmp_path: Path, films: KnowledgeGraph) -> None:
    with pytest.raises(InputError, match=r"question file: .*none\.jsonl does not exist"):
        load_question_file(tmp_path / "none.jsonl", format="jsonl", graph=films)
