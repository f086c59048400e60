"""From a Freebase dump of two files to scores: what is built once, what again, and what a graph of a dump knows."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kgqa_core.graph.kg import open_graph
from kgqa_core.questions.build import read_questions
from kgqa_core.run.pipeline import PROGRESS, Pipeline
from kgqa_core.tracking import read_record
from tests.conftest import Build, open_run, write_jsonl
from tests.nsm import line, write_nsm

RUN = """\
dataset:
  name: small
  source: files
  graph: {format: freebase, path: dump, hops: 1, cvt_is_hop: false, max_reject_ratio: 0.1}
  questions: {format: nsm, files: {train: train.jsonl, dev: dev.jsonl, test: test.jsonl}}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, width: 7, edge_budget: 5, epochs: 1, batch_size: 5}
"""
DUMPS = ["dump-a.nt.gz", "dump-b.nt"]
REST = ["topics", "graph", "questions"]


def iri(label: str) -> str:
    return f"<http://rdf.freebase.com/ns/{label}>"


def fact(head: str, relation: str, tail: str) -> str:
    object_ = tail if tail.startswith('"') else iri(tail)
    return f"{iri(head)}\t{iri(relation)}\t{object_}\t.\n"


def name(entity: str, text: str, language: str = "en") -> str:
    return fact(entity, "type.object.name", f'"{text}"@{language}')


# A marriage is a CVT: a node without a name, between the two who are married.
FIRST = [
    name("m.0c1", "Ann"),
    name("m.0c1", "Anna", "de"),
    fact("m.0c1", "people.person.spouse_s", "m.0f7"),
    fact("m.0c1", "common.topic.webpage", "m.0zz"),
    fact("m.0c1", "people.person.birth_date", '"1971-10-13"^^<http://www.w3.org/2001/XMLSchema#date>'),
    fact("m.0f7", "people.marriage.spouse", "m.0d2"),
]
SECOND = [
    name("m.0d2", "Bob"),
    fact("m.0d2", "people.person.place_of_birth", "m.0g9"),
    "no triple\n",
    name("m.0g9", "Ghent"),
    *(fact(f"m.0{letter}3", "people.person.place_of_birth", "m.0g9") for letter in "hjklmnpqrst"),
]


def write_dump(folder: Path, first: Iterable[str] = FIRST, second: Iterable[str] = SECOND) -> None:
    (folder / "dump").mkdir(exist_ok=True)
    (folder / "dump" / "a.nt.gz").write_bytes(gzip.compress("".join(first).encode(), mtime=0))
    (folder / "dump" / "b.nt").write_text("".join(second), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dump(tmp_path)
    for split in ("train", "dev", "test"):
        rows = [line(f"{split}{n}", f"who is the spouse of ann {n}", ["m.0c1"], ["m.0d2"], []) for n in range(3)]
        write_nsm(tmp_path / f"{split}.jsonl", [*rows, line(f"{split}-lost", "who?", ["m.0xyz"], ["m.0d2"], [])])
    return tmp_path


def run_of(folder: Path, *settings: str) -> Pipeline:
    return open_run(folder / "small.yaml", RUN, *settings)


def built(build: Build, folder: Path) -> list[str]:
    """Return which stages up to the questions were built."""
    return [key for key in build(run_of(folder)) if key in (*DUMPS, *REST)]


def test_a_run_from_a_dump_reaches_scores_and_knows_its_nodes(folder: Path, build_stages: Build) -> None:
    run = run_of(folder)
    assert built(build_stages, folder) == [*DUMPS, *REST]
    graph = open_graph(run.artifact("graph").folder)
    kinds = pq.read_table(graph.folder / "entities.parquet").to_pylist()
    assert {row["label"]: (row["name"], row["kind"]) for row in kinds} == {
        '"1971-10-13"^^<http://www.w3.org/2001/XMLSchema#date>': ("1971-10-13", "literal"),
        "m.0c1": ("Ann", "entity"),
        "m.0d2": ("Bob", "entity"),
        "m.0f7": ("m.0f7 (no name)", "cvt"),
    }  # one step, and the marriage is none
    assert graph.relation_names == ["people.marriage.spouse", "people.person.birth_date", "people.person.spouse_s"]
    topics = pq.read_table(graph.folder / "topics.parquet").to_pylist()
    assert [row["label"] for row in topics if row["entity_id"] is None] == ["m.0xyz"]
    asked = read_questions(run.artifact("questions").folder, "test")
    assert [bool(question.topics) for question in asked] == [True, True, True, False]  # asked all the same
    (reject,) = pq.read_table(run.artifact("dump-b.nt").folder / "rejects.parquet").to_pylist()
    assert (reject["file"], reject["line"]) == ("b.nt", 3)
    ceiling = read_record(run.artifact("controls").folder).metrics["ceiling.hits1"]
    assert ceiling == 75.0  # the question whose topic the dump lacks counts as wrong


@pytest.mark.slow
def test_only_what_changed_is_built_again(folder: Path, build_stages: Build) -> None:
    size = (folder / "dump" / "a.nt.gz").stat().st_size
    told: list[tuple[str, int, int]] = []
    listening = PROGRESS.set(lambda what, done, total: told.append((what, done, total)))
    try:
        assert built(build_stages, folder) == [*DUMPS, *REST]
    finally:
        PROGRESS.reset(listening)
    assert ("parsing a.nt.gz", size, size) in told  # whoever waits hears how far it is
    assert built(build_stages, folder) == []
    write_dump(folder, second=[*SECOND, fact("m.0d2", "common.topic.image", "m.0zz")])
    assert built(build_stages, folder) == ["dump-b.nt", "graph"]  # another dump, the same graph
    write_nsm(folder / "dev.jsonl", [line("new", "who married ann", ["m.0c1"], ["m.0d2"], [])])
    assert built(build_stages, folder) == ["topics", "questions"]  # other questions, the same topics
    write_dump(folder, second=[*SECOND, fact("m.0d2", "people.person.spouse_s", "m.0f7")])
    assert built(build_stages, folder) == ["dump-b.nt", "graph", "questions"]


def test_topics_may_be_names(folder: Path, build_stages: Build) -> None:
    rows = [{"question": f"who is the spouse of [Ann] {n}", "topics": ["Ann"], "answers": ["Bob"]} for n in range(5)]
    write_jsonl(folder / "own.jsonl", rows)
    run = run_of(folder, "dataset.questions={format: jsonl, path: own.jsonl}")
    build_stages(run)
    graph = open_graph(run.artifact("graph").folder)
    assert graph.num_entities == 4
    asked = read_questions(run.artifact("questions").folder)
    assert {graph.label_of(topic) for question in asked for topic in question.topics} == {"m.0c1"}
