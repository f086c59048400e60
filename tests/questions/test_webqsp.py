"""WebQSP, ComplexWebQuestions and WebQuestions in their official forms: what is read, and why a question is refused."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.config_base import QuestionSection
from kgqa_core.errors import InputError
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.closure_walk import IDS
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.search_graph import open_subgraphs
from kgqa_core.graph.subgraph_build import build_subgraphs
from kgqa_core.questions.build import build_questions
from kgqa_core.questions.coverage import Coverage, cover_names
from kgqa_core.questions.formats import QuestionFile, RawQuestion, open_format
from kgqa_core.questions.webqsp import labels_of, read_descriptions
from tests.loading import graph_of_text, load_question_file, searched
from tests.nsm import ROWS, write_nsm
from tests.questions.freebase_files import cwq_question, webqsp_parse, webqsp_question, write_json, write_webqsp


def labels(family: KnowledgeGraph, entities: tuple[int, ...]) -> list[str]:
    return [family.label_of(entity) for entity in entities]


def test_webqsp_unites_its_parses_and_takes_the_chain_of_a_good_one(tmp_path: Path, family: KnowledgeGraph) -> None:
    doubtful = {"AnnotatorComment": {"ParseQuality": "Partial"}}
    question = webqsp_question(
        "WebQTrn-1",
        "who are ann's parents and when was bob born?",
        webqsp_parse("m.01n", ["people.person.children"], ["m.03v"], **doubtful),
        webqsp_parse("m.01n", None, ["m.02b"]),
        webqsp_parse("m.02b", ["people.person.date_of_birth"], ["value:1971-10-13", "m.02b"]),
    )
    path = write_webqsp(tmp_path / "all.json", [question])
    (read,), rejects = load_question_file(path, format="webqsp", graph=family)
    assert rejects == []
    assert (read.id, read.text) == ("WebQTrn-1", "who are ann's parents and when was bob born?")
    assert read.masked == "who are [topic]'s parents and when was [topic] born?"
    assert labels(family, read.topics) == ["m.01n", "m.02b"]
    assert labels(family, read.answers) == ["1971-10-13", "m.02b", "m.03v"]  # a value is a node as well
    assert read.chain == (family.relation_names.index("people.person.date_of_birth"),)


def test_webqsp_takes_no_chain_that_the_graph_lacks_and_keeps_what_nothing_can_answer(
    tmp_path: Path, family: KnowledgeGraph
) -> None:
    parents = ["people.person.parents"]
    parses = {
        "doubtful": [webqsp_parse("m.01n", parents, ["m.02b"], AnnotatorComment=None)],  # taken: there is no better
        "lacking": [webqsp_parse("m.01n", [*parents, "r.gone"], ["m.02b"])],
        "empty": [webqsp_parse(None, None, [])],
        "elsewhere": [webqsp_parse("m.04g", None, ["m.05l"])],
        "without a parse": [],
    }
    path = write_webqsp(tmp_path / "all.json", [webqsp_question(id, "who?", *own) for id, own in parses.items()])
    questions, rejects = load_question_file(path, format="webqsp", graph=family)
    assert ([one.id for one in questions], rejects) == (list(parses), [])
    assert [one.chain for one in questions] == [(family.relation_names.index(*parents),), *[None] * 4]
    assert [(one.topics, one.answers) for one in questions[2:]] == [((), ())] * 3


def test_cwq_topics_are_the_entities_of_the_query(tmp_path: Path, family: KnowledgeGraph) -> None:
    sparql = (
        "PREFIX ns: <…> SELECT ?x WHERE { FILTER (?x != ?c) ns:m.01n ns:people.person.parents ?x . ns:m.01n ns:r ?c }"
    )
    items = [
        cwq_question("WebQTrn-1_ab", "who are ann's parents?", sparql, ["m.02b", "1971-10-13-08:00"]),
        {"ID": "WebQTrn-1_cd", "question": "who?", "answers": [{"answer_id": None, "answer": "Bob"}]},
    ]
    one, two = load_question_file(write_json(tmp_path / "all.json", items), format="cwq", graph=family)[0]
    assert (one.id, labels(family, one.topics), one.chain) == ("WebQTrn-1_ab", ["m.01n"], None)
    assert labels(family, one.answers) == ["1971-10-13", "m.02b"]
    assert (two.topics, labels(family, two.answers)) == ((), ["m.02b"])  # by its name


@pytest.mark.parametrize(
    ("label", "is_id"),
    [("m.0_bcd", True), ("g.11b66dwnl2", True), ("m.0bcdfghjklmn", False), ("m.music", False), ("k.0bcd", False)],
)
def test_all_agree_on_what_an_id_of_freebase_is(tmp_path: Path, label: str, is_id: bool) -> None:
    graph, item = (
        graph_of_text(tmp_path, f"{label}\tr\tm.02b\n"),
        cwq_question("q", "who?", f"{{ ns:{label} ns:r ?x }}", ["m.02b"]),
    )
    (asked,) = load_question_file(write_json(tmp_path / "all.json", [item]), format="cwq", graph=graph)[0]
    assert labels(graph, asked.topics) == [label] * is_id  # a constant of the query
    (named,) = cover_names([replace(asked, topics=tuple(graph.ids_of_name(label)))], graph)
    assert (named.num_topics, named.num_topics_named) == (1, int(not is_id))  # shown as it is: it has no name
    assert bool(re.fullmatch(IDS["freebase"], label)) == is_id  # no text to look for among a dump's names


def test_a_cwq_test_file_without_answers_is_an_error(tmp_path: Path) -> None:
    path = write_json(tmp_path / "ComplexWebQuestions_test.json", [{"ID": "a", "question": "who?"}] * 2)
    with pytest.raises(InputError, match=r"no question in it has an answer.*test_wans.json"):
        list(open_format("cwq").read(QuestionFile(path)))


@pytest.mark.parametrize(
    ("written", "label"),
    [
        ("m.0bcd", "m.0bcd"),
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
    assert labels_of([written]) == (label,)


GOOD = webqsp_question("q0", "who?", webqsp_parse("m.01n", ["r"], ["m.02b"]))
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
    ({"ID": "c1", "question": "who?", "answers": "m.02b"}, "field answers: Input should be a valid array"),
    ({"ID": "c1", "question": "who?", "answers": ["m.02b"]}, "field answers: Input should be an object"),
]


@pytest.mark.parametrize(("format", "planted"), [("webqsp", BAD_WEBQSP), ("cwq", BAD_CWQ)])
def test_each_bad_question_is_a_reject_with_its_place(
    tmp_path: Path, family: KnowledgeGraph, format: str, planted: list[tuple[Any, str]]
) -> None:
    good = GOOD if format == "webqsp" else cwq_question("c0", "who?", "ns:m.01n", ["m.02b"])
    items = [good, *(item for item, _ in planted)]
    path = tmp_path / "all.json"
    write_webqsp(path, items) if format == "webqsp" else write_json(path, items)
    questions, rejects = load_question_file(path, format=format, graph=family)
    assert [question.id for question in questions] == [good["QuestionId" if format == "webqsp" else "ID"]]
    assert [reject.line for reject in rejects] == list(range(2, len(items) + 1))
    for reject, (item, reason) in zip(rejects, planted, strict=True):
        assert reject.reason.startswith(reason), reject
        assert json.loads(reject.text) == item if len(reject.text) < 500 else True


def test_text_that_is_no_unicode_is_a_reject(tmp_path: Path, family: KnowledgeGraph) -> None:
    path = tmp_path / "all.json"
    path.write_text('[{"ID": "c0", "question": "\\ud800", "answers": [{"answer_id": "m.02b"}]}]')
    questions, (reject,) = load_question_file(path, format="cwq", graph=family)
    assert (questions, reject.line, reject.reason) == ([], 1, "not JSON")


# WebQuestions: answers are names, topics are linked by name


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
    ((_, _, parsed),) = open_format("webquestions").read(QuestionFile(path, "train"))
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


def test_bad_webquestions_are_rejects(tmp_path: Path, films: KnowledgeGraph) -> None:
    good = item("who directed vertigo", "(list (description 1958))")
    bad = [1, {"targetValue": "(list)"}, {"utterance": "?"}, item("?", "Alfred"), {**item("?", "(list)"), "url": 1}]
    path = write_json(tmp_path / "bad.json", [*bad, good])
    questions, rejects = load_question_file(path, format="webquestions", graph=films)
    assert [question.id for question in questions] == ["WebQTest-5"]  # the place in the file, as WebQSP counts
    assert [(reject.line, reject.reason) for reject in rejects] == [
        (1, "not a JSON object"),
        (2, "field utterance: Field required"),
        (3, "field targetValue: Field required"),
        (4, "field targetValue: not (list (description …))"),
        (5, "field url: Input should be a valid string"),
    ]


# ------ Questions of NSM files: all stay in the denominator, also those that nothing can answer.


@pytest.fixture
def graph(tmp_path: Path) -> KnowledgeGraph:
    build_graph(write_nsm(tmp_path / "dev.jsonl"), format="nsm", out_dir=tmp_path / "graph")
    return open_graph(tmp_path / "graph")


def test_every_usable_line_is_a_question(tmp_path: Path, graph: KnowledgeGraph) -> None:
    questions, rejects = load_question_file(tmp_path / "dev.jsonl", format="nsm", graph=graph)
    assert rejects == []
    assert [question.id for question in questions] == [row["id"] for row in ROWS]
    found = {question.id: question for question in questions}
    assert found["q4"].masked == "who plays [topic]"  # q2 gives the text of m.jazz
    assert found["q1"].masked == found["q1"].text == "who is the brother of ann"  # nobody gives that of m.ann
    assert labels(graph, found["q1"].topics) == ["m.ann"]
    assert labels(graph, found["q8"].answers) == ["m.bob", "m.cat"]
    assert labels(graph, found["q3"].answers) == ["1971-10-13"]  # a date, and in no triple
    assert (found["q5"].answers, found["q6"].topics) == ((), ())
    assert all(question.hops is None and question.claim is None for question in questions)


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
    reasons = ["not JSON", "no subgraph with tuples", "id used before", "no question text", "not a JSON object"]
    expected = list(enumerate([*reasons, "truncated last line"], 2))
    assert [(reject.line, reject.reason) for reject in rejects] == expected


@pytest.mark.parametrize(("subgraphs", "no_answer", "unreachable"), [(False, 2, 3), (True, 3, 5)])
def test_lint_and_coverage_are_of_what_is_explored(
    tmp_path: Path, graph: KnowledgeGraph, subgraphs: bool, no_answer: int, unreachable: int
) -> None:
    section, out_dir = QuestionSection(format="nsm", path=tmp_path / "dev.jsonl"), tmp_path / "questions"
    build_subgraphs([tmp_path / "dev.jsonl"], graph=graph, out_dir=tmp_path)
    inside = open_subgraphs(tmp_path) if subgraphs else None
    report = build_questions(section, search=searched(graph, 2, subgraphs=inside), out_dir=out_dir)
    assert (report.num_questions, report.num_rejects) == (8, 0)
    found = Counter[str]()
    for finding in report.lint.findings:
        found[finding.kind] += finding.count
    same = {"no_gold": 1, "no_topic": 1, "topic_not_in_text": 6}
    # In subgraphs q3, q5 and q7 have no answer; not reached are one of two answers of q2 and of q8, and q3, q6, q7.
    assert found == {**same, "no_answer_in_graph": no_answer, "unreachable_answer": unreachable}
    rows = report.lint.coverage
    assert sum(row.num_questions for row in rows) == 8
    if subgraphs:  # of 8: q5 without a gold counts as not covered
        covered = [sum(getattr(row, gold) * row.num_questions for row in rows) for gold in ("any_gold", "all_golds")]
        assert [round(percent / 100) for percent in covered] == [4, 2]
    kept = json.loads((tmp_path / "questions" / "lint.json").read_text(encoding="utf-8"))
    assert [Coverage(**row) for row in kept["coverage"]] == list(rows)
