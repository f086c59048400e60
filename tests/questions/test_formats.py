"""The table of formats, and reading files: line by line, or as a JSON array that says where it stops being one."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.config_base import QUESTION_FORMATS, FileDataset, QuestionSection
from kgqa_core.config_file import read_config
from kgqa_core.errors import ConfigError, InputError
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.build import build_questions, read_questions
from kgqa_core.questions.formats import (
    Fault,
    QuestionFile,
    QuestionFormat,
    RawQuestion,
    open_format,
    parse_items,
    parse_lines,
    question_files,
)
from kgqa_core.types import Question
from tests.conftest import write_jsonl
from tests.loading import load_question_file, searched

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=7,
)


def read(path: Path, text: str | bytes, key: str | None = None) -> list[tuple[int, Any]]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    items = parse_items(path, lambda item, number: Fault(item), key=key)
    return [(number, json.loads(item)) for number, item, said in items if said == Fault(item)]


@given(st.lists(json_values, max_size=5), st.sampled_from([None, 1]))
def test_items_are_what_a_plain_reader_says(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], indent: int | None
) -> None:
    path = tmp_path_factory.mktemp("json") / "items.json"
    assert read(path, json.dumps(values, indent=indent, ensure_ascii=False)) == list(enumerate(values, 1))
    whole = {"Version": "1.0", "Questions": values, "after": [{}]}
    assert read(path, json.dumps(whole, indent=indent), "Questions") == list(enumerate(values, 1))


def test_a_number_of_any_length_is_the_text_of_an_item(tmp_path: Path) -> None:
    long = "7" * 5000
    (tmp_path / "items.json").write_text(f'[{long}, {{"a": {long}.5}}]')
    items = parse_items(tmp_path / "items.json", lambda item, number: Fault(item))
    assert [item for _, item, _ in items] == [long, f'{{"a": {long}.5}}']


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    assert read(tmp_path / "items.json", b"\xef\xbb\xbf[1]\n") == [(1, 1)]


BAD: dict[str | bytes, str] = {
    '[{"a": 1},\n {"a": }]': "bad.json, line 2, character 8: .*Expecting value",
    '[{"a": 1},\n {"a": 2}': "line 2, character 10: ",  # truncated between items
    '[{"a": 1},\n {"a": "half of a te': "line 2, character 8: .*Unterminated string",  # truncated inside one
    '{"a": 1}\n{"a": 2}': "line 1, character 1: .*no list",  # JSON lines
    "[1, 2]\n[3]": "line 2, character 1: ",
    "[1 2]": "line 1, character 4: .*']' expected, '2' found",
    "[1,]": "line 1, character 4: ",
    "": "line 1, character 1: ",
    "[" * 100_000: "nested too deeply",
    '{"Version": "1.0"}': "no list",
    b'["a",\n"\xe9"]': "bad.json: not UTF-8 in line 2",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: str(text[:9]))
def test_a_bad_file_is_an_error_with_its_place(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(InputError, match=BAD[text]):
        read(tmp_path / "bad.json", text)


def test_a_file_without_the_field_or_no_file_is_an_error(tmp_path: Path) -> None:
    for other in ('{"Version": "1.0"}', "[]"):
        with pytest.raises(InputError, match="field 'Questions': is this the right file"):
            read(tmp_path / "other.json", other, "Questions")
    with pytest.raises(InputError, match=r"gone.json does not exist"):
        list(parse_items(tmp_path / "gone.json", lambda item, number: Fault(item)))


def test_lines_are_read_with_their_numbers_whatever_their_ends_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\xef\xbb\xbfone\n\ntwo\r\ncaf\xe9\n\xef\xbb\xbf{}\nlast")
    read = parse_lines(path, lambda line, number: Fault(f"{number} {line}"))
    assert [(number, line, said) for number, line, said in read] == [
        (1, "one", Fault("1 one")),
        (3, "two", Fault("3 two")),
        (4, "caf�", Fault("not UTF-8")),
        (5, "\ufeff{}", Fault("byte order mark inside the file")),
        (6, "last", Fault("6 last")),
    ]


@pytest.mark.parametrize("code", ["utf-16-le", "utf-16-be", "utf-16"])
@pytest.mark.parametrize("text", ['{"question": "Who?"}\n', '\r\n{"id": "q1", "question": "Кто это?"}\n', "Who?\n"])
def test_lines_in_utf_16_are_called_what_they_are(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(text.encode(code))
    with pytest.raises(InputError, match="is UTF-16"):
        list(parse_lines(path, lambda line, number: Fault(line)))


# The table


def test_every_entry_of_the_table_is_a_format() -> None:
    assert all(isinstance(open_format(name), QuestionFormat) for name in QUESTION_FORMATS)
    with pytest.raises(ConfigError, match=r"no question format is called 'metaka'; legal are metaqa, .*mean 'metaqa'"):
        open_format("metaka")
    with pytest.raises(ValueError, match=r"legal are metaqa, jsonl, .*; did you mean 'jsonl'"):
        QuestionSection(format="jsnl", path=Path("questions.jsonl"))


@pytest.mark.parametrize("setting", [{"hops": (1,)}, {"variant": "etd"}])
def test_settings_of_some_formats_are_refused_for_the_others(setting: dict[str, Any]) -> None:
    takes = set()
    for name in QUESTION_FORMATS:
        with contextlib.suppress(ValueError):
            QuestionSection(format=name, path=Path("x"), **setting)
            takes.add(name)
    assert takes == ({"metaqa", "wc2014"} if "hops" in setting else {"webqsp", "cwq"})


NEWCOMER = """
from kgqa_core.graph.formats import WRONG_FIELDS
from kgqa_core.questions.formats import Fault, QuestionFormat, RawQuestion, files_by_split, parse_lines

