"""RDF in every syntax gives the same graph; what is wrong with a file is said with its line; Wikidata's truthy dump."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kgqa_core.errors import InputError
from kgqa_core.graph.closure import ClosureReport, build_from_dump
from kgqa_core.graph.dump import DumpReport, parse_dump
from kgqa_core.graph.dump_rows import DumpOptions
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.profiles import PROFILES
from tests.loading import build_rdf

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


def build(path: Path, text: str | bytes, **more: Any) -> tuple[DumpReport, ClosureReport]:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return build_rdf(path, path.parent, **more)


def triples_of(graph: KnowledgeGraph) -> set[tuple[str, str, str]]:
    rows = [row for path in graph.folder.glob("triples-*.parquet") for row in pq.read_table(path).to_pylist()]
    entities, relations = graph.entity_labels, graph.relation_labels
    entities = [re.sub(r"^(_:\w+)-[0-9a-f]{8}$", r"\1", label) for label in entities]  # without the file's checksum
    return {(entities[row["head"]], relations[row["relation"]], entities[row["tail"]]) for row in rows}


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("suffix", [*FILES, *(f"{suffix}.gz" for suffix in FILES)])
def test_every_syntax_gives_the_same_graph(tmp_path: Path, suffix: str, mark: str) -> None:
    parsed, report = build(tmp_path / f"kb.{suffix}", mark + FILES[suffix.removesuffix(".gz")])
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
    assert (report.num_triples, report.num_named, parsed.rejects) == (5, 2, {})


def test_relations_are_read_as_words(tmp_path: Path) -> None:
    more = (f"<{EX}Ada> <{EX}{relation}> <{EX}x> ." for relation in ("voc#has_URLLink", "two/bornIn", "worked", "son"))
    named = (f'<{EX}worked> <{LABEL}> "{name}" .' for name in ("knows", "worked for"))
    build(tmp_path / "kb.nt", LINES + "\n".join((*more, *named, f'<{EX}son> <{LABEL}> "child of"@en .')))
    graph = open_graph(tmp_path / "graph")
    assert dict(zip(graph.relation_labels, graph.relation_names, strict=True)) == {
        f"{EX}bornIn": f"born in ({EX}bornIn)",  # two of one name keep apart
        f"{EX}two/bornIn": f"born in ({EX}two/bornIn)",
        f"{EX}knows": f"knows ({EX}knows)",
        f"{EX}worked": f"knows ({EX}worked)",
        f"{EX}bornOn": "born on",
        f"{EX}motto": "motto",
        f"{EX}son": "child of",
        f"{EX}voc#has_URLLink": "has URL link",
    }
    assert graph.relation_text(graph.relation_names.index("child of") + graph.num_relations) == "child of (reversed)"


def test_an_iri_without_a_name_is_called_by_its_last_part(tmp_path: Path) -> None:
    called = {
        "resource/Charles_Babbage": "Charles Babbage",
        "voc#%C3%A9t%C3%A9": "été",
        "a/100%25_cotton_%FF": "100%25 cotton %FF",  # no UTF-8
        "a/%28_%29": f"{EX}a/%28_%29",  # no letter
        "1815": f"{EX}1815",
        "": EX,
        "page?id=Ada": f"{EX}page?id=Ada",
        "page/": f"{EX}page/",
    }
    build(tmp_path / "kb.nt", LINES + "\n".join(f"<{EX}Ada> <{EX}knows> <{EX}{end}> ." for end in called))
    graph = open_graph(tmp_path / "graph")
    names = dict(zip(graph.entity_labels, graph.entity_names, strict=True))
    assert {end: names[f"{EX}{end}"] for end in called} == called
    assert (names[f"{EX}Ada"], names[BIRTH]) == ("Ada Lovelace", "1815-12-10")


def test_blank_nodes_without_a_name_are_numbered_in_their_order(tmp_path: Path) -> None:
    text = f"@prefix : <{EX}> . :a :p [ :q ( 1 2 ) ] . _:x :p [] ."
    labels = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        build(tmp_path / name / "kb.ttl", text)
        labels.append(open_graph(tmp_path / name / "graph").entity_labels)
    assert labels[0] == labels[1]
    blank = [label.rpartition("-") for label in labels[0] if label.startswith("_:")]
    assert [name for name, *_ in blank] == [*(f"_:unnamed-{n}" for n in range(1, 5)), "_:x"]
    assert len({file for *_, file in blank}) == 1


def test_files_share_entities_and_no_blank_nodes_and_one_may_hold_names_alone(tmp_path: Path) -> None:
    files = {
        f"{who}.ttl": f"@prefix : <{EX}> . :{who} :marriage [ :to :{spouse} ] , _:x . _:x :to :{spouse} ."
        for who, spouse in (("Ada", "Bob"), ("Eve", "Dan"))
    }
    dumps = []
    for name, text in {**files, "labels.nt": f'<{EX}Ada> <{LABEL}> "Ada"@en-GB .\n'}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        dumps.append(tmp_path / f"dump-{name}")
        dumps[-1].mkdir()
        parse_dump(tmp_path / name, dumps[-1], journal=tmp_path / "journal", options=DumpOptions(PROFILES["rdf"]))
    build_from_dump(dumps, [], tmp_path / "graph", hops=None)
    graph = open_graph(tmp_path / "graph")
    assert graph.num_entities == 4 + 4  # each marriage is of one couple
    assert graph.label_of(graph.ids_of_name("Ada")[0]) == f"{EX}Ada"


# One line is faulty in each; the others hold.
PLANTED = {
    b"<http://a> <http://b> <http://c>": "missing final dot",
    b"<http://a> bad <http://c> .": "missing field",
    b'<http://a> <http://b> "never closed .': "unterminated literal",
    b"<http://a> <http://b> <http://c> . <http://a> <http://b> <http://c> .": "text after the final dot",
    b"<http://a> <http://b> <http://c> <http://d> <http://e> .": "missing final dot",  # no quad either
    b'<http://a> <http://b> <http://c> "graph" .': "missing final dot",
    b'<http://a> <http://b> "\xff" .': "not UTF-8",
    b"<http://a> <http://b> <<( <http://a> <http://b> <http://c> )>> .": "a triple inside a triple",
}


@pytest.mark.parametrize("block_bytes", [64, 2**20])
@pytest.mark.parametrize("suffix", ["nt", "nt.gz", "nq"])
def test_each_faulty_line_is_a_reject_with_its_number(tmp_path: Path, suffix: str, block_bytes: int) -> None:
    lines: list[bytes] = []
    expected = []
    for number, (line, reason) in enumerate(PLANTED.items()):
        named = f" <{EX}g>" if suffix == "nq" else ""
        lines += [f"<{EX}{number}> <{EX}r> <{EX}x>{named} .".encode(), b"# comment", line]
        expected.append((len(lines), reason))
    text = b"\n".join(lines) + b'\n<http://a> <http://b> "trunc'
    parsed, report = build(tmp_path / f"kb.{suffix}", text, max_reject_ratio=1.0, block_bytes=block_bytes)
    rejects = pq.read_table(tmp_path / "dump/rejects.parquet").to_pylist()
    assert [(reject["line"], reject["reason"]) for reject in rejects] == [
        *expected,
        (len(lines) + 1, "truncated last line"),
    ]
    assert (report.num_triples, parsed.lines["blank"]) == (len(PLANTED), len(PLANTED))
    assert triples_of(open_graph(tmp_path / "graph")) == {
        (f"{EX}{number}", f"{EX}r", f"{EX}x") for number in range(len(PLANTED))
    }


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
        ("kb.nt.gz", b"no gzip at all", "truncated last line"),
        ("kb.ttl.gz", WHOLE[:40] + b"\x00" * 40 + WHOLE[80:], "is (damaged|truncated)"),
        ("kb.txt", TURTLE, r"none of 6 rows can be used"),
        ("kb.nt", "# nothing\n", r"no triple is kept of 1 lines \(1 blank\). A line should look like <http"),
    ],
)
def test_a_fault_in_a_whole_file_is_an_error_with_its_place(
    tmp_path: Path, name: str, data: str | bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data.encode() if isinstance(data, str) else data)
    with pytest.raises(InputError, match=message):
        build_rdf(tmp_path / name, tmp_path)
