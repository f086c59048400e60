"""What a node is: an IRI, a blank node, or a literal with its datatype and language, told apart in every format."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.answers import match_answers
from kgqa_core.questions.link import ids_of
from tests.loading import build_rdf

NS, XSD = "http://rdf.freebase.com/ns/", "http://www.w3.org/2001/XMLSchema#"
ENDS = (
    f"<{NS}m.0c2>",
    '"m.0c2"',
    '"http://x.org/a"',
    "<http://x.org/a>",
    f'"1971-10-13"^^<{XSD}date>',
    '"1971-10-13"',
    f'"1971-10-13"^^<{XSD}string>',  # the one before, once more
    '"Caf\\u00e9"@EN',
    '"Café"@en',  # the one before, once more
    '"Café"',
    r'"say \"yes\"@en"',
    "_:b",
)
LINES = "".join(f"<{NS}m.0a1> <{NS}a.b.c> {end} .\n" for end in ENDS)
LINES += f'<{NS}m.0a1> <{NS}type.object.name> "Ann"@en .\n'
LITERALS = {  # label -> name, datatype, language
    '"m.0c2"': ("m.0c2", None, None),
    '"http://x.org/a"': ("http://x.org/a", None, None),
    f'"1971-10-13"^^<{XSD}date>': ("1971-10-13", f"{XSD}date", None),
    '"1971-10-13"': ("1971-10-13", None, None),
    '"Café"@en': ("Café", None, "en"),
    '"Café"': ("Café", None, None),
    '"say "yes"@en"': ('say "yes"@en', None, None),
}
IN_DUMP = {"m.0a1": "entity", "m.0c2": "cvt", "http://x.org/a": "iri", "_:b": "blank"}
IN_RDF = {f"{NS}m.0a1": "entity", f"{NS}m.0c2": "iri", "http://x.org/a": "iri", "_:b": "blank"}
IN_TTL = {**IN_RDF, f"_:b-{zlib.crc32(b'kb.ttl'):08x}": IN_RDF["_:b"]}  # a blank node belongs to its file
del IN_TTL["_:b"]


def graph_of(form: str, folder: Path, lines: str = LINES) -> KnowledgeGraph:
    """Build the lines as a dump of Freebase, as RDF of that suffix, or as they are."""
    text = lines if form in ("freebase", "tsv") else lines.replace(f"{NS}type.object.name", LABEL)
    (folder / f"kb.{form}").write_text(text, encoding="utf-8")
    if form == "tsv":
        build_graph(folder / "kb.tsv", format="tsv", out_dir=folder / "graph")
    else:
        build_rdf(folder / f"kb.{form}", folder, format="freebase" if form == "freebase" else "rdf")
    return open_graph(folder / "graph")


LABEL = "http://www.w3.org/2000/01/rdf-schema#label"


def rows_of(graph: KnowledgeGraph) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in pq.read_table(graph.folder / "entities.parquet").to_pylist()}


@pytest.mark.parametrize(("form", "others"), [("freebase", IN_DUMP), ("nt", IN_RDF), ("ttl", IN_TTL), ("nq", IN_RDF)])
def test_literals_iris_and_blank_nodes_are_apart(tmp_path: Path, form: str, others: dict[str, str]) -> None:
    graph = graph_of(form, tmp_path)
    rows = rows_of(graph)
    literals = {label: row for label, row in rows.items() if row["kind"] == "literal"}
    told = {label: (row["name"], row["datatype"], row["language"]) for label, row in literals.items()}
    assert told == LITERALS
    assert {label: row["kind"] for label, row in rows.items() if label not in literals} == others
    assert not any(rows[label]["datatype"] or rows[label]["language"] for label in others)
    assert graph.num_triples == len(ENDS) - 2
    dates = {graph.ids_of_label(label) for label in LITERALS if "1971" in label}
    assert set(ids_of("1971-10-13", graph)) == dates  # a gold that names a literal: both of that text
    assert ids_of(f'"1971-10-13"^^<{XSD}date>', graph) == (rows[f'"1971-10-13"^^<{XSD}date>']["entity_id"],)
    assert ids_of("http://x.org/a", graph) == (rows["http://x.org/a"]["entity_id"],)  # a label comes first
    assert ids_of("Ann", graph) == (rows[next(iter(others))]["entity_id"],)


def test_other_formats_do_not_tell_what_is_a_literal(tmp_path: Path) -> None:
    graph = graph_of("tsv", tmp_path, 'Ada\tborn_on\t1815-12-10\nAda\tsaid\t"yes"@en\n')
    assert {
        label: (row["name"], row["kind"], row["datatype"], row["language"]) for label, row in rows_of(graph).items()
    } == {label: (label, None, None, None) for label in ('"yes"@en', "1815-12-10", "Ada")}


def test_a_literal_comes_before_what_is_called_like_it(tmp_path: Path) -> None:
    named = f'<{NS}m.0a1> <{NS}book.year> "1984" .\n<{NS}m.0f1> <{NS}type.object.name> "1984"@en .\n'
    graph = graph_of("freebase", tmp_path, f"{named}<{NS}m.0a1> <{NS}book.title> <{NS}m.0f1> .\n")
    assert ids_of("1984", graph) == (graph.ids_of_label('"1984"'),)
    assert ids_of("m.0f1", graph) == (graph.ids_of_label("m.0f1"),)


def test_a_topic_is_what_is_called_so_before_it_is_a_literal(tmp_path: Path) -> None:
    london, name = "<http://x.org/London>", "http://xmlns.com/foaf/0.1/name"
    graph = graph_of("nt", tmp_path, f'{london} <{LABEL}> "London"@en .\n{london} <{name}> "London" .\n')
    (city,), (text,) = ids_of("London", graph, topic=True), ids_of("London", graph)
    assert (graph.label_of(city), graph.label_of(text)) == ("http://x.org/London", '"London"')
    search = SearchGraph(graph, graph, None, 1, False)
    assert match_answers(["London"], {}, search).entities == (city,)  # nor does a model mean the text
