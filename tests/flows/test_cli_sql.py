"""kgqa sql: what a data engineer asks a built run."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from flows.sql_views import find_tables, open_views, view_name
from kgqa_core.artifacts import FileEntry
from kgqa_core.config import RunConfig
from kgqa_core.errors import KgqaError
from kgqa_core.run.open import graph_of
from kgqa_core.run.pipeline import Pipeline
from tests.conftest import kgqa


def kgqa_sql(*arguments: object) -> Any:
    return kgqa("sql", *arguments)


def answer(*arguments: object) -> Any:
    """Return what a query prints as JSON."""
    done = kgqa_sql(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def rows(*arguments: object) -> list[list[Any]]:
    return answer(*arguments)["rows"]


def test_a_home_that_may_only_be_read_is_asked(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    assert rows(conf, "select 1 + 1") == [[2]]


# Views


def test_without_a_query_the_views_are_listed_with_columns_and_rows(conf: Path, pipeline: Pipeline) -> None:
    views = {view["name"]: view for view in answer(conf)["views"]}
    names = "coverage encodings entities facts graph_rejects predictions_seed0 question_missing question_rejects"
    assert " ".join(sorted(views)) == f"{names} questions relations triples"
    assert views["triples"]["columns"] == {"head": "INTEGER", "relation": "INTEGER", "tail": "INTEGER"}
    assert views["facts"]["rows"] == views["triples"]["rows"] == graph_of(pipeline).num_triples
    for name, view in views.items():
        assert rows(conf, f"select count(*) from {name}") == [[view["rows"]]], name
    shown = kgqa_sql(conf).stdout
    assert "predictions_seed0" in shown and "head INTEGER" in shown


def test_facts_are_the_triples_with_labels_and_names(conf: Path, pipeline: Pipeline) -> None:
    graph = graph_of(pipeline)
    found = rows(conf, "select * from facts order by head_id, relation_id, tail_id", "--limit", 1000000)
    table = pq.read_table(sorted(graph.folder.glob("triples-*.parquet")))
    assert [row[5:] for row in found] == [list(row.values()) for row in table.to_pylist()]
    for head_label, head_name, relation, tail_label, tail_name, head, relation_id, tail in found[::97]:
        assert (head_label, head_name) == (graph.label_of(head), graph.name_of(head))
        assert (tail_label, tail_name) == (graph.label_of(tail), graph.name_of(tail))
        assert relation == graph.relation_names[relation_id]


def test_questions_have_the_names_of_their_topics_and_answers_in_order(conf: Path, pipeline: Pipeline) -> None:
    graph = graph_of(pipeline)
    query = "select topics, topic_names, answers, answer_names from questions"
    found = rows(conf, query, "--limit", 100000)
    assert any(len(answers) > 1 for _, _, answers, _ in found)
    for topics, topic_names, answers, answer_names in found:
        assert [graph.name_of(entity) for entity in topics] == topic_names
        assert [graph.name_of(entity) for entity in answers] == answer_names


@pytest.mark.parametrize(
    ("stage", "table", "view"),
    [
        ("graph", "triples", "triples"),
        ("graph", "rejects", "graph_rejects"),
        ("subgraphs", "blocks", "subgraphs"),
        ("evaluation-seed3", "predictions", "predictions_seed3"),
        ("dump", "names", "dump_names"),
        ("dump-1", "names", "dump_names_1"),
    ],
)
def test_stages_of_several_seeds_or_files_have_a_view_each(stage: str, table: str, view: str) -> None:
    assert view_name(stage, table) == view


def test_what_lies_in_numbered_files_or_folders_is_one_view(pipeline: Pipeline) -> None:
    names = ["triples/bucket-0001.parquet", "triples/bucket-0000.parquet", "blocks.parquet", "subgraphs.json"]
    files = tuple(FileEntry(name, 7, "", 11 if name.endswith(".parquet") else None) for name in names)
    found = find_tables({"subgraphs": replace(pipeline.artifact("graph"), files=files)})
    assert {name: sum(rows.values()) for name, rows in found.items()} == {"subgraph_triples": 22, "subgraphs": 11}
    assert [Path(path).stem for path in found["subgraph_triples"]] == ["bucket-0000", "bucket-0001"]


def test_what_is_not_built_has_no_view(conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {view["name"] for view in answer(conf, "--set", "explorer.width=11")["views"]}
    assert "triples" in listed
    assert "predictions_seed0" not in listed
    monkeypatch.setenv("KGQA_HOME", str(tmp_path / "nothing"))
    done = kgqa_sql(conf)
    assert done.exit_code == 5
    assert "kgqa build" in done.stderr


# Results


def test_rows_are_cut_and_said_to_be(conf: Path) -> None:
    assert answer(conf, "from triples", "--limit", 3)["more"] is True
    assert answer(conf, "from relations", "--limit", 1000)["more"] is False
    assert len(rows(conf, "from triples")) == 100
    assert rows(conf, "select 1 as x, 2 as x") == [[1, 2]]  # two columns of one name are both there
    assert "There are more: --limit N" in kgqa_sql(conf, "from triples", "--limit", 2).stdout
    none = kgqa_sql(conf, "from triples", "--limit", 0).stdout
    assert none == "There are rows: --limit N prints N of them, --out FILE writes all.\n"
    assert kgqa_sql(conf, "from triples where false", "--limit", 0).stdout == "0 rows: none\n"


def test_what_json_has_no_number_for_is_null(conf: Path) -> None:
    done = kgqa_sql(conf, "select 'nan'::double, '-infinity'::double, ['inf'::float, 1.5], 'NaN'", "--json")
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["rows"] == [[None, None, [None, 1.5], "NaN"]]


@pytest.mark.parametrize("name", ["out.parquet", "out.csv"])
def test_out_holds_all_rows(conf: Path, tmp_path: Path, pipeline: Pipeline, name: str) -> None:
    done = answer(conf, "select head_name, tail_name from facts", "--out", tmp_path / name)
    assert done == {"file": str(tmp_path / name), "rows": graph_of(pipeline).num_triples}
    assert duckdb.sql(f"select count(*) from '{tmp_path / name}'").fetchall() == [(done["rows"],)]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]


@pytest.mark.parametrize(
    ("query", "written"),
    [
        ("[1, 2] as numbers, 'a,b' as text", '"numbers","text"\n"[1, 2]","a,b"\n'),
        ("'a' as name, 1 as name, ['b'] as \"NAME\"", '"name","name","NAME"\n"a",1,"[b]"\n'),  # as a join has them
        ("'=URL(1)' as a, '@x' as b, '-1' as c, -1 as d", '"a","b","c","d"\n"\'=URL(1)","\'@x","\'-1",-1\n'),
        ("'a=b' as a, ['=1'] as b", '"a","b"\n"a=b","[\'=1\']"\n'),  # a text is no formula
    ],
)
def test_what_csv_has_no_form_for_is_text(conf: Path, tmp_path: Path, query: str, written: str) -> None:
    assert kgqa_sql(conf, f"select {query}", "--out", tmp_path / "out.csv").exit_code == 0
    assert (tmp_path / "out.csv").read_text() == written


@pytest.mark.parametrize(
    ("out", "code", "said"),
    [("rows.txt", 3, r".parquet or .csv"), ("nowhere/rows.csv", 3, "there is no folder"), (None, 2, "artifact store")],
)
def test_out_must_be_a_file_that_may_be_written(
    conf: Path, tmp_path: Path, pipeline: Pipeline, out: str | None, code: int, said: str
) -> None:
    place = pipeline.artifact("graph").folder / "new.parquet" if out is None else tmp_path / out
    done = kgqa_sql(conf, "from triples", "--out", place)
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr
    assert not place.exists()
    assert kgqa_sql(conf, "--out", tmp_path / "out.csv").exit_code == 2  # it needs a query


def test_a_row_of_many_columns_is_a_table_of_its_own(conf: Path) -> None:
    joined = "from predictions_seed0 join questions on question_id = id order by id"
    shown = kgqa_sql(conf, joined, "--limit", 2).stdout
    assert {"row 1", "row 2"} <= set(shown.splitlines()) and "│ candidate_scores " in shown
    (asked,) = rows(conf, f"select question {joined} limit 1")
    assert asked[0] in shown  # on one line


# What cannot be asked


@pytest.mark.parametrize(
    ("value", "options"),
    [
        ("interval 1 day", ("--out", "rows.csv")),
        ("interval 1 day", ("--out", "rows.parquet")),
        ("'101'::bit", ("--out", "rows.csv")),
        ("'0044-03-15 (BC)'::date", ()),
        ("'infinity'::timestamp", ("--json",)),
    ],
)
def test_a_value_that_cannot_be_shown_or_written_is_to_be_cast(
    conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = kgqa_sql(conf, f"select {value} as x", *options)
    assert (done.exit_code, done.stdout) == (2, "") and "COLUMN::varchar" in done.stderr, done.stderr
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("rows")]
    assert kgqa_sql(conf, f"select ({value})::varchar as x", *options).exit_code == 0


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("from factz", 'Did you mean "facts"?'),
        ("select nam from entities", 'Candidate bindings: "name"'),
        ("selec 1", "syntax error"),
        ("select cast('a' as int)", "Could not convert"),
        ("from triples where relation = 'directed'", "the view facts has labels and names"),
        ("from read_csv('/etc/passwd')", "disabled by configuration"),
        ("from tables", "does not exist"),  # a variable of ours is no table
        ("create table x (i int)", "given: CREATE"),
        ("set memory_limit = '1TB'", "given: SET"),
        ("select 1; select 2", "given: SELECT, SELECT"),
        ("", "given: none"),
        ("select '\udcff'", "no text in UTF-8"),  # a byte of Latin-1, as Python reads it from a terminal
        ("with q as (copy (select 1) to 'x.csv') from q", "COPY writes files"),
        ("with ü as (select 1), q as (CoPy (select 1) to 'x.csv') from q", "COPY writes files"),
    ],
)
def test_a_query_that_is_not_usable_says_why_in_short(conf: Path, query: str, said: str) -> None:
    done = kgqa_sql(conf, query)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert "LINE 1" not in done.stderr


def test_a_view_of_what_is_not_made_yet_is_asked_for_by_building_it(
    conf: Path, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = Pipeline.find
    monkeypatch.setattr(
        Pipeline, "find", lambda run, key, *more: find(run, key, *more) if key in ("dataset", "graph") else None
    )
    done = kgqa_sql(conf, "from question_rejects")
    assert done.exit_code == 2 and "question_rejects does not exist" in done.stderr
    assert "not made yet: questions, encodings" in done.stderr
    assert f"kgqa build {conf}," in " ".join(done.stderr.split())
    assert "pg_" not in done.stderr
    monkeypatch.setattr(Pipeline, "find", lambda run, key, *more: None)
    done = kgqa_sql(conf, "from facts")
    assert done.exit_code == 5 and "as its files and settings are now" in done.stderr


def test_too_little_memory_is_said_and_copy_may_be_a_mere_word(conf: Path, pipeline: Pipeline) -> None:
    query = "select length(list(md5(head::text))) from triples, range(100)"  # one list cannot be spilled
    before = sorted(pipeline.home.rglob("*"))
    done = kgqa_sql(conf, query, "--set", "runtime.memory_limit=20MB")
    assert done.exit_code == 5
    assert "runtime.memory_limit" in done.stderr
    assert rows(conf, "select 'copy' as a, 1 as \"copy\" /* copy */") == [["copy", 1]]
    assert [path for path in sorted(pipeline.home.rglob("*")) if path not in before and path.name != "run"] == []


# What no query can do


HOW = ("format parquet", "format csv", "format json", "use_tmp_file false", "per_thread_output", "header")
COPIES = ("with q as (copy (select 1 as x) to '{path}' ({how})) from q", "copy (select 1 as x) to '{path}' ({how})")
OTHERS = ("export database '{path}'", "attach '{path}' as x", "load '{path}'", "create table t as select 1", "vacuum")
HIDDEN = (
    "from json_execute_serialized_sql({said})",
    "select * from json_execute_serialized_sql({said}) union all select 1",
    "with q as materialized (from json_execute_serialized_sql({said})) from q",
    "pragma json_execute_serialized_sql({said})",
)


def test_two_hundred_statements_change_no_byte_under_the_home(tiny_copy: RunConfig, tmp_path: Path) -> None:
    """Among them SQL that is a value of a query: DuckDB has functions that run it, COPY included."""
    pipeline = Pipeline(tiny_copy)
    artifacts = {key: artifact for key in pipeline.specs if (artifact := pipeline.find(key))}
    before = {path: path.read_bytes() for path in pipeline.home.rglob("*") if path.is_file()}
    shard = next(path for path in before if path.name.startswith("triples-"))
    places = [shard, f"{shard}.new", pipeline.home / "new", "kgqa://triples/0.parquet", "kgqa://new.parquet"]
    statements = [one.format(path=place) for one in OTHERS for place in places]
    with duckdb.connect() as plain:
        for place in places:
            written = [one.format(path=place, how=how) for one in COPIES for how in HOW]
            statements += [*written, *(f"from query('{quoted(one)}')" for one in written)]
            for one in written:
                (said,) = plain.execute("select json_serialize_sql(?)::varchar", [one]).fetchone() or ("",)
                statements += [hidden.format(said=f"'{quoted(said)}'") for hidden in HIDDEN]
        counting = "select json_serialize_sql('select count(*) from triples')::varchar"
        (reads,) = plain.execute(counting).fetchone() or ("",)
    assert len(statements) >= 300
    with open_views(artifacts, memory_limit="1GB", temp_directory=tmp_path / "spill") as views:
        for statement in statements:
            with suppress(KgqaError):
                views.read(statement, limit=3)
        # Such functions work: what they may touch is what is limited.
        counted, _ = views.read(f"from json_execute_serialized_sql('{quoted(reads)}')", limit=1)
        assert counted.num_rows == 1
    assert {path: path.read_bytes() for path in pipeline.home.rglob("*") if path.is_file()} == before


def quoted(text: str) -> str:
    return text.replace("'", "''")


def test_names_do_not_command_the_terminal(conf: Path) -> None:
    done = kgqa_sql(conf, "select 'a' || chr(27) || '[2J' || chr(8238) as name")
    assert done.exit_code == 0
    assert "a\\u001b[2J\\u202e" in done.stdout and "\x1b" not in done.stdout
