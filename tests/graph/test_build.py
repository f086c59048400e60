"""Building a graph artifact: what is in it, that it never differs, and every way in which a file can be unusable."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core import schemas
from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.graph.build import BuildLimits, GraphReport, build_graph, connect, find_inverses
from kgqa_core.graph.kg import KnowledgeGraph, open_graph

Contents = Callable[[Path], dict[str, bytes]]
Triple = tuple[str, str, str]
SEPARATORS = {"wikimovies": "|", "tsv": "\t", "csv": ","}


def many_triples(count: int) -> list[Triple]:
    """Triples over 31 entities and 5 relations, some of them repeated."""
    numbers = np.random.default_rng(11).integers(0, [31, 5, 31], size=(count, 3))
    return [(f"e{head}", f"r{relation}", f"é {tail}") for head, relation, tail in numbers]


def build(
    out: Path, triples: Iterable[Triple], format: str = "tsv", more: bytes = b"", **options: Any
) -> tuple[KnowledgeGraph, GraphReport]:
    """Write a file of triples beside ``out``, build its graph there and open it."""
    path = out.parent / f"kb.{format}"
    path.write_bytes("".join(SEPARATORS[format].join(triple) + "\n" for triple in triples).encode() + more)
    report = build_graph(path, format=format, out_dir=out, **options)
    return open_graph(out), report


def stored(graph: KnowledgeGraph) -> list[Triple]:
    """The triples at rest, by label."""
    rows = [row for path in sorted(graph.folder.glob("triples-*")) for row in pq.read_table(path).to_pylist()]
    entities, relations = graph.entity_labels, graph.relation_names
    return [(entities[row["head"]], relations[row["relation"]], entities[row["tail"]]) for row in rows]


def test_ids_follow_the_sorted_labels_and_repeats_are_counted(tmp_path: Path) -> None:
    triples = [("b", "s", "a"), ("é", "r", "B"), ("b", "s", "a"), ("b", "r", "a")]
    graph, report = build(tmp_path / "g", triples)
    assert graph.entity_labels == graph.entity_names == ["B", "a", "b", "é"]  # byte order
    assert graph.relation_names == ["r", "s"]
    table = pq.read_table(tmp_path / "g" / "triples-0000.parquet")
    assert table.schema == schemas.TRIPLES
    assert [tuple(row.values()) for row in table.to_pylist()] == [(2, 0, 1), (2, 1, 1), (3, 0, 0)]
    assert (report.num_entities, report.num_relations, report.num_triples, report.num_duplicates) == (4, 2, 3, 1)
    assert report.triples_per_relation == {"r": 2, "s": 1}
    assert json.loads((tmp_path / "g" / "graph.json").read_text(encoding="utf-8"))["num_duplicates"] == 1
    for name in ("entities", "relations", "rejects"):
        assert pq.read_schema(graph.folder / f"{name}.parquet") == getattr(schemas, name.upper())


def test_neither_cuts_nor_formats_nor_what_a_killed_build_left_change_a_byte(
    tmp_path: Path, contents: Contents
) -> None:
    triples = many_triples(499)
    (tmp_path / "cut" / "parts").mkdir(parents=True)
    (tmp_path / "cut" / "parts" / "head-000000.parquet").write_bytes(b"half")
    (tmp_path / "cut" / "triples-0007.parquet").write_bytes(b"half")
    for format in SEPARATORS:
        build(tmp_path / format, triples, format)
    build(tmp_path / "cut", triples, limits=BuildLimits(chunk_bytes=101))
    heads, relations, tails = (list(column) for column in zip(*triples, strict=True))
    pq.write_table(pa.table({"head": heads, "relation": relations, "tail": tails}), tmp_path / "kb.parquet")
    build_graph(tmp_path / "kb.parquet", format="parquet", out_dir=tmp_path / "parquet")
    one, *others = (contents(tmp_path / name) for name in (*SEPARATORS, "cut", "parquet"))
    assert all(other == one for other in others)


def test_shards_end_where_the_head_changes_and_join_to_one_sorted_table(tmp_path: Path) -> None:
    build(tmp_path / "one", many_triples(997))
    _, report = build(tmp_path / "many", many_triples(997), limits=BuildLimits(shard_rows=89))
    shards = [pq.read_table(shard) for shard in sorted((tmp_path / "many").glob("triples-*.parquet"))]
    assert len(shards) > 3
    assert all(shard.num_rows >= 89 for shard in shards[:-1])
    heads = [set(shard["head"].to_pylist()) for shard in shards]
    assert sum(map(len, heads)) == len(set().union(*heads))
    assert pa.concat_tables(shards).equals(pq.read_table(tmp_path / "one" / "triples-0000.parquet"))
    assert report.num_triples + report.num_duplicates == 997


def test_a_folder_whose_name_is_a_pattern_is_that_folder_alone(tmp_path: Path) -> None:
    triples = [("a", "r", "b"), ("b", "r", "c")]
    build(tmp_path / "g1", [("x", "r", "y")])
    graph, report = build(tmp_path / "g[1]", triples)
    assert (stored(graph), report.num_triples) == (triples, 2)


def test_names_may_be_shared_and_the_first_of_two_counts(tmp_path: Path) -> None:
    triples, names = [("m.1", "r", "m.2"), ("m.3", "r", "m.2")], tmp_path / "names.tsv"
    names.write_text("label\tname\nm.1\tTwin\nm.3\tTwin\nm.1\tOther\nm.9\tNobody\n", encoding="utf-8")
    graph, report = build(tmp_path / "g", triples, names=names)
    assert graph.entity_names == ["Twin", "m.2", "Twin"]
    assert (report.num_named, report.num_shared_names) == (2, 1)
    pq.write_table(pa.table({"label": ["m.2"], "name": ["Second"]}), tmp_path / "names.parquet")
    assert build(tmp_path / "h", triples, names=tmp_path / "names.parquet")[0].entity_names == ["m.1", "Second", "m.3"]


@pytest.mark.parametrize(
    ("name", "text", "second"),
    [
        ("names.csv", 'label,name\nm.2,"Second, the"\n', "Second, the"),
        ("names.csv", "\ufeffid;name\r\nm.2;Second, the\r\n", "Second, the"),
        ("names.csv", "m.2\tSecond, the\n", "Second, the"),
        ("names.csv", "m.2;Second, the\nm.4;Fourth\nm.3;Third\n", "Second, the"),
        ("names.tsv", "m.2\tSecond; the\n", "Second; the"),
    ],
)
def test_names_are_read_as_the_file_is_laid_out(tmp_path: Path, name: str, text: str, second: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    for number, path in enumerate((tmp_path / name, tmp_path / f"{name}.gz")):
        graph, report = build(tmp_path / str(number), [("m.1", "r", "m.2")], names=path)
        assert graph.entity_names == ["m.1", second] and report.num_named == 1


def test_relations_are_called_as_the_names_file_says(tmp_path: Path) -> None:
    names = tmp_path / "names.tsv"
    names.write_text("P31\tinstance of\nQ1\tHill Line\nP31\tsecond\nP131\tin\nP17\tin\nP9\tunused\n", "utf-8")
    triples = [("Q1", relation, "Q2") for relation in ("P31", "P131", "P17", "P571")]
    graph, report = build(tmp_path / "g", triples, names=names)
    assert graph.relation_labels == ["P131", "P17", "P31", "P571"]
    assert graph.relation_names == ["in (P131)", "in (P17)", "instance of", "P571"]
    assert graph.entity_names == ["Hill Line", "Q2"] and report.num_named == 1  # entities


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id\tterm\nQ1\tFirst\n", "no label of .*names.tsv is in the graph. There it is 'Q1', in the graph 'm.2'"),
        ("First\tm.1\n", "There it is 'First', in the graph 'm.2'"),
        ("\n", "names.tsv holds no name. A line should look like: label TAB name"),
    ],
)
def test_a_file_of_names_that_names_nothing_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "names.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=f"names file: .*{said}") as failed:
        build(tmp_path / "g", [("m.1", "r", "m.2")], names=tmp_path / "names.tsv")
    held = {name for entry in failed.traceback for name in entry.locals}
    assert "connection" not in held  # DuckDB prints what an error that ends the process holds of it


def test_names_in_other_columns_are_asked_for_by_these(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["m.2"], "name": ["Second"]}), tmp_path / "names.parquet")
    with pytest.raises(InputError, match=r"no column 'label'.*'name'\]. Its columns are to be called label, name$"):
        build(tmp_path / "g", [("m.1", "r", "m.2")], names=tmp_path / "names.parquet")


# Rejects


def test_rejects_within_the_limit_are_kept_with_file_line_reason_and_text(tmp_path: Path) -> None:
    names = tmp_path / "names.tsv"
    names.write_text("a\tAnn\nb\n" + "x\tX\n" * 97, encoding="utf-8")
    triples, bad = [("a", "r", f"t{number}") for number in range(96)], b"caf\xe9\tr\tb\na\tr\n\t\t\nlast\tr\tone\ntrunc"
    limits = BuildLimits(chunk_bytes=53)
    _, report = build(tmp_path / "g", triples, more=bad, names=names, max_reject_ratio=0.05, limits=limits)
    rejects = [tuple(row.values()) for row in pq.read_table(tmp_path / "g" / "rejects.parquet").to_pylist()]
    assert rejects == [
        ("kb.tsv", 97, "not UTF-8", "caf�\tr\tb"),
        ("kb.tsv", 98, "wrong number of fields", "a\tr"),
        ("kb.tsv", 101, "truncated last line", "trunc"),
        ("names.tsv", 2, "wrong number of fields", "b"),
    ]
    assert report.rejects == {"not UTF-8": 1, "truncated last line": 1, "wrong number of fields": 2}
    assert report.num_triples == 97


def test_too_many_rejects_stop_the_build_and_show_the_first_five(tmp_path: Path) -> None:
    triples, bad = [("a", "r", f"t{number}") for number in range(993)], b"bad\n" * 6 + b"x" * 100_000 + b"\n"
    with pytest.raises(InputError) as stopped:
        build(tmp_path / "g", triples, more=bad)
    message = str(stopped.value)
    assert "7 of 1000 rows rejected (0.7 %, allowed 0.1 %)" in message
    assert "kb.tsv:994: wrong number of fields: 'bad'" in message
    assert "kb.tsv:998" in message
    assert "kb.tsv:999" not in message
    assert "--set dataset.graph.max_reject_ratio=0.007" in message
    assert not (tmp_path / "g" / "parts").exists()
    assert build(tmp_path / "g", triples, more=bad, max_reject_ratio=0.007)[1].num_rejects == 7
    with pytest.raises(InputError) as stopped:
        build(tmp_path / "g", [], more=bad[24:])
    assert len(str(stopped.value)) < 1_000


@pytest.mark.parametrize(
    ("path", "names", "message"),
    [
        ("kb.ts", None, r"kb\.ts does not exist\..*; did you mean 'kb\.tsv'\?"),
        ("nowhere/kb.tsv", None, r"its folder .*nowhere does not exist either"),
        ("kb.tsv", "none.tsv", r"names file: .*none\.tsv does not exist"),
        (".", None, "is a folder, not a file"),
    ],
)
def test_a_missing_file_is_named_with_the_nearest_one(
    tmp_path: Path, path: str, names: str | None, message: str
) -> None:
    (tmp_path / "kb.tsv").write_text("a\tr\tb\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        build_graph(tmp_path / path, format="tsv", out_dir=tmp_path / "g", names=names and tmp_path / names)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"head\trelation\ttail\n"])
def test_a_graph_without_a_triple_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError, match=r"kb\.tsv holds no triple.*head<TAB>relation<TAB>tail"):
        build(tmp_path / "g", [], more=data)


@pytest.mark.parametrize("format", ["tsv", "csv"])
@pytest.mark.parametrize("header", ["", "head,relation,tail\r"])
def test_lines_that_end_in_carriage_returns_alone_are_named(tmp_path: Path, format: str, header: str) -> None:
    text = f"{header}a,r,b\rc,r,d\r"
    path = tmp_path / "old"
    path.write_bytes(text.replace(",", "\t" if format == "tsv" else ",").encode())
    with pytest.raises(InputError, match=r"old: its lines end in carriage returns alone.*tr '\\r' '\\n'"):
        build_graph(path, format=format, out_dir=tmp_path / "g")


def test_a_folder_that_holds_no_graph_says_what_to_do(tmp_path: Path, films: KnowledgeGraph) -> None:
    with pytest.raises(ArtifactError, match="Build it again: kgqa build"):
        open_graph(tmp_path / "nothing")
    damaged = films.folder / "edge_tail.npy"
    damaged.write_bytes(damaged.read_bytes()[:50])
    with pytest.raises(ArtifactError, match="holds no usable graph"):
        open_graph(films.folder)


@pytest.mark.parametrize("ended", [KeyboardInterrupt, SystemExit])
def test_a_signal_that_comes_while_duckdb_works_raises_what_its_handler_raises(
    tmp_path: Path, ended: type[BaseException]
) -> None:
    handled: list[int] = []

    def handle(number: int, frame: object) -> None:
        handled.append(number)
        raise ended

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with pytest.raises(ended), connect("1GB", tmp_path, {}) as connection:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            connection.sql("select sum(a.range * b.range) from range(20000) a, range(20000) b").fetchall()
        assert handled == [signal.SIGALRM]
        assert signal.getsignal(signal.SIGALRM) is handle
    finally:
        signal.signal(signal.SIGALRM, before)


def test_building_needs_neither_torch_nor_dask() -> None:
    code = (
        "import sys, kgqa_core.graph.build, kgqa_core.graph.kg;"
        "print([name for name in ('torch', 'transformers', 'dask', 'pandas', 'numba') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# Relations that a file gives in both directions are stored once

CLUBS = [
    ("Ann", "plays_in", "Reds"),
    ("Reds", "plays_in_inverse", "Ann"),
    ("Reds", "plays_in_inverse", "Ann"),
    ("Bob", "plays_in", "Reds"),
    ("Blues", "plays_in_inverse", "Cid"),
    ("Reds", "based_in", "Rome"),
    ("Rome", "inverse", "Reds"),
    ("Rome", "hosts_inverse", "Ann"),
]


def test_an_inverse_needs_a_base_that_is_none_itself() -> None:
    labels = {"r", "r_inv", "r_inv_inv", "s_inv", "_inv", "sinv"}
    assert find_inverses(labels, "_inv") == {"r_inv": "r"}
    assert find_inverses(labels - {"r"}, "_inv") == {"r_inv_inv": "r_inv"}
    assert find_inverses(labels, None) == {}


def test_triples_of_an_inverse_are_turned_round_and_stored_once(tmp_path: Path) -> None:
    graph, report = build(tmp_path / "g", CLUBS, inverse_suffix="_inverse")
    assert graph.relation_names == ["based_in", "hosts_inverse", "inverse", "plays_in"]
    assert graph.inverse_labels == [None, None, None, "plays_in_inverse"]
    assert [triple for triple in stored(graph) if triple[1] == "plays_in"] == [
        ("Ann", "plays_in", "Reds"),
        ("Bob", "plays_in", "Reds"),
        ("Cid", "plays_in", "Blues"),
    ]
    assert (report.num_rows, report.num_triples, report.num_duplicates) == (8, 6, 1)
    counts = {"label": "plays_in_inverse", "num_both": 1, "num_only_forward": 1, "num_only_inverse": 1}
    assert report.inverses == {"plays_in": counts}
    facts = json.loads((tmp_path / "g" / "graph.json").read_text(encoding="utf-8"))
    assert facts["inverses"]["plays_in"]["label"] == "plays_in_inverse"
    graph, report = build(tmp_path / "h", CLUBS)  # without a suffix every relation is its own
    assert (report.num_relations, report.num_triples, report.inverses) == (5, 7, {})
    assert graph.inverse_labels == [None] * 5


@settings(max_examples=15)  # each builds a graph
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["r", "s", "r~", "s~", "t~"]), st.sampled_from("abc")),
        min_size=1,
        max_size=20,
    )
)
def test_the_stored_triples_are_those_of_turning_each_row_by_hand(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Triple]
) -> None:
    graph, report = build(tmp_path_factory.mktemp("any") / "g", rows, inverse_suffix="~")
    labels = {relation for _, relation, _ in rows}
    expected = {
        (tail, relation[:-1], head) if relation[-1] == "~" and relation[:-1] in labels else (head, relation, tail)
        for head, relation, tail in rows
    }
    found = stored(graph)
    assert set(found) == expected
    assert len(found) == len(expected) == report.num_triples
    assert report.num_duplicates == len(rows) - len(set(rows))
