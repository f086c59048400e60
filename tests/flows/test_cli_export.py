"""kgqa export: what another program finds, what the columns mean, and where it comes from."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from flows.cli_export import DICTIONARY
from kgqa_core import schemas
from kgqa_core.artifacts import hash_file
from kgqa_core.config import RunConfig
from kgqa_core.run.open import graph_of
from kgqa_core.run.pipeline import Pipeline
from tests.conftest import kgqa

DOC = Path(__file__).parents[2] / "docs" / "shards.md"


def test_the_graph_is_exported_with_order_words_and_lineage(conf: Path, tiny_config: RunConfig, tmp_path: Path) -> None:
    done = kgqa("export", conf, "--out", tmp_path / "exports", "--duckdb", "--json")
    assert done.exit_code == 0, done.stderr
    document, graph = json.loads(done.stdout), graph_of(Pipeline(tiny_config))
    current = tmp_path / "exports" / "tiny" / "current"
    assert sorted(path.name for path in current.iterdir()) == sorted([*document["files"], "lineage.json"])
    assert {name: hash_file(current / name) for name in document["files"]} == {
        name: entry["sha256"] for name, entry in document["files"].items()
    }
    for name, entry in document["files"].items():
        if name.endswith(".parquet"):
            file = pq.ParquetFile(current / name)
            about, columns = DICTIONARY[name.removesuffix(".parquet")]
            assert file.metadata.num_rows == entry["rows"] and file.metadata.row_group(0).sorting_columns
            assert {field.name: field.metadata[b"description"].decode() for field in file.schema_arrow} == columns
            assert file.metadata.metadata[b"description"].decode() == about
    triples = pq.read_table(current / "triples.parquet")
    rows = [tuple(row.values()) for row in triples.to_pylist()]
    assert len(rows) == graph.num_triples and rows == sorted(set(rows))
    assert pq.read_table(current / "entities.parquet")["label"].to_pylist() == graph.entity_labels
    with duckdb.connect(str(current / "graph.duckdb"), read_only=True) as connection:
        assert connection.sql("select count(*) from facts").fetchall() == [(graph.num_triples,)]
        words = "select comment from duckdb_columns() where table_name = 'triples' and column_name = 'head'"
        assert connection.sql(words).fetchall() == [(DICTIONARY["triples"][1]["head"],)]
    lineage = json.loads((current / "lineage.json").read_text(encoding="utf-8"))
    assert [stage["stage"] for stage in lineage["stages"]] == ["graph", "dataset"]
    assert lineage["stages"][0]["fingerprint"] == graph.folder.name
    assert lineage["run"] == "tiny" and lineage["git_commit"] and lineage["exported"]


def test_current_moves_once_all_is_written_and_builds_stay(conf: Path, tiny_config: RunConfig, tmp_path: Path) -> None:
    for options in ([], ["--duckdb"], ["--duckdb"]):
        assert kgqa("export", conf, "--out", tmp_path, *options).exit_code == 0
    build = Pipeline(tiny_config).artifact("graph").fingerprint[:12]
    assert sorted(path.name for path in (tmp_path / "tiny").iterdir()) == sorted([build, f"{build}-duckdb", "current"])
    assert (tmp_path / "tiny" / "current").readlink() == Path(f"{build}-duckdb")


def test_what_cannot_be_exported_is_said(conf: Path, tiny_config: RunConfig, tmp_path: Path) -> None:
    inside = kgqa("export", conf, "--out", tiny_config.runtime.home / "artifacts" / "x")
    assert inside.exit_code == 2 and "lies in the artifact store" in inside.stderr
    (tmp_path / "file").write_text("")
    blocked = kgqa("export", conf, "--out", tmp_path / "file")
    assert blocked.exit_code == 5 and "cannot export" in blocked.stderr
    elsewhere = (f"--set={setting}" for setting in ("name=other", f"runtime.home={tmp_path / 'home'}"))
    other = kgqa("export", conf, "--out", tmp_path, *elsewhere)
    assert other.exit_code == 5 and "is built" in other.stderr


def test_every_column_is_described_here_and_in_the_document() -> None:
    doc = DOC.read_text(encoding="utf-8")
    for table, (about, columns) in DICTIONARY.items():
        assert list(columns) == getattr(schemas, table.upper()).names
        assert about in doc
        missing = [column for column, text in columns.items() if f"| `{table}.{column}` | {text} |" not in doc]
        assert missing == [], table
