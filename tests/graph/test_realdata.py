"""The whole WikiMovies graph of MetaQA, where it is at hand (environment variable KGQA_DATA)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import open_graph

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif("KGQA_DATA" not in os.environ, reason="KGQA_DATA names no folder with metaqa/kb.txt"),
]


def test_wikimovies_is_read_whole(tmp_path: Path) -> None:
    path = Path(os.environ["KGQA_DATA"]) / "metaqa" / "kb.txt"
    report = build_graph(path, format="wikimovies", out_dir=tmp_path)
    assert (report.num_triples, report.num_entities, report.num_relations) == (133_582, 43_234, 9)
    assert (report.num_duplicates, report.num_rejects) == (0, 0)
    graph = open_graph(tmp_path)
    assert len(graph.edge_tail) == 2 * 133_582
    assert report.triples_per_relation["starred_actors"] == 33_718
