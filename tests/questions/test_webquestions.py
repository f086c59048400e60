"""WebQuestions in its official form: answers are names, topics are linked by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.formats import read_file
from kgqa_core.questions.records import RawQuestion
from kgqa_core.questions.store import load_question_file
from kgqa_core.questions.webqsp import read_descriptions
from tests.questions.freebase_files import write_json


def item(text: str, target: str, key: str | None = "en/rear_window") -> dict[str, Any]:
    url = {} if key is None else {"url": f"http://www.freebase.com/view/{key}"}
    return {"utterance": text, "targetValue": target, **url}


def test_the_topic_is_the_longest_name_in_the_text(tmp_path: Path, films: KnowledgeGraph) -> None:
    items = [
        item("who directed rear window?", '(list (description "Alfred Hitchcock") (description "Nobody Known"))'),
        item("who directed something else?", '(list (description "Alfred Hitchcock"))', None),
        item("who is in vertigo?", "(list (description 1958))"),
    ]
    path = write_json(tmp_path / "test.json", items)
    first, second, third = load_question_file(path, format="webquestions", graph=films, split="test")[0]
    assert [films.label_of(topic) for topic in first.topics] == ["f1", "f3"]  # both bear the name
    assert [films.label_of(answer) for answer in first.answers] == ["p1"]
    assert first.masked == "who directed [topic]?"
    assert (second.topics, [films.label_of(topic) for topic in third.topics]) == ((), ["f2"])  # kept without a topic
    assert [question.id for question in (first, second, third)] == ["WebQTest-0", "WebQTest-1", "WebQTest-2"]


def test_the_file_gives_the_topic_as_a_key(tmp_path: Path) -> None:
    path = write_json(tmp_path / "train.json", [item("who?", "(list)")])
    ((_, _, parsed),) = read_file(path, format="webquestions", split="train")
    assert isinstance(parsed, RawQuestion)
    assert (parsed.id, parsed.topics, parsed.answers) == ("WebQTrn-0", ("/en/rear_window",), ())


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ('(list (description "A B") (description C))', ("A B", "C")),
        (r'(list (description "say \"hi\" (loud)") (description "A") (description "A"))', ('say "hi" (loud)', "A")),
        ("(list)", ()),
        ('(list (description ""))', ()),
        ('(list (description "A")', None),
        ('(list (description "A) )', None),
        ("(list A)", None),
        ('(name "A")', None),
    ],
)
def test_descriptions_are_read(target: str, names: tuple[str, ...] | None) -> None:
    assert read_descriptions(target) == names


def test_bad_questions_are_rejects(tmp_path: Path, films: KnowledgeGraph) -> None:
    bad = [
        1,
        {"targetValue": "(list)"},
        {"utterance": "who?"},
        item("who?", "Alfred"),
        {**item("who?", "(list)"), "url": 1},
    ]
    questions, rejects = load_question_file(
        write_json(tmp_path / "bad.json", [*bad, item("who directed vertigo", "(list (description 1958))")]),
        format="webquestions",
        graph=films,
    )
    assert [question.id for question in questions] == ["WebQTest-5"]  # the place in the file, as WebQSP counts
    assert [(reject.line, reject.reason) for reject in rejects] == [
        (1, "not a JSON object"),
        (2, "field utterance: Field required"),
        (3, "field targetValue: Field required"),
        (4, "field targetValue: not (list (description …))"),
        (5, "field url: Input should be a valid string"),
    ]
