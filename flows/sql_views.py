"""What a run has built, as DuckDB views: every Parquet table of its artifacts, and a few views that join them.

One connection in memory. Its views read through a file system that only reads, and that knows the run's tables and
nothing else. DuckDB itself may touch no file but what it spills, and load no extension. So whatever a query hides (a
function may run SQL that is a value), it can neither reach elsewhere nor damage an artifact.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import local
from typing import Any

import duckdb
import fsspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from kgqa_core.artifacts import Artifact, written_whole
from kgqa_core.errors import ArtifactError, InputError, QueryError, shorten
from kgqa_core.graph.build import signals_heeded

BATCH_ROWS = 131_072  # of what is written to a file
MAX_MESSAGE = 400  # characters of what DuckDB says
CAST = "Cast such a column to text: COLUMN::varchar"
READING = (duckdb.StatementType.SELECT, duckdb.StatementType.MULTI)  # MULTI: what PIVOT is made of
# A stage's main table, with its view; other tables are called by a prefix, the stage's name where none is here.
MAIN = {
    ("topics", "topics"): "question_topics",
    ("questions", "questions"): "questions",
    ("questions", "coverage"): "coverage",
    ("encodings", "encodings"): "encodings",
    ("subgraphs", "blocks"): "subgraphs",
    ("evaluation", "predictions"): "predictions",
}
PREFIX = {"questions": "question", "subgraphs": "subgraph"}

FACTS = """
create view {view} as select {first} h.label as head_label, h.name as head_name, r.name as relation,
    t.label as tail_label, t.name as tail_name, f.head as head_id, f.relation as relation_id, f.tail as tail_id
from {triples} f join entities h on f.head = h.entity_id join relations r on f.relation = r.relation_id
    join entities t on f.tail = t.entity_id"""
NAMED_QUESTIONS = """
create view questions as with listed as (
    select id, true as is_topic, unnest(topics) as entity_id, generate_subscripts(topics, 1) as place from linked
    union all select id, false, unnest(answers), generate_subscripts(answers, 1) from linked
), named as (
    select id, list(name order by place) filter (is_topic) as topic_names,
        list(name order by place) filter (not is_topic) as answer_names
    from listed join entities using (entity_id) group by id
) select linked.*, coalesce(topic_names, []) as topic_names, coalesce(answer_names, []) as answer_names
from linked left join named using (id)"""


@dataclass(frozen=True, slots=True)
class Views:
    """An open connection in which a run's tables are views."""

    connection: duckdb.DuckDBPyConnection
    num_rows: Mapping[str, int]  # view -> rows

    def list_views(self) -> list[dict[str, Any]]:
        """Return name, number of rows and columns with their types of all views; reads no rows."""
        described = {name: self.connection.sql(f"describe {name}").fetchall() for name in self.num_rows}
        columns = {name: {row[0]: str(row[1]) for row in rows} for name, rows in described.items()}
        return [{"name": name, "rows": rows, "columns": columns[name]} for name, rows in self.num_rows.items()]

    def read(self, query: str, *, limit: int) -> tuple[pa.Table, bool]:
        """Return the first ``limit`` rows of a query, and whether there are more; QueryError where it is unusable."""
        with _errors_as_ours():
            table = self._select(query).limit(limit + 1).to_arrow_table()
            return table.slice(0, limit), table.num_rows > limit

    def write(self, query: str, out: Path, *, limit: int | None = None) -> int:
        """Stream the rows of a query to a Parquet or CSV file, there only once it is whole; return how many.

        In CSV, lists and structs are text. Raises QueryError where the query is unusable, InputError where the file is.
        """
        if out.suffix not in (".parquet", ".csv"):
            raise InputError(f"cannot write {out}: give a file that ends in .parquet or .csv")
        if not out.absolute().parent.is_dir():
            raise InputError(f"cannot write {out}: there is no folder {out.absolute().parent}")
        with _errors_as_ours():
            rows = self._select(query)
            rows = rows if limit is None else rows.limit(limit)
            reader = (rows if out.suffix == ".parquet" else _flat(rows)).to_arrow_reader(BATCH_ROWS)
            writer = pq.ParquetWriter if out.suffix == ".parquet" else pa_csv.CSVWriter
            num_rows = 0
            try:
                with written_whole(out) as partial, writer(partial, reader.schema) as sink:
                    for batch in reader:
                        sink.write_batch(batch)
                        num_rows += batch.num_rows
            except OSError as problem:
                raise InputError(f"cannot write {out}: {problem.strerror or problem}") from problem
            return num_rows

    def _select(self, query: str) -> duckdb.DuckDBPyRelation:
        try:
            raw = query.encode("utf-8")
        except UnicodeEncodeError as problem:  # bytes of another encoding, as a terminal may hand them over
            raise QueryError(f"the query is no text in UTF-8: {shorten(query[problem.start :])}") from None
        statements = self.connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type not in READING:
            kinds = ", ".join(statement.type.name for statement in statements) or "none"
            raise QueryError(f"one statement that reads is wanted (SELECT, FROM, DESCRIBE, PIVOT, ...), given: {kinds}")
        # Inside WITH, DuckDB would carry COPY out, on the files that it may read.
        keywords = [place for place, kind in duckdb.tokenize(query) if kind == duckdb.token_type.keyword]
        if any(raw[place : place + 4].lower() == b"copy" for place in keywords):
            raise QueryError(
                "COPY writes files, and a query only reads: --out FILE writes its rows (a column of that name is "
                'written "copy")'
            )
        return self.connection.sql(query)


