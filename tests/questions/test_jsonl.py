"""Own questions as JSON lines: each field, and each way in which a line can be unusable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.link import load_question_file
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


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        # a minimal line is linked by name
        (
            {"question": "Who directed Vertigo?", "answers": ["Alfred Hitchcock"]},
            {"id": "test-1", "topics": ["f2"], "masked": "Who directed [topic]?", "hops": None, "chain": None},
        ),
        # the chain gives the hops where they are not said; one of unknown relations is no reason to drop a question
        ({"question": "Vertigo?", "answers": ["1958"], "chain": ["release_year"]}, {"hops": 1}),
        ({"question": "Vertigo?", "answers": ["1958"], "chain": ["made_in"]}, {"chain": None}),
        # numbers may be written as numbers
        (
            {"question": "Which films came out in 1958?", "topics": [1958], "answers": ["f2"]},
            {"topics": ["1958"], "masked": "Which films came out in [topic]?"},
        ),
        # several topics are all masked
        (
            {"question": "What did Alfred Hitchcock make with Grace Kelly?", "topics": ["p1", "p2"], "answers": ["f1"]},
            {"topics": ["p1", "p2"], "masked": "What did [topic] make with [topic]?"},
        ),
        # a true/false question; what is claimed is no topic
        (
            {
                "question": "Was Vertigo by Grace Kelly?",
                "topics": ["Vertigo"],
                "claim": "Grace Kelly",
                "verdict": False,
            },
            {"masked": "Was [topic] by [claim]?", "claim": "p2", "verdict": False, "answers": []},
        ),
        (
            {"question": "Did Alfred Hitchcock make Vertigo?", "claim": "p1", "verdict": True},
            {"topics": ["f2"], "masked": "Did [claim] make [topic]?"},
        ),
    ],
)
def test_what_lines_say(load: Callable[..., Question], ids: Ids, row: dict[str, Any], expected: dict[str, Any]) -> None:
    question = load(**row)
    for name, value in expected.items():
        if name in ("topics", "answers"):
            value = ids(*value)
        elif name == "claim":
            (value,) = ids(value)
        assert getattr(question, name) == value, name


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
    path.write_text('{"question": "Vertigo?", "ans\n', encoding="utf-8")  # a last line that was ended is not cut off
    assert [reject.reason for reject in load_question_file(path, format="jsonl", graph=films)[1]] == ["not JSON"]
