"""What lint says of a graph, in short."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flows.cli_lint import graph_rows
from kgqa_core import schemas
from kgqa_core.graph.diff import Hub, lint_graph
from kgqa_core.graph.kg import KnowledgeGraph

HUBS = [
    {"label": "m.0a", "relation": "r", "direction": "forward", "hop": 1, "degree": 7, "kept": 5},
    {"label": "m.0b", "relation": "r", "direction": "backward", "hop": 2, "degree": 11, "kept": 5},
]


def test_a_graph_from_a_file_has_sizes_and_relations_but_no_kinds_and_no_hubs(films: KnowledgeGraph) -> None:
    found = lint_graph(films.folder)
    assert (found.num_entities, found.num_relations, found.num_triples) == (7, 5, 7)
    assert next(iter(found.largest_relations.items())) == ("directed_by", 2)
    assert (found.kinds, found.named, found.num_hubs, found.largest_hubs) == ({}, None, 0, ())
    assert found.num_topics_missing is None


def test_a_graph_from_a_dump_tells_kinds_names_capped_hubs_and_topics_missing(films: KnowledgeGraph) -> None:
    add(films.folder, {"kinds": {"entity": 3, "cvt": 2, "foreign": 1, "literal": 1}})
    (films.folder / "closure.json").write_text(json.dumps({"num_topics_missing": 3}), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(HUBS, schema=schemas.HUBS), films.folder / "hubs.parquet")
    found = lint_graph(films.folder)
    assert (found.named, found.num_hubs, found.num_topics_missing) == (50.0, 2, 3)
    assert found.largest_hubs == (Hub(**HUBS[1]), Hub(**HUBS[0]))
    rows = {row[0]: row[1:] for row in graph_rows({**asdict(found), "num_topics": 0, "num_topics_isolated": 0})}
    assert rows["nodes without a name in any language"] == ("2", "28.57")
    assert rows["entities with a name (literals left out)"] == ("", "50.00")
    assert rows["triples of directed_by"] == ("2", "28.57")
    assert rows["topics asked for that the dump has not"] == ("3", "")
    assert rows["  of them in no triple"] == ("0", "")


def add(folder: Path, facts: dict[str, object]) -> None:
    path = folder / "graph.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | facts), encoding="utf-8")