@contextmanager
def open_views(artifacts: Mapping[str, Artifact], *, memory_limit: str, temp_directory: Path) -> Iterator[Views]:
    """Open the tables of ``artifacts`` (by the stage's key in its run) as views; ArtifactError where one is damaged.

    ``memory_limit`` is DuckDB's own, such as "2GB": the process uses more. It spills to ``temp_directory``.
    """
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory_limit,
        "temp_directory": str(temp_directory),
        "autoload_known_extensions": False,
        "autoinstall_known_extensions": False,
        "python_enable_replacements": False,  # no table named like a variable of ours
    }
    tables = find_tables(artifacts)
    with signals_heeded(), duckdb.connect(config=settings) as connection:
        try:
            num_rows = _create_views(connection, tables)
        except (duckdb.Error, OSError, ValueError) as problem:
            raise ArtifactError(f"cannot open the run's tables: {_short(problem)}. kgqa status says more") from problem
        listed = [f"'{place}'" for name, files in tables.items() for place in _places(name, files)]
        connection.execute(f"set allowed_paths = [{', '.join(listed)}]")
        connection.execute("set enable_external_access = false")
        connection.execute("set lock_configuration = true")
        yield Views(connection, dict(sorted(num_rows.items())))


def find_tables(artifacts: Mapping[str, Artifact]) -> dict[str, dict[str, int]]:
    """Return view name -> file -> rows, of all Parquet files: ``triples-0000``, ``triples-0001``, ... are one table."""
    tables: dict[str, dict[str, int]] = {}
    dumps = [key for key in artifacts if key.startswith("dump-")]
    for key, artifact in artifacts.items():
        key = "dump" if [key] == dumps else key
        for entry in sorted(artifact.files, key=lambda entry: entry.name):
            if entry.rows is not None:
                group = re.sub(r"[-_=]?\d*(\.parquet)?$", "", entry.name.partition("/")[0])
                tables.setdefault(view_name(key, group), {})[str(artifact.folder / entry.name)] = entry.rows
    return tables


def view_name(key: str, group: str) -> str:
    """Return the view of a stage's table: graph's triples -> triples, questions' rejects -> question_rejects."""
    stage, _, part = key.partition("-")
    own = group if stage == "graph" and group != "rejects" else f"{PREFIX.get(stage, stage)}_{group}"
    name = MAIN.get((stage, group), own)
    return re.sub(r"\W", "_", f"{name}_{part}" if part else name)


