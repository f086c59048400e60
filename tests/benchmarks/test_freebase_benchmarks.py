"""The benchmarks on Freebase-shaped data: processes counted, arithmetic right, the loop a fair comparison."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.child import folder_bytes, run_child
from benchmarks.freebase.children import build, inflate, make_dump, make_parts, parse, read_lines
from benchmarks.freebase.expanding import expand, loop
from benchmarks.freebase.world import World
from benchmarks.freebase_dump import draw_topics

TRIPLES = 3001


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("freebase")
    made = make_parts(str(folder / "parts"), TRIPLES)
    built = build(str(folder / "parts"), str(folder / "graph"), topics=[], hops=None)
    assert 0.8 * made < built["triples"] <= made
    return folder / "graph"


def test_a_process_of_its_own_returns_and_is_counted(tmp_path: Path) -> None:
    child = run_child(make_dump, path=tmp_path / "dump.nt.gz", plain_bytes=400_000)
    assert child.result["plain_bytes"] == pytest.approx(400_000, rel=0.2)
    assert child.cpu > 0 and child.wall > 0 and child.peak > 10
    assert folder_bytes(tmp_path) >= (tmp_path / "dump.nt.gz").stat().st_size


def test_a_process_that_fails_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"benchmarks\.freebase\.children:inflate failed with 1"):
        run_child(inflate, path=tmp_path / "missing.gz")
    assert "FileNotFoundError" in capfd.readouterr().err


def test_the_oracle_and_the_parser_keep_the_same(tmp_path: Path) -> None:
    made = make_dump(str(tmp_path / "dump.nt.gz"), 400_000, malformed_share=0.005)
    assert inflate(str(tmp_path / "dump.nt.gz")) == made["plain_bytes"]
    (tmp_path / "parts").mkdir()
    parsed = parse(str(tmp_path / "dump.nt.gz"), str(tmp_path / "parts"))
    oracle = read_lines(str(tmp_path / "dump.nt.gz"))
    assert parsed["lines"] == made["lines"] and parsed["rows"]["triples"] == oracle["triples"]
    rejects = pq.read_table(tmp_path / "parts" / "rejects.parquet")["line"].to_pylist()
    assert rejects == oracle["malformed"] == made["malformed"] != []


@pytest.mark.slow
def test_the_loop_walks_what_the_compiled_walk_walks(graph: Path) -> None:
    topics = draw_topics(World(TRIPLES), 20)
    for hops in (2, 3):
        walked = expand(str(graph), topics, hops, cap=3, forward=True)
        looped = loop(str(graph), topics, hops, cap=3)
        assert {name: walked[name] for name in ("topics", "edges", "entities")} == {
            name: looped[name] for name in ("topics", "edges", "entities")
        }
        assert walked["edges"] < expand(str(graph), topics, hops, cap=3, forward=False)["edges"]
