"""Wikidata's truthy dump in small, against pyoxigraph and a few lines of plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyoxigraph as ox
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.graph.closure import build_from_dump
from kgqa_core.graph.closure_walk import labels_named
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from tests.loading import build_rdf

WD, WDT = "http://www.wikidata.org/entity/", "http://www.wikidata.org/prop/direct/"
W3, XSD = "http://www.w3.org/", "http://www.w3.org/2001/XMLSchema#"
LABEL, ALIAS = f"{W3}2000/01/rdf-schema#label", f"{W3}2004/02/skos/core#altLabel"
LANGUAGES = ("en", "mul", "en-gb", "en-ca")  # of names, best first


def entity(label: str, names: dict[str, str], aliases: dict[str, str], facts: list[tuple[str, str]]) -> list[str]:
    """Return the lines of an item or a property: of its page, its words three times over, its statements."""
    page, node = f"<https://www.wikidata.org/wiki/Special:EntityData/{label}>", f"<{WD}{label}>"
    said = [
        f"{page} <http://schema.org/about> {node} .",
        f'{page} <http://schema.org/version> "1834"^^<{XSD}integer> .',
        f"{node} <{W3}1999/02/22-rdf-syntax-ns#type> <http://wikiba.se/ontology#Item> .",
    ]
    for language, name in names.items():
        spelled = name.encode("ascii", "backslashreplace").decode().replace(r"\x", r"\u00")
        same = (LABEL, f"{W3}2004/02/skos/core#prefLabel", "http://schema.org/name")
        said += [f'{node} <{relation}> "{spelled}"@{language} .' for relation in same]
        said.append(f'{node} <http://schema.org/description> "what it is"@{language} .')
    said += [f'{node} <{ALIAS}> "{name}"@{language} .' for language, name in aliases.items()]
    return said + [f"{node} <{WDT}{relation}> {end} ." for relation, end in facts]


MOON = entity(
    "Q1",
    {"de": "Ada Mond", "en-gb": "Ada Moon of Amber", "en": "Ada Moon", "en-ca": "Ada M."},
    {"en": "A. Moon", "fr": "Mlle Lune"},
    [
        ("P31", f"<{WD}Q5>"),
        ("P19", f"<{WD}Q2>"),
        ("P569", f'"1815-12-10T00:00:00Z"^^<{XSD}dateTime>'),
        ("P214", '"27063124"'),  # an external id
        ("P1559", '"Ada Mond"@de'),  # a native name
        ("P1559", '"Ada Moon"@en-GB'),
        ("P22", "_:0a1b2c3d4e5f60718293a4b5c6d7e8f9"),  # somebody unknown
        ("P18", "<http://commons.wikimedia.org/wiki/Special:FilePath/Ada%20Moon.jpg>"),
    ],
)
AMBER = entity(
    "Q2",
    {"mul": "Port Amber", "en-gb": "Amber", "ru": "Порт"},
    {},
    [
        ("P17", f"<{WD}Q4>"),
        ("P1082", f'"+118255"^^<{XSD}decimal>'),
        ("P625", '"Point(4.35 50.85)"^^<http://www.opengis.net/ont/geosparql#wktLiteral>'),
    ],
)
OTHERS = [
    entity("Q4", {"de": "Freiland"}, {}, []),  # no name here
    entity("Q5", {"en": "human"}, {"en-ca": "person"}, []),
    entity("P31", {"en": "instance of", "de": "ist ein(e)"}, {"en": "is a"}, []),
    entity("P19", {"en": "place of birth"}, {}, []),
    entity("P569", {"en-gb": "date of birth"}, {}, []),
    entity("P1559", {"en": "place of birth"}, {}, []),  # as another is called
]
ONTOLOGY = [
    "<http://wikiba.se/ontology#Dump> <http://creativecommons.org/ns#license> <http://creativecommons.org/zero/1.0/> .",
    f"<{WD}P31> <http://wikiba.se/ontology#directClaim> <{WDT}P31> .",
    f"<{WD}P31> <http://wikiba.se/ontology#propertyType> <http://wikiba.se/ontology#WikibaseItem> .",
    f"<{WDT}P31> <{W3}1999/02/22-rdf-syntax-ns#type> <{W3}2002/07/owl#ObjectProperty> .",
    f"<{WD}Q1> <{W3}1999/02/22-rdf-syntax-ns#type> <http://www.wikidata.org/prop/novalue/P40> .",
    f"_:a1 <{W3}2002/07/owl#onProperty> <{WDT}P31> .",
]
LINES = [*ONTOLOGY, *MOON, *AMBER, *(line for lines in OTHERS for line in lines)]
ALWAYS = f"<{WD}Q8> <{WDT}P17> <{WD}Q4> ."  # a graph without a triple is an error


def short(term: Any) -> str:
    """Return the label of a term of pyoxigraph."""
    if isinstance(term, ox.Literal):
        kind = f"@{term.language}" if term.language else f"^^<{term.datatype.value}>"
        return f'"{term.value}"' + ("" if kind == f"^^<{XSD}string>" else kind)
    if isinstance(term, ox.BlankNode):
        return str(term)
    return str(term.value).removeprefix(WDT).removeprefix(WD)


def read_plainly(lines: list[str]) -> dict[str, Any]:
    """Return what should be kept of some lines, one triple at a time."""
    triples, aliases, given = set(), set(), dict[str, dict[str, set[str]]]()
    for quad in ox.parse("\n".join(lines).encode(), format=ox.RdfFormat.N_TRIPLES):
        head, relation, tail = short(quad.subject), quad.predicate.value, quad.object
        language = getattr(tail, "language", None)
        if relation == LABEL:
            given.setdefault(head, {}).setdefault(language, set()).add(tail.value)
        elif relation == ALIAS and language in LANGUAGES:
            aliases.add((head, tail.value))
        elif relation.startswith(WDT) and (language is None or language in LANGUAGES):
            triples.add((head, short(quad.predicate), short(tail)))
    best = {node: min(names[next(one for one in LANGUAGES if one in names)])
            for node, names in given.items() if set(names) & {*LANGUAGES}}  # fmt: skip
    nodes = {node for head, _, tail in triples for node in (head, tail)}
    names = {node: best.get(node, node) for node in nodes if not node.startswith('"')}
    called = {relation: best.get(relation, relation) for _, relation, _ in triples}
    twice = [name for name in called.values() if list(called.values()).count(name) > 1]
    called = {relation: f"{name} ({relation})" if name in twice else name for relation, name in called.items()}
    found = {(node, alias) for node, alias in aliases if node in nodes}
    return {"triples": triples, "names": names, "aliases": found, "relations": called}


def read_graph(graph: KnowledgeGraph) -> dict[str, Any]:
    """Return the same of a graph."""
    files = {name: sorted(graph.folder.glob(f"{name}*.parquet")) for name in ("triples", "entities", "aliases")}
    rows = {name: [row for path in paths for row in pq.read_table(path).to_pylist()] for name, paths in files.items()}
    labels, relations = graph.entity_labels, graph.relation_labels
    return {
        "triples": {(labels[one["head"]], relations[one["relation"]], labels[one["tail"]]) for one in rows["triples"]},
        "names": {one["label"]: one["name"] for one in rows["entities"] if one["kind"] != "literal"},
        "aliases": {(labels[one["entity_id"]], one["alias"]) for one in rows["aliases"]},
        "relations": dict(zip(relations, graph.relation_names, strict=True)),
    }


def build(folder: Path, lines: list[str], **more: Any) -> KnowledgeGraph:
    (folder / "truthy.nt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    build_rdf(folder / "truthy.nt", folder, format="wikidata", **more)
    return open_graph(folder / "graph")


def test_names_are_read_and_properties_name_the_relations(tmp_path: Path) -> None:
    graph = build(tmp_path, LINES)
    assert read_graph(graph) == read_plainly(LINES)
    kinds = {row["label"]: row["kind"] for row in pq.read_table(graph.folder / "entities.parquet").to_pylist()}
    assert {label: graph.name_of(graph.ids_of_label(label) or 0) for label in ("Q1", "Q2", "Q4", "Q5")} == {
        "Q1": "Ada Moon",
        "Q2": "Port Amber",  # the name of all languages, since there is none in English
        "Q4": "Q4",
        "Q5": "human",
    }
    assert (kinds["Q1"], kinds["Q4"], kinds['"27063124"']) == ("entity", "foreign", "literal")
    assert {"instance of", "place of birth (P19)", "place of birth (P1559)", "date of birth", "P17"} <= {
        *graph.relation_names
    }
    assert len([label for label in kinds if label.startswith("http")]) == 1  # the image
    assert pq.read_table(graph.folder / "types.parquet")["type"].to_pylist() == ["Q5"]


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=60), st.integers(200, 3000))
def test_any_lines_in_any_order_are_read_as_by_another_parser(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], block_bytes: int
) -> None:
    graph = build(tmp_path_factory.mktemp("truthy"), [*lines, ALWAYS], block_bytes=block_bytes)
    assert read_graph(graph) == read_plainly([*lines, ALWAYS])


def test_steps_from_topics_that_are_given_by_label_or_by_name(tmp_path: Path) -> None:
    build(tmp_path, LINES)
    dump = tmp_path / "dump"
    found = labels_named(["Q2", "Ada Moon"], [dump], memory_limit="1GB", temp_directory=tmp_path)
    assert found == {"Ada Moon": ["Q1"]}  # a label of Wikidata is looked up nowhere
    report = build_from_dump([dump], ["Q2"], tmp_path / "near", hops=1, hub_cap=1, names_relations=True)
    near = open_graph(tmp_path / "near")
    assert {*near.relation_names} == {"P1082", "P17", "P625", "place of birth"} and report.num_triples == 4
