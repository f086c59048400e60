"""WebQSP and ComplexWebQuestions in their official forms: what is read, and what is wrong with each bad question."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kgqa_core.errors import InputError
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.questions.build import QuestionReport, build_questions
from kgqa_core.questions.freebase import value_label
from kgqa_core.questions.loaders import load_question_file, read_questions
from kgqa_core.questions.readers import QuestionFormat, read_file
from kgqa_core.questions.records import Fault, RawQuestion
from kgqa_core.questions.sources import QuestionSource
from kgqa_core.questions.variants import plan_variant
from tests.questions.freebase_files import cwq_question, webqsp_parse, webqsp_question, write_json, write_webqsp

TRIPLES = """\
m.ann	people.person.parents	m.bob
m.ann	people.person.parents	m.eve
m.bob	people.person.date_of_birth	1971-10-13
m.bob	people.person.children	m.ann
"""
NAMES = "m.ann\tAnn\nm.bob\tBob\n"


@pytest.fixture
def graph(tmp_path: Path) -> KnowledgeGraph:
    (tmp_path / "kb.tsv").write_text(TRIPLES)
    (tmp_path / "names.tsv").write_text(NAMES)
    build_graph(tmp_path / "kb.tsv", format="tsv", out_dir=tmp_path / "graph", names=tmp_path / "names.tsv")
    return open_graph(tmp_path / "graph")


Build = Callable[..., QuestionReport]


@pytest.fixture
def build(tmp_path: Path, graph: KnowledgeGraph) -> Build:
    def build_here(format: QuestionFormat, **source: Any) -> QuestionReport:
        return build_questions(
            QuestionSource(format, tmp_path, **source),
            graph=graph,
            max_steps=2,
            reenter_topic=False,
            out_dir=tmp_path / "questions",
        )

    return build_here


def labels(graph: KnowledgeGraph, entities: tuple[int, ...]) -> list[str]:
    return [graph.label_of(entity) for entity in entities]


def only(path: Path, format: QuestionFormat) -> RawQuestion | Fault:
    ((_, _, parsed),) = read_file(path, format=format)
    return parsed


def test_webqsp_unites_its_parses_and_takes_the_chain_of_a_good_one(tmp_path: Path, graph: KnowledgeGraph) -> None:
    doubtful = {"AnnotatorComment": {"ParseQuality": "Partial"}}
    question = webqsp_question(
        "WebQTrn-1",
        "who are ann's parents and when was bob born?",
        webqsp_parse("m.ann", ["people.person.children"], ["m.eve"], **doubtful),
        webqsp_parse("m.ann", None, ["m.bob"]),
        webqsp_parse("m.bob", ["people.person.date_of_birth"], ["value:1971-10-13", "m.bob"]),
    )
    path = write_webqsp(tmp_path / "all.json", [question])
    (read,), rejects = load_question_file(path, format="webqsp", graph=graph)
    assert rejects == []
    assert (read.id, read.text) == ("WebQTrn-1", "who are ann's parents and when was bob born?")
    assert read.masked == "who are [topic]'s parents and when was [topic] born?"
    assert labels(graph, read.topics) == ["m.ann", "m.bob"]
    assert labels(graph, read.answers) == ["1971-10-13", "m.bob", "m.eve"]  # a value is a node as well
    assert read.chain == (graph.relation_labels.index("people.person.date_of_birth"),)


def test_webqsp_takes_a_doubtful_chain_where_there_is_no_better_and_none_that_the_graph_lacks(
    tmp_path: Path, graph: KnowledgeGraph
) -> None:
    doubtful = {"AnnotatorComment": None}
    first = webqsp_question("q1", "who?", webqsp_parse("m.ann", ["people.person.parents"], ["m.bob"], **doubtful))
    second = webqsp_question("q2", "what?", webqsp_parse("m.ann", ["people.person.parents", "r.gone"], ["m.bob"]))
    path = write_webqsp(tmp_path / "all.json", [first, second])
    one, two = load_question_file(path, format="webqsp", graph=graph)[0]
    assert (one.chain, two.chain) == ((graph.relation_labels.index("people.person.parents"),), None)


def test_questions_that_nothing_can_answer_are_kept(tmp_path: Path, graph: KnowledgeGraph) -> None:
    nothing = webqsp_question("q1", "who?", webqsp_parse(None, None, []))
    elsewhere = webqsp_question("q2", "who else?", webqsp_parse("m.gone", None, ["m.lost"]))
    path = write_webqsp(tmp_path / "all.json", [nothing, elsewhere, webqsp_question("q3", "what?")])
    questions, rejects = load_question_file(path, format="webqsp", graph=graph)
    assert [(q.id, q.topics, q.answers) for q in questions] == [("q1", (), ()), ("q2", (), ()), ("q3", (), ())]
    assert rejects == []


def test_cwq_topics_are_the_entities_of_the_query(tmp_path: Path, graph: KnowledgeGraph) -> None:
    sparql = (
        "PREFIX ns: <…> SELECT ?x WHERE { FILTER (?x != ?c) ns:m.ann ns:people.person.parents ?x . ns:m.ann ns:r ?c }"
    )
    items = [
        cwq_question("WebQTrn-1_ab", "who are ann's parents?", sparql, ["m.bob", "1971-10-13-08:00"]),
        {"ID": "WebQTrn-1_cd", "question": "who?", "answers": [{"answer_id": None, "answer": "Bob"}]},
    ]
    one, two = load_question_file(write_json(tmp_path / "all.json", items), format="cwq", graph=graph)[0]
    assert (one.id, labels(graph, one.topics), one.chain) == ("WebQTrn-1_ab", ["m.ann"], None)
    assert labels(graph, one.answers) == ["1971-10-13", "m.bob"]
    assert (two.topics, labels(graph, two.answers)) == ((), ["m.bob"])  # by its name


def test_a_cwq_test_file_without_answers_is_an_error(tmp_path: Path) -> None:
    path = write_json(tmp_path / "ComplexWebQuestions_test.json", [{"ID": "a", "question": "who?"}] * 2)
    with pytest.raises(InputError, match=r"none of its 2 questions has an answer.*test_wans.json"):
        list(read_file(path, format="cwq"))


@pytest.mark.parametrize(
    ("written", "label"),
    [
        ("m.0abc", "m.0abc"),
        ("1971-10-13", "1971-10-13"),
        ("1971-10-13-08:00", "1971-10-13"),
        ("1971-08:00", "1971"),
        ("2001-05Z", "2001-05"),
        ('"1971-10-13"^^<http://www.w3.org/2001/XMLSchema#date>', "1971-10-13"),
        ('"a "quoted" name"@en', 'a "quoted" name'),
        ("4-08", "4-08"),
    ],
)
def test_a_value_is_the_label_that_the_dump_has(written: str, label: str) -> None:
    assert value_label(written) == label


GOOD = webqsp_question("q0", "who?", webqsp_parse("m.ann", ["r"], ["m.bob"]))
BAD_WEBQSP: list[tuple[Any, str]] = [
    ("just a text", "not a JSON object"),
    ({"RawQuestion": "who?", "Parses": []}, "field QuestionId: Field required"),
    ({"QuestionId": "q1", "RawQuestion": "who?"}, "field Parses: Field required"),
    ({"QuestionId": "q1", "RawQuestion": "who?", "Parses": {}}, "field Parses: Input should be a valid array"),
    ({"QuestionId": "q1", "RawQuestion": " ", "Parses": []}, "no question text"),
    (webqsp_question("q1", "who?", webqsp_parse("m.1", "r", [])), "field Parses.InferentialChain: Input should be"),
    (webqsp_question("q1", "who?", webqsp_parse("m.1", None, [[]])), "field Parses.Answers: Input should be an object"),
    (webqsp_question("q1", "who?", webqsp_parse({}, None, [])), "field Parses.TopicEntityMid: Input should be a valid"),
    (GOOD, "id used before"),
]
BAD_CWQ: list[tuple[Any, str]] = [
    (None, "not a JSON object"),
    ({"question": "who?"}, "field ID: Field required"),
    ({"ID": "c1"}, "field question: Field required"),
    ({"ID": "c1", "question": ""}, "field question: String should have at least 1 character"),
    ({"ID": "c1", "question": "who?", "sparql": []}, "field sparql: Input should be a valid string"),
    ({"ID": "c1", "question": "who?", "answers": "m.bob"}, "field answers: Input should be a valid array"),
    ({"ID": "c1", "question": "who?", "answers": ["m.bob"]}, "field answers: Input should be an object"),
]


@pytest.mark.parametrize(("format", "planted"), [("webqsp", BAD_WEBQSP), ("cwq", BAD_CWQ)])
def test_each_bad_question_is_a_reject_with_its_place(
    tmp_path: Path, graph: KnowledgeGraph, format: QuestionFormat, planted: list[tuple[Any, str]]
) -> None:
    good = GOOD if format == "webqsp" else cwq_question("c0", "who?", "ns:m.ann", ["m.bob"])
    items = [good, *(item for item, _ in planted)]
    path = tmp_path / "all.json"
    write_webqsp(path, items) if format == "webqsp" else write_json(path, items)
    questions, rejects = load_question_file(path, format=format, graph=graph)
    assert [question.id for question in questions] == [good["QuestionId" if format == "webqsp" else "ID"]]
    assert [reject.line for reject in rejects] == list(range(2, len(items) + 1))
    for reject, (item, reason) in zip(rejects, planted, strict=True):
        assert reject.reason.startswith(reason), reject
        assert json.loads(reject.text) == item if len(reject.text) < 500 else True


def test_text_that_is_no_unicode_is_a_reject(tmp_path: Path, graph: KnowledgeGraph) -> None:
    path = tmp_path / "all.json"
    path.write_text('[{"ID": "c0", "question": "\\ud800", "answers": [{"answer_id": "m.bob"}]}]')
    questions, (reject,) = load_question_file(path, format="cwq", graph=graph)
    assert (questions, reject.line, reject.reason) == ([], 1, "not JSON")


# Variants


def write_splits(folder: Path, num_train: int = 40) -> list[str]:
    """Write a train file whose questions 3 and 5 have no answer, and a test file where question 1 has none."""
    parse = webqsp_parse("m.ann", ["people.person.parents"], ["m.bob"])
    train = [webqsp_question(f"WebQTrn-{n}", f"who {n}?", *([] if n in (3, 5) else [parse])) for n in range(num_train)]
    test = [webqsp_question(f"WebQTest-{n}", f"what {n}?", *([] if n == 1 else [parse])) for n in range(3)]
    write_webqsp(folder / "WebQSP.train.json", train)
    write_webqsp(folder / "WebQSP.test.json", test)
    return [question["QuestionId"] for question in train]


def test_official_is_the_files_as_they_are(tmp_path: Path, build: Build) -> None:
    write_splits(tmp_path)
    report = build("webqsp")
    assert (report.per_split, report.variant) == ({"train": 40, "test": 3}, None)
    assert not (tmp_path / "questions/variant.json").exists()


def test_etd_draws_dev_questions_and_rog_also_drops_those_without_an_answer(tmp_path: Path, build: Build) -> None:
    ids = write_splits(tmp_path)
    assert build("webqsp", variant="etd").per_split == {"train": 36, "dev": 4, "test": 3}
    drawn = json.loads((tmp_path / "questions/variant.json").read_text())
    assert set(drawn["dev_ids"]) <= set(ids)
    assert (drawn["dev"], drawn["num_before"], drawn["dropped"]) == (
        "drawn by hash of the ids",
        {"train": 40, "dev": 0, "test": 3},
        [],
    )
    dev = read_questions(tmp_path / "questions", "dev")
    assert sorted(question.id for question in dev) == drawn["dev_ids"]

    report = build("webqsp", variant="rog")
    left = json.loads((tmp_path / "questions/variant.json").read_text())
    assert left["dev_ids"] == drawn["dev_ids"]  # the same draw
    assert sorted(dropped["id"] for dropped in left["dropped"]) == ["WebQTest-1", "WebQTrn-3", "WebQTrn-5"]
    assert {dropped["reason"] for dropped in left["dropped"]} == {"the file gives no answer"}
    assert sum(report.per_split.values()) == 40 and report.per_split["test"] == 2
    assert left["num_left"] == report.per_split
    assert not [finding for finding in report.lint.findings if finding.kind == "no_gold"]


def test_dev_questions_may_be_listed(tmp_path: Path, build: Build) -> None:
    write_splits(tmp_path)
    (tmp_path / "dev.jsonl").write_text('WebQTrn-7\n\n{"id": "WebQTrn-9", "question": "who 9?"}\n')
    report = build("webqsp", variant="etd", dev_ids=tmp_path / "dev.jsonl")
    assert report.variant is not None
    assert (report.variant.dev_ids, report.variant.dev) == (("WebQTrn-7", "WebQTrn-9"), "listed in dev.jsonl")
    for text, message in (
        ("WebQTest-0\n", "1 of its 1 ids are no training question's, 'WebQTest-0' first"),
        ('{"id": 3}\n', "dev.jsonl:1: the object has no field 'id'"),
        ("q1\n{\n", "dev.jsonl:2: neither an id nor a JSON object"),
    ):
        (tmp_path / "dev.jsonl").write_text(text)
        with pytest.raises(InputError, match=message):
            build("webqsp", variant="etd", dev_ids=tmp_path / "dev.jsonl")


def test_a_dev_file_is_the_dev_split_and_a_single_file_has_no_variant(tmp_path: Path, build: Build) -> None:
    for split, count in (("train", 20), ("dev", 2), ("test", 2)):
        items = [cwq_question(f"{split}-{n}", f"who {n}?", "ns:m.ann", ["m.bob"]) for n in range(count)]
        write_json(tmp_path / f"ComplexWebQuestions_{split}.json", items)
    answered = [cwq_question("answered", "who?", "ns:m.ann", ["m.bob"])]
    write_json(tmp_path / "ComplexWebQuestions_test_wans.json", answered)
    report = build("cwq", variant="etd")
    assert report.per_split == {"train": 20, "dev": 2, "test": 1}  # of the test files the one with answers
    assert report.variant is not None
    assert report.variant.dev == "their own file"
    with pytest.raises(InputError, match="variant 'rog' needs a file per split"):
        plan_variant(QuestionSource("cwq", tmp_path / "ComplexWebQuestions_train.json", variant="rog"))


def test_coverage_says_what_is_within_each_number_of_steps(tmp_path: Path, build: Build) -> None:
    step = webqsp_parse("m.ann", None, ["m.bob"])
    two = webqsp_parse("m.ann", None, ["m.eve", "value:1971-10-13"])
    partly = webqsp_parse("m.ann", None, ["m.bob", "m.lost"])
    itself = webqsp_parse("m.ann", None, ["m.ann"])
    asked = [
        webqsp_question(f"q{n}", f"who {n}?", *parses)
        for n, parses in enumerate([[step], [two], [partly], [itself], [webqsp_parse("m.gone", None, ["m.bob"])], []])
    ]
    write_webqsp(tmp_path / "WebQSP.test.json", asked)
    report = build("webqsp")
    rows = pq.read_table(tmp_path / "questions/coverage.parquet").to_pylist()
    common = {"split": "test", "num_questions": 6, "num_with_topic": 4, "num_with_answer": 5}
    assert rows == [
        {**common, "steps": 0, "num_any": 1, "num_all": 1},
        {**common, "steps": 1, "num_any": 4, "num_all": 2},
        {**common, "steps": 2, "num_any": 4, "num_all": 3},
    ]
    (names,) = report.lint.names
    assert (names.num_topics, names.num_topics_named) == (1, 1)
    assert (names.num_answers, names.num_answers_named) == (4, 3)  # m.eve has no name; a date is its own
