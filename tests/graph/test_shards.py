"""Relations that a file gives in both directions are stored once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.graph.build import BuildLimits, InverseCounts, build_graph, find_inverses
from kgqa_core.graph.kg import open_graph

CLUBS = """\
Ann	plays_in	Reds
Reds	plays_in_inverse	Ann
Reds	plays_in_inverse	Ann
Bob	plays_in	Reds
Blues	plays_in_inverse	Cid
Reds	based_in	Rome
Rome	inverse	Reds
Rome	hosts_inverse	Ann
"""


def test_an_inverse_needs_a_base_that_is_none_itself() -> None:
    labels = {"r", "r_inv", "r_inv_inv", "s_inv", "_inv", "sinv"}
    assert find_inverses(labels, "_inv") == {"r_inv": "r"}
    assert find_inverses(labels - {"r"}, "_inv") == {"r_inv_inv": "r_inv"}
    assert find_inverses(labels, None) == {}


def test_triples_of_an_inverse_are_turned_round_and_stored_once(tmp_path: Path) -> None:
    (tmp_path / "kb.tsv").write_text(CLUBS, encoding="utf-8")
    report = build_graph(tmp_path / "kb.tsv", format="tsv", out_dir=tmp_path / "g", inverse_suffix="_inverse")
    graph = open_graph(tmp_path / "g")
    assert graph.relation_labels == ["based_in", "hosts_inverse", "inverse", "plays_in"]
    assert graph.inverse_labels == [None, None, None, "plays_in_inverse"]
    (reds,), (blues,) = graph.ids_of_name("Reds"), graph.ids_of_name("Blues")
    plays_in = graph.relation_labels.index("plays_in")
    names = graph.entity_names
    assert [names[e] for e in graph.neighbors(reds, plays_in + graph.num_relations)] == ["Ann", "Bob"]
    assert [names[e] for e in graph.neighbors(blues, plays_in + graph.num_relations)] == ["Cid"]
    assert (report.num_rows, report.num_triples, report.num_duplicates) == (8, 6, 1)
    counts = InverseCounts("plays_in_inverse", num_both=1, num_only_forward=1, num_only_inverse=1)
    assert report.inverses == {"plays_in": counts}
    stored = json.loads((tmp_path / "g" / "graph.json").read_text(encoding="utf-8"))["inverses"]
    assert stored["plays_in"] == {
        "label": "plays_in_inverse", "num_both": 1, "num_only_forward": 1, "num_only_inverse": 1,
    }  # fmt: skip


def test_without_a_suffix_every_relation_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "kb.tsv").write_text(CLUBS, encoding="utf-8")
    report = build_graph(tmp_path / "kb.tsv", format="tsv", out_dir=tmp_path / "g")
    assert (report.num_relations, report.num_triples, report.inverses) == (5, 7, {})
    assert open_graph(tmp_path / "g").inverse_labels == [None] * 5


@pytest.mark.parametrize("format", ["wikimovies", "csv", "tsv"])
def test_every_format_may_give_inverses_and_no_cut_changes_a_byte(
    tmp_path: Path, format: str, contents: Callable[[Path], dict[str, bytes]]
) -> None:
    text = CLUBS.replace("\t", {"wikimovies": "|", "csv": ",", "tsv": "\t"}[format])
    (tmp_path / "kb").write_text(text, encoding="utf-8")
    for name, chunk_bytes in (("whole", 2**20), ("cut", 31)):
        limits = BuildLimits(chunk_bytes=chunk_bytes)
        build_graph(tmp_path / "kb", format=format, out_dir=tmp_path / name, inverse_suffix="_inverse", limits=limits)
    assert contents(tmp_path / "whole") == contents(tmp_path / "cut")
    assert open_graph(tmp_path / "cut").num_triples == 6


TRIPLES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["r", "s", "r~", "s~", "t~"]), st.sampled_from("abc")),
    min_size=1,
    max_size=20,
)


@settings(max_examples=30)  # each builds a graph
@given(TRIPLES)
def test_the_stored_triples_are_those_of_turning_each_row_by_hand(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "kb.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    report = build_graph(folder / "kb.tsv", format="tsv", out_dir=folder / "g", inverse_suffix="~")
    labels = {relation for _, relation, _ in rows}
    expected = {
        (tail, relation[:-1], head) if relation[-1] == "~" and relation[:-1] in labels else (head, relation, tail)
        for head, relation, tail in rows
    }
    graph = open_graph(folder / "g")
    stored = pq.read_table(folder / "g" / "triples-0000.parquet").to_pylist()
    found = [
        (graph.label_of(row["head"]), graph.relation_labels[row["relation"]], graph.label_of(row["tail"]))
        for row in stored
    ]
    assert set(found) == expected
    assert len(found) == len(expected) == report.num_triples
    assert report.num_duplicates == len(rows) - len(set(rows))
