"""kgqa subgraph: what is around a question or an entity, printed and exported."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows.cli_subgraph import shown
from kgqa_core import schemas
from kgqa_core.run.ensure import ensure
from tests.conftest import kgqa, open_run
from tests.nsm import line, write_nsm

RUN = """\
dataset:
  name: nsm
  source: files
  graph: {format: nsm}
  questions: {format: nsm, files: {train: train.jsonl}}
  subgraphs: question
encoder: {kind: hash, dim: 31}
explorer: {steps: 1, width: 7, edge_budget: 5, epochs: 1}
"""
TUPLES = {
    "q1": [["m.soup", "made of", "m.water"], ["m.0nn", "eats", "m.soup"]],
    "q2": [["m.0nn", "likes", f"m.thing{number}"] for number in range(3)],
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two questions about the same person, each with a subgraph of its own."""
    folder = tmp_path_factory.mktemp("nsm")
    rows = [line(name, "what", ["m.0nn"], [tuples[0][2]], tuples) for name, tuples in TUPLES.items()]
    write_nsm(folder / "train.jsonl", rows)
    ensure(open_run(folder / "nsm.yaml", RUN), ["questions"])
    return folder / "nsm.yaml"


@pytest.fixture
def conf(built: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KGQA_HOME", str(built.parent / "home"))
    return built


def triples(*arguments: object) -> list[list[str]]:
    """Return what is printed as TSV, without the names."""
    done = kgqa("subgraph", *arguments, "--format", "tsv")
    assert done.exit_code == 0, done.stderr
    header, *rows = [row.split("\t") for row in done.stdout.splitlines()]
    assert header == schemas.NEIGHBOURHOOD.names
    return [[row[0], row[2], row[3]] for row in rows]


def test_a_question_shows_its_own_subgraph_nearest_first_and_with_hops_the_graph_is_walked(conf: Path) -> None:
    assert triples(conf, "--question", "q1") == TUPLES["q1"][::-1]
    assert triples(conf, "--question", "q2") == TUPLES["q2"]
    everything = [*TUPLES["q2"], *TUPLES["q1"]]
    assert sorted(triples(conf, "--question", "q1", "--hops", 2)) == sorted(everything)
    assert triples(conf, "--topic", "m.water", "--hops", 1) == [["m.soup", "made of", "m.water"]]
    assert triples(conf, "--topic", "m.0nn", "--hops", 1, "--cap", 1) == [TUPLES["q1"][1], TUPLES["q2"][0]]
    assert triples(conf, "--topic", "m.0nn", "--hops", 0) == []


def test_a_table_is_cut_and_says_so(conf: Path) -> None:
    done = kgqa("subgraph", conf, "--topic", "m.0nn", "--hops", 1, "--cap", 2, "--limit", 2)
    assert "3 triples of 4 entities around m.0nn (no name)" in done.stdout
    assert "… and 1 more: --limit N" in done.stdout
    assert "1 groups have more triples than are walked" in done.stdout


def test_files_hold_all_of_it(conf: Path, tmp_path: Path) -> None:
    for format, name in (("parquet", "out.parquet"), ("jsonl", "out.jsonl")):
        done = kgqa("subgraph", conf, "--question", "q2", "--format", format, "--out", tmp_path / name)
        assert done.exit_code == 0, done.stderr
        assert done.stdout == ""
        assert "3 triples in" in done.stderr
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.equals(schemas.NEIGHBOURHOOD)
    assert [json.loads(row) for row in (tmp_path / "out.jsonl").read_text().splitlines()] == table.to_pylist()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--question", "q3"], 4, "there is no question 'q3' in this run. The nearest ids: 'q2', 'q1'"),
        (["--topic", "m.0nne"], 4, "'m.0nne' is no entity of the graph"),
        ([], 2, "give either --question ID or --topic NAME"),
        (["--topic", "m.0nn", "--question", "q1"], 2, "give either --question ID or --topic NAME"),
        (["--topic", "m.0nn", "--format", "parquet"], 2, "give --out FILE"),
        (["--topic", "m.0nn", "--format", "tsv", "--out", "nowhere/x.tsv"], 3, "there is no folder"),
        (["--topic", "m.0nn", "--format", "xml"], 2, "xml"),
        (["--topic", "m.0nn", "--set", "runtime.home=nowhere"], 5, "is not done"),
    ],
)
def test_mistakes_are_told_with_an_exit_code(conf: Path, arguments: list[str], code: int, message: str) -> None:
    done = kgqa("subgraph", conf, *arguments)
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr


def test_an_entity_without_a_name_is_shown_as_such() -> None:
    assert shown("m.0bcd", "Blue Harbour") == "Blue Harbour (m.0bcd)"
    assert shown("m.0bcd", "m.0bcd (no name)") == shown("m.0bcd", "m.0bcd") == "m.0bcd (no name)"
    assert (shown("Blue Harbour", "Blue Harbour"), shown("1958", "1958")) == ("Blue Harbour", "1958")
