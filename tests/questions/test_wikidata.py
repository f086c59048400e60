"""SimpleQuestions and QALD over Wikidata: miniatures of their public files, over N-Triples as in a truthy dump."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.errors import InputError
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.profiles import WIKIDATA
from kgqa_core.questions.formats import QuestionFile, RawQuestion, open_format
from kgqa_core.questions.wikidata import NO_FACT, topics_of
from kgqa_core.types import Question
from tests.loading import build_rdf, load_question_file
from tests.questions.freebase_files import write_json

PROPERTY, ITEM = WIKIDATA.namespaces
RESOURCE = "http://dbpedia.org/resource/"
LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
FACTS = [("Q1", "P19", "Q2"), ("Q3", "P19", "Q2"), ("Q1", "P31", "Q5"), ("Q2", "P17", "Q4")]
NAMES = {
    "Q1": "Ada Moon",
    "Q2": "Port Amber",
    "Q3": "Ben Snow",
    "Q4": "Freedonia",
    "Q5": "human",
    "P19": "place of birth",
}


@pytest.fixture(scope="module")
def truthy(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeGraph:
    """Four facts and six names, one of a property, written as Wikidata writes them."""
    folder = tmp_path_factory.mktemp("truthy")
    lines = [f"<{ITEM}{head}> <{PROPERTY}{relation}> <{ITEM}{tail}> ." for head, relation, tail in FACTS]
    lines += [
        f'<{ITEM}{item}> <{LABEL}> "{name}"@{language} .' for item, name in NAMES.items() for language in ("en", "de")
    ]
    (folder / "truthy.nt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    build_rdf(folder / "truthy.nt", folder, format="wikidata")
    return open_graph(folder / "graph")


def names(graph: KnowledgeGraph, entities: tuple[int, ...]) -> set[str]:
    return {graph.name_of(entity) for entity in entities}


def test_simple_questions_walk_an_r_backwards(tmp_path: Path, truthy: KnowledgeGraph) -> None:
    path = tmp_path / "annotated_wd_data_valid.txt"
    path.write_text(
        "Q1\tP19\tQ2\twhere was ada moon born\nQ2\tR19\tQ3\twho was born in port amber?\nQ9\tP19\tQ2\twhere was he"
        " born\nQ1\tP19\twhere\nQ1\tp19\tQ2\twhere\nQ1\tP19\tQ2\t \n",
        encoding="utf-8",
    )
    questions, rejects = load_question_file(path, format="simplequestions", graph=truthy)
    read = [(one.masked, names(truthy, one.topics), names(truthy, one.answers)) for one in questions]
    assert read == [
        ("where was [topic] born", {"Ada Moon"}, {"Port Amber"}),
        ("who was born in [topic]?", {"Port Amber"}, {"Ben Snow"}),
        ("where was he born", set(), {"Port Amber"}),  # asked, and counted as wrong: the graph has no Q9
    ]
    born = truthy.relation_names.index("place of birth")
    assert [one.chain for one in questions[:2]] == [(born,), (born + truthy.num_relations,)]
    assert [(one.line, one.reason) for one in rejects] == [(number, NO_FACT) for number in (4, 5, 6)]


def qald(text: str, sparql: str, *answers: dict[str, Any], language: str = "en") -> dict[str, Any]:
    """Return a question as QALD's files have it."""
    wordings = [{"language": "de", "string": "…"}, {"language": language, "string": text}]
    return {"id": len(text), "question": wordings, "query": {"sparql": sparql}, "answers": list(answers)}


def bindings(*values: str) -> dict[str, Any]:
    """Return an answer as an endpoint says it."""
    rows = [{"uri": {"type": "uri", "value": value}, "uriLabel": {"value": "its name"}} for value in values]
    return {"head": {"vars": ["uri"]}, "results": {"bindings": rows}}


def test_qald_takes_the_english_wording_and_what_the_query_names(tmp_path: Path, truthy: KnowledgeGraph) -> None:
    asked = [
        qald("Who was born in Port Amber?", "SELECT ?uri WHERE { ?uri wdt:P31 wd:Q5 ; wdt:P19 wd:Q2 }",
             bindings(ITEM + "Q1", ITEM + "Q3")),
        qald("Was Ada Moon born there?", f"ASK {{ <{ITEM}Q1> <{PROPERTY}P19> ?x }}", {"head": {}, "boolean": True}),
        {**qald("Wo?", ""), "question": [{"language": "en", "string": None}], "query": {"sparql": None}},
    ]  # fmt: skip
    path = write_json(tmp_path / "all.json", {"dataset": {"id": "qald"}, "questions": asked})
    (born, told), (reject,) = load_question_file(path, format="qald", graph=truthy)
    assert (names(truthy, born.topics), names(truthy, born.answers)) == ({"Port Amber"}, {"Ada Moon", "Ben Snow"})
    assert isinstance(told, Question) and (names(truthy, told.topics), told.answers) == ({"Ada Moon"}, ())
    assert (reject.line, reject.reason) == (3, "no wording in English")