def _create_views(connection: duckdb.DuckDBPyConnection, tables: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    num_rows = {name: sum(files.values()) for name, files in tables.items()}
    files_of = {place: path for name, files in tables.items() for place, path in _places(name, files).items()}
    connection.register_filesystem(ReadOnlyFiles(files_of))
    joined = {"questions", "entities"} <= tables.keys()
    for name, files in tables.items():
        view = "linked" if joined and name == "questions" else name
        connection.read_parquet(list(_places(name, files))).create_view(view)
    if joined:
        connection.execute(NAMED_QUESTIONS)
    if {"triples", "entities", "relations"} <= tables.keys():
        connection.execute(FACTS.format(view="facts", first="", triples="triples"))
        num_rows["facts"] = num_rows["triples"]
        if "subgraph_triples" in tables:
            connection.execute(FACTS.format(view="subgraph_facts", first="question_id,", triples="subgraph_triples"))
            num_rows["subgraph_facts"] = num_rows["subgraph_triples"]
    return num_rows


def _places(view: str, files: Mapping[str, int]) -> dict[str, str]:
    """Return what queries see of a view's files: a name that no disk has -> the file."""
    return {f"kgqa://{view}/{number}.parquet": path for number, path in enumerate(files)}


class ReadOnlyFiles(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Some files under other names; they can be read, and nothing else can be done here."""

    protocol, cachable = "kgqa", False

    def __init__(self, files: Mapping[str, str]) -> None:
        super().__init__()
        self.files = files

    def open(self, path: str, mode: str = "rb", **options: Any) -> SharedFile:
        """Open a file to be read by several threads."""
        if mode != "rb" or path not in self.files:
            raise PermissionError(f"{path} is no file that can be opened for {mode!r}")
        return SharedFile(self.files[path])

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Return how large a file is."""
        return {"name": path, "size": os.path.getsize(self.files[path]), "type": "file"}

    def modified(self, path: str) -> datetime:
        """Return when a file was written."""
        return datetime.fromtimestamp(os.path.getmtime(self.files[path]), UTC)

    def glob(self, path: str, **options: Any) -> list[str]:
        """Return the files of a name: names are no patterns."""
        return [path] if path in self.files else []


class SharedFile:
    """A file in which every thread has a place of its own: DuckDB seeks and reads from several at once."""

    def __init__(self, path: str) -> None:
        self._file, self._own = os.open(path, os.O_RDONLY), local()

    def seek(self, place: int) -> None:
        """Move this thread's place."""
        self._own.place = place

    def tell(self) -> int:
        """Return this thread's place."""
        return int(getattr(self._own, "place", 0))

    def read(self, size: int) -> bytes:
        """Read from this thread's place."""
        found = os.pread(self._file, size, self.tell())
        self._own.place = self.tell() + len(found)
        return found

    def close(self) -> None:
        """Close the file for all threads."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    __del__ = close  # DuckDB drops files as often as it closes them


def _flat(rows: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Return rows as CSV can hold them: lists and structs are text, and no text is what a spreadsheet would run."""
    columns = []
    for place, (name, kind) in enumerate(zip(rows.columns, rows.types, strict=True), 1):
        value = f"#{place}"  # two columns may have one name
        if kind.id in ("list", "array", "struct", "map", "union", "varchar"):
            text = f"cast({value} as varchar)"
            value = f"if(regexp_matches({text}, '^[=+@\t\r-]'), chr(39) || {text}, {text})"
        quoted = name.replace('"', '""')
        columns.append(f'{value} as "{quoted}"')
    return rows.project(", ".join(columns))


@contextmanager
def _errors_as_ours() -> Iterator[None]:
    try:
        yield
    except duckdb.OutOfMemoryException as problem:
        raise ArtifactError(f"{_short(problem)}. Raise runtime.memory_limit, or free space on the disk") from problem
    except duckdb.IOException as problem:
        raise ArtifactError(f"{_short(problem)}. kgqa status says whether an artifact is damaged") from problem
    except duckdb.ConversionException as problem:  # mostly an id of triples that is compared with a name
        raise QueryError(f"{_short(problem)}. Ids are numbers; the view facts has labels and names") from problem
    except duckdb.Error as problem:
        raise QueryError(_short(problem)) from problem
    except pa.ArrowException as problem:  # an interval, bits that are no text
        raise QueryError(f"a value cannot be written: {_short(problem)}. {CAST}") from problem


def _short(problem: Exception) -> str:
    """Return a message without the copy of the query that DuckDB draws under it."""
    text = " ".join(str(problem).partition("\nLINE ")[0].partition("\nPossible solutions")[0].split())
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"
