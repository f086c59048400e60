"""Entities by name: as it is written, whatever its case, by alias."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import open_graph
from kgqa_core.graph.search_graph import SearchGraph


def test_aliases_are_names_of_last_resort(tmp_path: Path) -> None:
    (tmp_path / "triples.tsv").write_text("Ash\tby\tDan Oak\nBirch\tby\tDan Oak\n", encoding="utf-8")
    build_graph(tmp_path / "triples.tsv", format="tsv", out_dir=tmp_path / "graph")
    ash, birch, dan = range(3)
    rows = [(dan, "Big Ö"), (birch, "Ash"), (birch, "White Tree"), (ash, "white tree"), (ash, "White tree")]
    table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=["entity_id", "alias"])
    pq.write_table(table.cast(schemas.ALIASES), tmp_path / "graph" / "aliases.parquet")
    graph = open_graph(tmp_path / "graph")
    walk = SearchGraph(graph, graph, None, 3, False)

    def named(name: str, any_case: bool) -> list[int]:
        return walk.entities_named("q", name, any_case=any_case).tolist()

    assert named("Dan Oak", False) == named("DAN OAK", True) == [dan]
    assert named("dan oak", False) == named("White Tree", False) == []
    assert named("big ö", True) == [dan]
    assert named("white tree", True) == [ash, birch]
    assert named("ash", True) == [ash]  # somebody's name: its alias does not count
    assert named("nobody", True) == []


def test_a_graph_without_aliases_has_none(tmp_path: Path) -> None:
    (tmp_path / "triples.tsv").write_text("Ash\tby\tDan Oak\n", encoding="utf-8")
    build_graph(tmp_path / "triples.tsv", format="tsv", out_dir=tmp_path / "graph")
    assert open_graph(tmp_path / "graph").ids_of_alias("Ash") == ()
