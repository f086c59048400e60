"""RDF in every syntax gives the same graph; what is wrong with a file is said with its line."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.errors import InputError
from kgqa_core.graph.build import BuildLimits, GraphReport, build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph

EX = "http://example.org/"
LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
LINES = f"""\
# a comment
<{EX}Ada> <{EX}bornIn> <{EX}London> .
<{EX}Ada> <{EX}bornOn> "1815-12-10"^^<http://www.w3.org/2001/XMLSchema#date> .

<{EX}Ada> <{LABEL}> "Ada Lovelace"@en .
<{EX}Ada> <{LABEL}> "Ada de Lovelace"@fr .
<{EX}London> <{LABEL}> "London" .
<{EX}London> <{EX}motto> "Domine \\"dirige\\" nos\\u00e9"@la .
<{EX}Ada> <{EX}knows> _:someone .
_:someone <{EX}knows> <{EX}Ada> .
"""
TURTLE = f"""\
@prefix : <{EX}> .
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
:Ada :bornIn :London ; :bornOn "1815-12-10"^^<http://www.w3.org/2001/XMLSchema#date> ;
    rdfs:label "Ada Lovelace"@en, "Ada de Lovelace"@fr ; :knows _:someone .
:London rdfs:label "London" ; :motto "Domine \\"dirige\\" nos\\u00e9"@la .
_:someone :knows :Ada .
"""
XML = f"""\
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="{EX}"
         xmlns:rdfs="http://www.w3.org/2000/01/rdf-schema#">
  <rdf:Description rdf:about="{EX}Ada">
    <bornIn rdf:resource="{EX}London"/>
    <bornOn rdf:datatype="http://www.w3.org/2001/XMLSchema#date">1815-12-10</bornOn>
    <rdfs:label xml:lang="en">Ada Lovelace</rdfs:label><rdfs:label xml:lang="fr">Ada de Lovelace</rdfs:label>
    <knows rdf:nodeID="someone"/>
  </rdf:Description>
  <rdf:Description rdf:about="{EX}London">
    <rdfs:label>London</rdfs:label><motto xml:lang="la">Domine "dirige" nosé</motto>
  </rdf:Description>
  <rdf:Description rdf:nodeID="someone"><knows rdf:resource="{EX}Ada"/></rdf:Description>
