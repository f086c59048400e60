"""Building a graph artifact: what is in it, that it never differs, and every way in which a file can be unusable."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core import schemas
from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.graph.build import BuildLimits, build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph

Contents = Callable[[Path], dict[str, bytes]]


def many_triples(count: int) -> list[tuple[str, str, str]]:
    """Triples over 31 entities and 5 relations, some of them repeated."""
    numbers = np.random.default_rng(11).integers(0, [31, 5, 31], size=(count, 3))
    return [(f"e{head}", f"r{relation}", f"é {tail}") for head, relation, tail in numbers]


def write(path: Path, triples: list[tuple[str, str, str]], separator: str = "|") -> Path:
    path.write_text("".join(separator.join(triple) + "\n" for triple in triples), encoding="utf-8")
    return path


def test_ids_follow_the_sorted_labels_and_repeats_are_counted(tmp_path: Path) -> None:
    triples = [("b", "s", "a"), ("é", "r", "B"), ("b", "s", "a"), ("b", "r", "a")]
    report = build_graph(write(tmp_path / "kb.txt", triples), format="wikimovies", out_dir=tmp_path / "g")
    graph = open_graph(tmp_path / "g")
    assert graph.entity_labels == ["B", "a", "b", "é"]  # byte order
    assert graph.entity_names == graph.entity_labels
    assert graph.relation_labels == ["r", "s"]
    stored = pq.read_table(tmp_path / "g" / "triples-0000.parquet")
    assert stored.schema == schemas.TRIPLES
    assert [tuple(row.values()) for row in stored.to_pylist()] == [(2, 0, 1), (2, 1, 1), (3, 0, 0)]
    assert (report.num_entities, report.num_relations, report.num_triples, report.num_duplicates) == (4, 2, 3, 1)
    assert report.triples_per_relation == {"r": 2, "s": 1}
    assert json.loads((tmp_path / "g" / "graph.json").read_text(encoding="utf-8"))["num_duplicates"] == 1


def test_every_table_at_rest_has_the_schema_of_the_contract(films: KnowledgeGraph) -> None:
    for name in ("entities", "relations", "rejects"):
        assert pq.read_schema(films.folder / f"{name}.parquet") == getattr(schemas, name.upper())


def test_a_rebuild_is_byte_identical_however_the_input_is_cut(tmp_path: Path, contents: Contents) -> None:
    path = write(tmp_path / "kb.txt", many_triples(997))
    for name, chunk_bytes in (("one", 2**20), ("again", 2**20), ("cut", 101)):
        build_graph(path, format="wikimovies", out_dir=tmp_path / name, limits=BuildLimits(chunk_bytes=chunk_bytes))
    assert contents(tmp_path / "one") == contents(tmp_path / "again") == contents(tmp_path / "cut")


def test_all_formats_give_the_same_graph(tmp_path: Path, contents: Contents) -> None:
    triples = many_triples(211)
    heads, relations, tails = (list(column) for column in zip(*triples, strict=True))
    pq.write_table(pa.table({"head": heads, "relation": relations, "tail": tails}), tmp_path / "kb.parquet")
    paths: dict[str, Path] = {
        "wikimovies": write(tmp_path / "kb.txt", triples),
        "tsv": write(tmp_path / "kb.tsv", triples, "\t"),
        "csv": write(tmp_path / "kb.csv", triples, ","),
        "parquet": tmp_path / "kb.parquet",
    }
    for format, path in paths.items():
        build_graph(path, format=format, out_dir=tmp_path / format)
    built = [contents(tmp_path / format) for format in paths]
    assert all(other == built[0] for other in built)


def test_shards_end_where_the_head_changes_and_join_to_one_sorted_table(tmp_path: Path) -> None:
    path = write(tmp_path / "kb.txt", many_triples(997))
    build_graph(path, format="wikimovies", out_dir=tmp_path / "one")
    report = build_graph(path, format="wikimovies", out_dir=tmp_path / "many", limits=BuildLimits(shard_rows=89))
    shards = [pq.read_table(shard) for shard in sorted((tmp_path / "many").glob("triples-*.parquet"))]
    assert len(shards) > 3
    assert all(shard.num_rows >= 89 for shard in shards[:-1])
    heads = [set(shard["head"].to_pylist()) for shard in shards]
    assert sum(map(len, heads)) == len(set().union(*heads))
    assert pa.concat_tables(shards).equals(pq.read_table(tmp_path / "one" / "triples-0000.parquet"))
    assert report.num_triples + report.num_duplicates == 997


def test_names_may_be_shared_and_the_first_of_two_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "kb.tsv", [("m.1", "r", "m.2"), ("m.3", "r", "m.2")], "\t")
    names = tmp_path / "names.tsv"
    names.write_text("label\tname\nm.1\tTwin\nm.3\tTwin\nm.1\tOther\nm.9\tNobody\n", encoding="utf-8")
    report = build_graph(path, format="tsv", out_dir=tmp_path / "g", names=names)
    graph = open_graph(tmp_path / "g")
    assert graph.entity_names == ["Twin", "m.2", "Twin"]
    assert (report.num_named, report.num_shared_names) == (2, 1)
    pq.write_table(pa.table({"label": ["m.2"], "name": ["Second"]}), tmp_path / "names.parquet")
    build_graph(path, format="tsv", out_dir=tmp_path / "h", names=tmp_path / "names.parquet")
    assert open_graph(tmp_path / "h").entity_names == ["m.1", "Second", "m.3"]


def test_rejects_within_the_limit_are_kept_with_file_line_reason_and_text(tmp_path: Path) -> None:
    path = write(tmp_path / "kb.tsv", [("a", "r", f"t{number}") for number in range(96)], "\t")
    path.write_bytes(path.read_bytes() + b"caf\xe9\tr\tb\na\tr\n\t\t\nlast\tr\tone\ntrunc")
    names = tmp_path / "names.tsv"
    names.write_text("a\tAnn\nb\n" + "x\tX\n" * 97, encoding="utf-8")
    report = build_graph(
        path,
        format="tsv",
        out_dir=tmp_path / "g",
        names=names,
        max_reject_ratio=0.05,
        limits=BuildLimits(chunk_bytes=53),
    )
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
    path = write(tmp_path / "kb.txt", [("a", "r", f"t{number}") for number in range(993)])
    path.write_text(path.read_text(encoding="utf-8") + "bad\n" * 7, encoding="utf-8")
    with pytest.raises(InputError) as stopped:
        build_graph(path, format="wikimovies", out_dir=tmp_path / "g")
    message = str(stopped.value)
    assert "7 of 1000 rows rejected (0.7 %, allowed 0.1 %)" in message
    assert "kb.txt:994: wrong number of fields: 'bad'" in message
    assert "kb.txt:998" in message
    assert "kb.txt:999" not in message
    assert "--set dataset.graph.max_reject_ratio=0.007" in message
    assert not (tmp_path / "g" / "parts").exists()
    assert build_graph(path, format="wikimovies", out_dir=tmp_path / "g", max_reject_ratio=0.007).num_rejects == 7


def test_a_flood_of_long_bad_lines_gives_a_short_message(tmp_path: Path) -> None:
    path = tmp_path / "kb.txt"
    path.write_text("x" * 100_000 + "\n", encoding="utf-8")
    with pytest.raises(InputError) as stopped:
        build_graph(path, format="wikimovies", out_dir=tmp_path / "g")
    assert len(str(stopped.value)) < 1_000


def test_a_missing_file_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "kb.txt").write_text("a|r|b\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"kb\.tx does not exist\. Nearest beside it: kb\.txt"):
        build_graph(tmp_path / "kb.tx", format="wikimovies", out_dir=tmp_path / "g")
    with pytest.raises(InputError, match=r"Its folder .*nowhere does not exist either"):
        build_graph(tmp_path / "nowhere" / "kb.txt", format="wikimovies", out_dir=tmp_path / "g")
    with pytest.raises(InputError, match=r"names file: .*none\.tsv does not exist"):
        build_graph(tmp_path / "kb.txt", format="wikimovies", out_dir=tmp_path / "g", names=tmp_path / "none.tsv")


def test_a_folder_is_no_graph_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder, not a file"):
        build_graph(tmp_path, format="wikimovies", out_dir=tmp_path / "g")


@pytest.mark.parametrize("data", ["", "\n\n", "head\trelation\ttail\n"])
def test_a_graph_without_a_triple_is_refused(tmp_path: Path, data: str) -> None:
    path = tmp_path / "kb.tsv"
    path.write_text(data, encoding="utf-8")
    with pytest.raises(InputError, match=r"kb\.tsv holds no triple.*head<TAB>relation<TAB>tail"):
        build_graph(path, format="tsv", out_dir=tmp_path / "g")


def test_what_a_killed_build_left_does_no_harm(tmp_path: Path, contents: Contents) -> None:
    path = write(tmp_path / "kb.txt", many_triples(97))
    build_graph(path, format="wikimovies", out_dir=tmp_path / "clean")
    (tmp_path / "used" / "parts").mkdir(parents=True)
    (tmp_path / "used" / "parts" / "head-000000.parquet").write_bytes(b"half")
    (tmp_path / "used" / "triples-0007.parquet").write_bytes(b"half")
    build_graph(path, format="wikimovies", out_dir=tmp_path / "used")
    assert contents(tmp_path / "used") == contents(tmp_path / "clean")


def test_a_folder_that_holds_no_graph_says_what_to_do(tmp_path: Path, films: KnowledgeGraph) -> None:
    with pytest.raises(ArtifactError, match="Build it again: kgqa build"):
        open_graph(tmp_path / "nothing")
    damaged = films.folder / "edge_tail.npy"
    damaged.write_bytes(damaged.read_bytes()[:50])
    with pytest.raises(ArtifactError, match="holds no usable graph"):
        open_graph(films.folder)


def test_building_needs_neither_torch_nor_dask() -> None:
    code = (
        "import sys, kgqa_core.graph.build, kgqa_core.graph.kg, kgqa_core.graph.fan_out;"
        "print([name for name in ('torch', 'transformers', 'dask', 'pandas') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