def test_qald_numbers_the_questions_of_each_split_anew(tmp_path: Path) -> None:
    content = {"questions": [qald("Who was born in Port Amber?", "", bindings(ITEM + "Q1"))]}
    ids, splits = list[str](), ("train", "test", None)
    for split in splits:
        path = write_json(tmp_path / f"{split}.json", content)
        ((_, _, one),) = open_format("qald").read(QuestionFile(path, split))
        assert isinstance(one, RawQuestion)
        ids.append(one.id)
    assert ids == ["train-27", "test-27", "27"]


def test_a_file_of_queries_without_answers_is_an_error(tmp_path: Path) -> None:
    path = write_json(tmp_path / "test.json", {"questions": [qald("who?", "SELECT ?x WHERE { ?x wdt:P19 wd:Q2 }")]})
    with pytest.raises(InputError, match=r"no question in it has an answer.*ask an endpoint"):
        list(open_format("qald").read(QuestionFile(path)))


@pytest.mark.parametrize(
    ("sparql", "topics"),
    [
        ("SELECT ?x { wd:Q2 wdt:P17 ?x }", ["Q2"]),
        (f"PREFIX e: <{ITEM}> SELECT ?x {{ ?x wdt:P19/wdt:P17 e:Q4 . ?x wdt:P31 e:Q5 }}", ["Q4"]),
        ("SELECT ?x { ?x wdt:P31/wdt:P279* wd:Q5 . ?x wdt:P19 wd:Q2 . wd:Q2 ?p ?x }", ["Q2"]),
        ("SELECT ?x { res:Berlin dbo:mayor ?x . ?x a dbo:Person ; rdf:type res:Thing }", [RESOURCE + "Berlin"]),
        ("SELECT ?x { <" + RESOURCE + "AC/DC> dbo:genre ?x }", [RESOURCE + "AC/DC"]),
        ("SELECT ?x { ?x dbo:author dbr:J._R._R._Tolkien. FILTER(?x > 3) }", [RESOURCE + "J._R._R._Tolkien"]),
        ("SELECT ?a { ?a wdt:P31 wd:Q5 . wd:Q64 wdt:P6 ?a }", ["Q64"]),
        ("SELECT ?x { ?x wdt:P1 wd:Q5,wd:Q6 FILTER(?x = wd:Q7) }", ["Q5", "Q6", "Q7"]),
        ("SELECT (COUNT(dbr:Foo) AS ?n) { dbr:Bar_(x) dbo:a ?n }", [RESOURCE + "Foo", RESOURCE + "Bar_(x)"]),
        ("SELECT ?x { ?x dbo:a dbr:Dr._No_\\(film\\) }", [RESOURCE + "Dr._No_(film)"]),
        ("SELECT ?x { ?x dct:subject dbr:Category:Foo }", [RESOURCE + "Category:Foo"]),
        ("a-" * 200_000, []),  # at once: from every hyphen on it took hours
        ("", []),
    ],
)  # fmt: skip
def test_topics_are_what_a_query_names_but_no_classes(sparql: str, topics: list[str]) -> None:
    assert list(topics_of(sparql)) == topics


@pytest.mark.parametrize(
    "wrong", [{"answers": {}}, {"question": "who?"}, {"answers": [{"results": {"bindings": "x"}}]}]
)
def test_an_item_of_another_shape_is_a_reject(tmp_path: Path, truthy: KnowledgeGraph, wrong: dict[str, Any]) -> None:
    items = [qald("Who?", "", bindings(ITEM + "Q1")), {**qald("Where?", ""), **wrong}]
    path = write_json(tmp_path / "all.json", {"questions": items})
    (asked,), (reject,) = load_question_file(path, format="qald", graph=truthy)
    assert asked.text == "Who?" and reject.reason.startswith("field ") and json.loads(reject.text)["id"] == 6