</rdf:RDF>
"""
IN_A_GRAPH = LINES.replace(" .\n", f" <{EX}graph> .\n")
TRIG = TURTLE.replace(":Ada :bornIn", ":graph { :Ada :bornIn", 1) + "}"
BIRTH = '"1815-12-10"^^<http://www.w3.org/2001/XMLSchema#date>'
FILES = {"nt": LINES, "nq": IN_A_GRAPH, "ttl": TURTLE, "trig": TRIG, "rdf": XML}


def build(path: Path, text: str | bytes, **more: Any) -> GraphReport:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return build_graph(path, format="rdf", out_dir=path.parent / "graph", **more)


def triples_of(graph: KnowledgeGraph) -> set[tuple[str, str, str]]:
    rows = [row for path in graph.folder.glob("triples-*.parquet") for row in pq.read_table(path).to_pylist()]
    entities, relations = graph.entity_labels, graph.relation_labels
    return {(entities[row["head"]], relations[row["relation"]], entities[row["tail"]]) for row in rows}


@pytest.mark.parametrize("suffix", [*FILES, *(f"{suffix}.gz" for suffix in FILES)])
def test_every_syntax_gives_the_same_graph(tmp_path: Path, suffix: str) -> None:
    report = build(tmp_path / f"kb.{suffix}", FILES[suffix.removesuffix(".gz")])
    graph = open_graph(tmp_path / "graph")
    assert triples_of(graph) == {
        (f"{EX}Ada", f"{EX}bornIn", f"{EX}London"),
        (f"{EX}Ada", f"{EX}bornOn", BIRTH),
        (f"{EX}London", f"{EX}motto", '"Domine "dirige" nosé"@la'),
        (f"{EX}Ada", f"{EX}knows", "_:someone"),
        ("_:someone", f"{EX}knows", f"{EX}Ada"),
    }
    names = dict(zip(graph.entity_labels, graph.entity_names, strict=True))
    assert (names[f"{EX}Ada"], names[f"{EX}London"], names[BIRTH]) == ("Ada Lovelace", "London", "1815-12-10")
    assert (report.num_triples, report.num_named, report.num_rejects) == (5, 2, 0)


def test_relations_are_read_as_words(tmp_path: Path) -> None:
    build(tmp_path / "kb.nt", LINES + f"<{EX}Ada> <http://schema.org/voc#has_URLLink> <{EX}x> .\n")
    graph = open_graph(tmp_path / "graph")
    texts = {label: graph.relation_text(number) for number, label in enumerate(graph.relation_labels)}
    assert texts[f"{EX}bornIn"] == "born in"
    assert texts["http://schema.org/voc#has_URLLink"] == "has URL link"


def test_blank_nodes_without_a_name_are_numbered_in_their_order(tmp_path: Path) -> None:
    text = f"@prefix : <{EX}> . :a :p [ :q ( 1 2 ) ] . _:[7] :p :b ."
    text = text.replace("_:[7] :p :b .", "_:x :p [] .")
    labels = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        build(tmp_path / name / "kb.ttl", text)
        labels.append(open_graph(tmp_path / name / "graph").entity_labels)
    assert labels[0] == labels[1]
    assert [label for label in labels[0] if label.startswith("_:")] == ["_:[1]", "_:[2]", "_:[3]", "_:[4]", "_:x"]


# One line is faulty in each; the others hold.
PLANTED = {
    b"<http://a> <http://b> <http://c>": "not N-Triples",  # no dot
    b"<http://a> bad <http://c> .": "not N-Triples",
    b'"text" <http://b> <http://c> .': "not N-Triples",
    b'<http://a> <http://b> "never closed .': "not N-Triples",
    b"<http://a b> <http://b> <http://c> .": "not N-Triples",
    b"<a> <http://b> <http://c> .": "not N-Triples",
    b"<http://a> <http://b> <http://c> . <http://a> <http://b> <http://c> .": "not N-Triples",
    b"<http://a> <http://b>\n<http://c> .": "not N-Triples",  # two faulty lines
    b'<http://a> <http://b> "\\ud800" .': "not N-Triples",
    b'<http://a> <http://b> "\xff" .': "not UTF-8",
    b'<http://a> <http://b> "  " .': "empty field",
    b"<http://a> <http://b> <<( <http://a> <http://b> <http://c> )>> .": "a triple inside a triple",
}


@pytest.mark.parametrize("chunk_bytes", [64, 2**20])
@pytest.mark.parametrize("suffix", ["nt", "nt.gz"])
def test_each_faulty_line_is_a_reject_with_its_number(tmp_path: Path, suffix: str, chunk_bytes: int) -> None:
    lines: list[bytes] = []
    expected = []
    for number, (line, reason) in enumerate(PLANTED.items()):
        lines += [f"<{EX}{number}> <{EX}r> <{EX}x> .".encode(), b"# comment", *line.split(b"\n")]
        expected += [(len(lines) - back, reason) for back in reversed(range(line.count(b"\n") + 1))]
    text = b"\n".join(lines) + b'\n<http://a> <http://b> "trunc'
    limits = BuildLimits(chunk_bytes=chunk_bytes)
    report = build(tmp_path / f"kb.{suffix}", text, max_reject_ratio=1.0, limits=limits)
    rejects = pq.read_table(tmp_path / "graph/rejects.parquet").to_pylist()
    assert [(reject["line"], reject["reason"]) for reject in rejects] == [
        *expected,
        (len(lines) + 1, "truncated last line"),
    ]
    assert (report.num_triples, report.num_blank) == (len(PLANTED), len(PLANTED))
    assert triples_of(open_graph(tmp_path / "graph")) == {
        (f"{EX}{number}", f"{EX}r", f"{EX}x") for number in range(len(PLANTED))
    }


@settings(max_examples=10)  # each builds a graph
@given(st.lists(st.sampled_from(["good", "blank", "bad"]), min_size=1, max_size=600), st.integers(1, 9000))
def test_lines_are_counted_whatever_the_chunks(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], chunk_bytes: int
) -> None:
    text = {"good": f"<{EX}a> <{EX}r> <{EX}b> .\r\n", "blank": " \n", "bad": "nothing\n"}
    folder = tmp_path_factory.mktemp("rdf")
    limits = BuildLimits(chunk_bytes=chunk_bytes)
    written = "\ufeff" + "".join(text[kind] for kind in ["good", *kinds])
    report = build(folder / "kb.nt", written, max_reject_ratio=1.0, limits=limits)
    assert (report.num_rows, report.num_blank) == (kinds.count("good") + 1, kinds.count("blank"))
    rejects = pq.read_table(folder / "graph/rejects.parquet")["line"].to_pylist()
    assert rejects == [line for line, kind in enumerate(kinds, 2) if kind == "bad"]


WHOLE = gzip.compress((LINES * 97).encode())


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "kb.ttl",
            f"@prefix : <{EX}> .\n:a :b :c .\n:bad bad .\n",
            r"kb.ttl:3: not Turtle \('.*bad is not a valid pred",
        ),
        ("kb.trig", f"@prefix : <{EX}> .\n{{ :a :b :c .\n", r"kb.trig:\d: not TriG"),
        ("kb.rdf", "<rdf:RDF>\n<x", r"kb.rdf(:\d)?: not RDF/XML"),
        ("kb.nt.gz", WHOLE[:-9], "is truncated"),
        ("kb.ttl.gz", WHOLE[:-9], "is truncated"),
        ("kb.nt.gz", b"no gzip at all", "is damaged"),
        ("kb.ttl.gz", WHOLE[:40] + b"\x00" * 40 + WHOLE[80:], "is (damaged|truncated)"),
        ("kb.txt", LINES, r"'.txt' is none of .nt, .nq, .ttl"),
        ("kb.nt", "# nothing\n", r"holds no triple. A line should look like: <http"),
    ],
)
def test_a_fault_in_a_whole_file_is_an_error_with_its_place(
    tmp_path: Path, name: str, data: str | bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data.encode() if isinstance(data, str) else data)
    with pytest.raises(InputError, match=message):
        build_graph(tmp_path / name, format="rdf", out_dir=tmp_path / "graph")