def read(file):
    def parse(line, number):
        text, _, answer = line.partition(" = ")
        return RawQuestion(f"{file.split}-{number}", text, (answer,), ()) if answer else Fault(WRONG_FIELDS)
    return parse_lines(file.path, parse)

FORMAT = QuestionFormat(files_by_split("{split}.toy"), read)
"""


def test_a_new_format_is_one_file_and_one_line(
    tmp_path: Path, films: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy_questions.py").write_text(NEWCOMER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(QUESTION_FORMATS, "toy", "toy_questions:FORMAT")
    (tmp_path / "train.toy").write_text("Who directed Vertigo? = Alfred Hitchcock\nWho?\n")
    (tmp_path / "test.toy").write_text("Who shot Rear Window? = Jeff Bleckner\n")
    (tmp_path / "run.yaml").write_text(
        "dataset: {name: toy, source: files, graph: {format: tsv, path: kb.tsv}, "
        "questions: {format: toy, path: ., max_reject_ratio: 0.4}}\n"
        "encoder: {kind: hash}\nexplorer: {steps: 2, edge_budget: 9, epochs: 1}\n"
    )
    dataset = read_config(tmp_path / "run.yaml").dataset
    assert isinstance(dataset, FileDataset)
    assert list(question_files(dataset.questions)) == ["questions/test.toy", "questions/train.toy"]
    report = build_questions(dataset.questions, search=searched(films, 2), out_dir=tmp_path / "questions")
    rejects = pq.read_table(tmp_path / "questions" / "rejects.parquet")["reason"].to_pylist()
    assert (report.per_split, rejects) == ({"train": 1, "test": 1}, ["wrong number of fields"])
    (asked,) = read_questions(tmp_path / "questions", "train")
    assert (asked.masked, [films.name_of(answer) for answer in asked.answers]) == (
        "Who directed [topic]?",
        ["Alfred Hitchcock"],
    )


def test_a_packed_file_of_a_split_is_not_read_past(tmp_path: Path) -> None:
    form, line = open_format("jsonl"), {"question": "Who?", "answers": ["Ada"]}
    write_jsonl(tmp_path / "train.jsonl", [line])
    packed = tmp_path / "validation.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "train.jsonl").read_bytes()))
    _, dev = form.list_files(tmp_path, None)
    with pytest.raises(InputError, match=r"validation\.jsonl\.gz is gzip"):
        list(form.read(dev))
    write_jsonl(tmp_path / "dev.jsonl", [line])  # what is there unpacked is read
    assert [file.path.name for file in form.list_files(tmp_path, None)] == ["train.jsonl", "dev.jsonl"]


# ------ Own questions as JSON lines: each field, and each way in which a line can be unusable.


Ids = Callable[..., tuple[int, ...]]


@pytest.fixture
def load(tmp_path: Path, films: KnowledgeGraph) -> Callable[..., Question]:
    """Load a file of one line that must be usable."""

    def load_one(**row: Any) -> Question:
        path = write_jsonl(tmp_path / "test.jsonl", [row])
        (question,), rejects = load_question_file(path, format="jsonl", graph=films, split="test")
        assert rejects == []
        return question

    return load_one


def test_a_line_with_all_fields(load: Callable[..., Question], films: KnowledgeGraph, ids: Ids) -> None:
    text, chain = "Which films did the director of Vertigo make?", ["directed_by", "~directed_by"]
    more = {"topics": ["f2"], "hops": 2, "chain": chain, "note": "keys that we do not know are ignored"}
    directed_by = films.relation_names.index("directed_by")
    assert load(id="q7", question=text, answers=["Rear Window", "f2"], **more) == Question(
        id="q7",
        text=text,
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
        # null is as if left out, of the two fields that are lists, too
        (
            {"question": "Who directed Vertigo?", "answers": ["p1"], "id": None, "topics": None, "chain": None},
            {"id": "test-1", "topics": ["f2"]},
        ),
        (
            {"question": "Was Vertigo by Grace Kelly?", "answers": None, "claim": "p2", "verdict": False, "made": None},
            {"answers": [], "verdict": False},
        ),
        ({"question": "Who made it?", "topic": "Vertigo", "topics": None, "answers": ["p1"]}, {"topics": ["f2"]}),
        # one topic may stand alone, as in a file that is asked
        ({"question": "Who made it?", "topic": "Vertigo", "answers": ["p1"]}, {"topics": ["f2"]}),
        # several topics are all masked
        (
            {"question": "What did Alfred Hitchcock make with Grace Kelly?", "topics": ["p1", "p2"], "answers": ["f1"]},
            {"topics": ["p1", "p2"], "masked": "What did [topic] make with [topic]?"},
        ),
        # a true/false question; what is claimed is no topic
        (
            {"question": "Was Vertigo by Grace Kelly?", "topics": ["f2"], "claim": "Grace Kelly", "verdict": False},
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
        ({"question": " ", "topics": ["f1"], "answers": ["f2"]}, r"field question: String should match pattern '\S'"),
        ({"question": "Vertigo?"}, "no answers given"),
        ({"question": "Vertigo?", "answers": None}, "no answers given"),
        ({"question": "Vertigo?", "answers": "f1"}, "field answers: Input should be a valid array"),
        ({"question": "Vertigo?", "answers": [None]}, "field answers: Input should be a valid string"),
        (
            {"question": "Vertigo?", "answers": ["f1"], "hops": 0},
            "field hops: Input should be greater than or equal to 1",
        ),
        (
            {"question": "Vertigo?", "answers": ["f1"], "hops": 10**30},
            "field hops: Input should be less than or equal to 99",
        ),
        (
            {"question": "Vertigo?", "answers": ["f1"], "topic": "f2", "topics": ["f2"]},
            "topic and topics are both given",
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
def test_an_unusable_line_is_rejected(tmp_path: Path, films: KnowledgeGraph, row: dict[str, Any], reason: str) -> None:
    good = {"question": "Vertigo?", "answers": ["f1"]}
    path = write_jsonl(tmp_path / "own.jsonl", [good, row])
    questions, (reject,) = load_question_file(path, format="jsonl", graph=films)
    assert len(questions) == 1
    assert (reject.file, reject.line, reject.reason) == ("own.jsonl", 2, reason)
    assert json.loads(reject.text) == row


@pytest.mark.parametrize("key", ["question", "qu\\u0065stion", "note"])
def test_a_key_that_is_there_twice_rejects_the_line(tmp_path: Path, films: KnowledgeGraph, key: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(f'{{"question": "Vertigo?", "note": "\\"id\\": 1", "answers": ["f1"], "{key}": "Other?"}}\n')
    questions, rejects = load_question_file(path, format="jsonl", graph=films)
    assert (questions, [one.reason for one in rejects]) == ([], ["a key twice in one object"])
    path.write_text('{"question": "Vertigo?", "answers": ["f1"], "note": {"question": "\\"question\\": 7"}}\n')
    assert len(load_question_file(path, format="jsonl", graph=films)[0]) == 1


def test_a_number_is_taken_as_it_is_written(tmp_path: Path) -> None:
    numbers = ["1837", "1837.0", "4.50", "1e3", "0.00000012", "123456789012345678901"]
    (path := tmp_path / "own.jsonl").write_text(
        f'{{"question": "?", "answers": [{", ".join(numbers)}], "id": 7.0, "hops": 2.0, "note": 0.5}}\n'
    )
    ((_, _, read),) = open_format("jsonl").read(QuestionFile(path, "train"))
    assert isinstance(read, RawQuestion)
    assert (read.id, read.hops, list(read.answers)) == ("7.0", 2, numbers)


def test_lines_that_are_no_json_objects(tmp_path: Path, films: KnowledgeGraph) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(b'[1]\n{"question": \n\n{"question": "caf\xe9"}\n"text"\n{"question": "Vertigo?", "ans')
    questions, rejects = load_question_file(path, format="jsonl", graph=films)
    assert questions == []
    reasons = {1: "not a JSON object", 2: "not JSON", 4: "not UTF-8", 5: "not a JSON object", 6: "truncated last line"}
    assert {reject.line: reject.reason for reject in rejects} == reasons
    path.write_text('{"question": "Vertigo?", "ans\n', encoding="utf-8")  # a last line that was ended is not cut off
    assert [reject.reason for reject in load_question_file(path, format="jsonl", graph=films)[1]] == ["not JSON"]
