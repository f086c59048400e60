"""Made-up Freebase dumps: the same every time, in the dump's form, and what is planted lies where it is said to."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks import freebase_dump
from benchmarks.freebase import facts
from benchmarks.freebase.children import parse
from benchmarks.freebase.parts import write_parts
from benchmarks.freebase.world import World
from benchmarks.freebase_dump import (
    BYTES_PER_TRIPLE,
    MALFORMED,
    ODD,
    Dump,
    draw_topics,
    planted_path,
    write_dump,
    write_questions,
)

PLAIN_BYTES, TRIPLES = 3_000_000, 3_000_000 // BYTES_PER_TRIPLE
IRI = rb"<[^\x00-\x20<>\"{}|^`\\]*>"
LITERAL = rb'"(?:[^\x22\x5c\n\r]|\\[tbnrf"\'\\]|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8})*"'
TERM = IRI + rb"|" + LITERAL + rb"(?:\^\^" + IRI + rb"|@[A-Za-z]+(?:-[A-Za-z0-9]+)*)?"
OWN_FORM = re.compile(rb"(" + IRI + rb")\t(" + IRI + rb")\t(" + TERM + rb")\t\.")
PLANTED = {*MALFORMED.values(), *ODD.values()}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Dump:
    path = tmp_path_factory.mktemp("dump") / "freebase.nt.gz"
    return write_dump(path, plain_bytes=PLAIN_BYTES, seed=7, malformed_share=0.005, odd_share=0.002)


@pytest.fixture(scope="module")
def lines(dump: Dump) -> list[bytes]:
    return gzip.decompress(dump.path.read_bytes()).split(b"\n")[:-1]


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(name: str, seed: int) -> bytes:
        write_dump(tmp_path / name, plain_bytes=500_000, seed=seed, malformed_share=0.001)
        return (tmp_path / name).read_bytes() + planted_path(tmp_path / name).read_bytes()

    assert written("first.nt.gz", 3) == written("again.nt.gz", 3) != written("other.nt.gz", 5)
    assert gzip.decompress((tmp_path / "first.nt.gz").read_bytes()) in written("plain.nt", 3)


def test_planted_lines_lie_where_they_are_said_to(dump: Dump, lines: list[bytes]) -> None:
    assert dump.lines == len(lines)
    assert dump.plain_bytes == sum(len(line) + 1 for line in lines) == pytest.approx(PLAIN_BYTES, rel=0.1)
    assert dump.plain_bytes / dump.lines == pytest.approx(130, rel=0.1)
    assert len(dump.malformed) / dump.lines == pytest.approx(0.005, rel=0.4)
    assert len(dump.odd) / dump.lines == pytest.approx(0.002, rel=0.4)
    assert {one.kind for one in dump.malformed} == set(MALFORMED) and {one.kind for one in dump.odd} == set(ODD)
    listed = json.loads(planted_path(dump.path).read_text(encoding="utf-8"))
    assert [one["line"] for one in listed["malformed"]] == sorted(one.line for one in dump.malformed)
    for one in (*dump.malformed, *dump.odd):
        assert lines[one.line - 1] == {**MALFORMED, **ODD}[one.kind], one


def test_every_line_that_is_not_planted_has_the_dumps_own_form(dump: Dump, lines: list[bytes]) -> None:
    planted = {one.line for one in (*dump.malformed, *dump.odd)}
    for number, line in enumerate(lines, 1):
        assert number in planted or (OWN_FORM.fullmatch(line) and line.decode()), line


def test_the_parser_takes_every_odd_line_and_no_malformed_one(dump: Dump, tmp_path: Path) -> None:
    parse(str(dump.path), str(tmp_path))
    rejects = pq.read_table(tmp_path / "rejects.parquet")["line"].to_pylist()
    assert rejects == sorted(one.line for one in dump.malformed)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--malformed", "2"], "between 0 and 1"),
        (["--odd", "nan"], "between 0 and 1"),
        (["--gigabytes", "nan"], "--gigabytes"),
        (["--questions", "QUESTIONS", "--topics", "100000"], "--topics"),
    ],
)
def test_a_dump_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    words = [str(tmp_path / word) if word == "QUESTIONS" else word for word in given]
    monkeypatch.setattr(sys, "argv", ["freebase_dump", str(tmp_path / "dump.nt.gz"), "--gigabytes", "0.0001", *words])
    with pytest.raises(SystemExit) as ended:
        freebase_dump.main()
    assert ended.value.code == 2 and said in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_relations_and_entities_are_skewed() -> None:
    world = World(50_000, seed=1)
    tails = np.concatenate([facts.draw_triples(world, block).tail for block in facts.blocks(world)])
    degree = np.sort(np.bincount(tails[tails >= 0], minlength=world.num_nodes))
    assert degree[-1] > 100 * degree.mean() and np.median(degree) < degree.mean()
    assert len(World(10_000_000).schema.relations) > 4000


def test_a_cvt_node_hangs_on_its_owner_and_leads_back() -> None:
    world = World(20_000, seed=2)
    triples = [(block, facts.draw_triples(world, block)) for block in facts.blocks(world)]
    heads = np.concatenate([block.start + part.place for block, part in triples])
    tails = np.concatenate([part.tail for _, part in triples])
    cvt = np.arange(world.num_cvt)
    nodes, owners = world.number_of(world.num_entities + cvt), world.number_of(world.owner_of(cvt))
    pairs = set(zip(heads.tolist(), tails.tolist(), strict=True))
    assert all((owner, node) in pairs and (node, owner) in pairs for node, owner in zip(nodes, owners, strict=True))
    links = np.bincount(heads, minlength=world.num_nodes)[nodes]
    assert links.min() >= 2 and links.max() <= 8


def test_the_mixture_is_that_of_freebase(lines: list[bytes]) -> None:
    legal = [found.groups() for line in lines if line not in PLANTED and (found := OWN_FORM.fullmatch(line))]
    relations = Counter(relation for _, relation, _ in legal)
    noise = re.compile(rb".*(/ns/(common|type|freebase)\.|/key/|w3\.org)")
    share = sum(count for relation, count in relations.items() if noise.match(relation)) / len(legal)
    assert 0.55 < share < 0.75
    names = [tail for _, relation, tail in legal if relation.endswith(b"type.object.name>")]
    assert len({tail.rpartition(b"@")[2] for tail in names}) == 11
    subjects = [subject.rpartition(b"/")[2].rstrip(b">") for subject, _, _ in legal]
    assert subjects == sorted(subjects)


def test_parts_hold_the_triples_names_and_types_of_the_text(lines: list[bytes], tmp_path: Path) -> None:
    total = write_parts(tmp_path, TRIPLES, seed=7)
    use = {row["label"]: row["use"] for row in pq.read_table(tmp_path / "relations.parquet").to_pylist()}
    found = Counter(tuple(row.values()) for row in read_parts(tmp_path, "triples"))
    assert total == found.total()
    parsed = [plain(*read.groups()) for line in lines if line not in PLANTED and (read := OWN_FORM.fullmatch(line))]
    assert found == Counter(row for row in parsed if use.get(row[1]) == "triple" and row[1] != "type.property.schema")
    types = Counter((row["entity"], row["type"]) for row in read_parts(tmp_path, "types"))
    assert types == Counter((head, tail) for head, relation, tail in parsed if relation == "type.object.type")
    english = Counter((row["entity"], row["name"]) for row in read_parts(tmp_path, "names") if row["kind"] == 0)
    quoted = [OWN_FORM.fullmatch(line) for line in lines if b"type.object.name>" in line and line.endswith(b'"@en\t.')]
    assert english == Counter(
        (row[0], row[2].rpartition('"')[0][1:]) for row in (plain(*read.groups()) for read in quoted if read)
    )


def test_parts_are_cut_between_blocks_and_sorted_by_subject(tmp_path: Path) -> None:
    write_parts(tmp_path, 100_000, part_nodes=8192)
    parts = [pq.read_table(path)["head"].to_pylist() for path in sorted(tmp_path.glob("triples-*.parquet"))]
    assert len(parts) == 2 and max(parts[0]) < min(parts[1])
    assert all(part == sorted(part) for part in parts)


def test_topics_are_hubs_and_others_and_their_answers_lie_next_to_them(tmp_path: Path) -> None:
    world = World(20_000, seed=4)
    topics = draw_topics(world, 50)
    assert topics == draw_topics(world, 50) and len(set(topics)) == 50
    write_questions(tmp_path / "questions.jsonl", world, topics)
    questions = [json.loads(line) for line in (tmp_path / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [question["topics"] for question in questions] == [[topic] for topic in topics]
    assert all(question["answers"] and re.match(r"[mg]\.\w+", question["answers"][0]) for question in questions)


def read_parts(folder: Path, kind: str) -> list[dict[str, object]]:
    return [row for path in sorted(folder.glob(f"{kind}-*.parquet")) for row in pq.read_table(path).to_pylist()]


def plain(head: bytes, relation: bytes, tail: bytes) -> tuple[str, str, str]:
    """Return labels, in the slowest way there is."""
    return iri_label(head), iri_label(relation), iri_label(tail) if tail.startswith(b"<") else literal_label(tail)


def iri_label(term: bytes) -> str:
    return term.decode()[1:-1].removeprefix("http://rdf.freebase.com/ns/")


def literal_label(term: bytes) -> str:
    end = term.rindex(b'"') + 1
    return f'"{json.loads(term[:end])}"{term[end:].decode()}'
