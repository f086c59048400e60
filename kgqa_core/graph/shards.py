"""From parts (strings) to the graph at rest: dictionaries and sorted triple shards, made by DuckDB.

Some files give a relation in both directions: ``plays_in_club`` and ``plays_in_club_inverse``. A graph stores every
triple once and walks it both ways, so a given inverse is no relation of its own: its triples are turned round, and its
label is the text of the relation walked backwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.errors import ArtifactError, shorten

BATCH_ROWS = 131_072
ROW_GROUP_ROWS = 1_048_576


@dataclass(frozen=True, slots=True)
class InverseCounts:
    """How one relation and its inverse came, in distinct triples."""

    label: str  # of the inverse
    num_both: int  # given forwards and as inverse
    num_only_forward: int
    num_only_inverse: int


def find_inverses(labels: Collection[str], suffix: str | None) -> dict[str, str]:
    """Return given inverse -> the relation that it is the inverse of.

    ``X + suffix`` is the inverse of ``X`` where the file has ``X`` and ``X`` is no inverse itself; else it is an
    ordinary relation. ``suffix=None``: there are none.
    """
    found: dict[str, str] = {}
    if suffix:
        for label in sorted(labels, key=len):  # a base before what is longer by the suffix
            base = label.removesuffix(suffix)
            if base != label and base in labels and base not in found:
                found[label] = base
    return found


@contextmanager
def connect(
    *, memory_limit: str, temp_directory: Path, views: Mapping[str, Sequence[Path]] | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open an in-memory DuckDB connection. Its failures (out of memory or disk) leave as ArtifactError.

    ``views``: name in queries -> the Parquet files that it stands for.
    """
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory_limit,
        "temp_directory": str(temp_directory),
    }
    try:
        with duckdb.connect(config=settings) as connection:
            for name, paths in (views or {}).items():
                connection.read_parquet([str(path) for path in paths]).create_view(name)
            yield connection
    except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
        raise ArtifactError(
            f"building the graph failed with memory_limit {memory_limit!r}: {shorten(str(error))}. "
            "Raise runtime.memory_limit or free space on the disk, then run again."
        ) from error


def write_entities(
    connection: duckdb.DuckDBPyConnection,
    *,
    parts: list[Path],
    name_parts: list[Path],
    out: Path,
    listed_parts: Sequence[Path] = (),
) -> tuple[int, int]:
    """Number the entities in byte order of their labels; write schemas.ENTITIES to ``out``.

    Returns the number of entities and how many of them a name was given for. Of two names for one label the first
    in the file counts. ``listed_parts`` (see ``formats.listed_part``) bring entities without a triple, and names for
    those that ``name_parts`` leave without one, of two the first in byte order.
    """
    connection.read_parquet([str(part) for part in parts]).create_view("raw")
    connection.execute("create temp table entity_label as select head as label from raw union select tail from raw")
    connection.execute("create temp table listed (label varchar, name varchar)")
    if listed_parts:
        connection.read_parquet([str(part) for part in listed_parts]).insert_into("listed")
        connection.execute(
            "insert into entity_label select label from listed where name is null except from entity_label"
        )
    connection.execute("create temp table given_name (label varchar, name varchar)")
    if name_parts:
        connection.read_parquet([str(part) for part in name_parts]).create_view("raw_name")
        connection.execute(
            "insert into given_name select label, arg_min(name, position) from raw_name semi join entity_label "
            "using (label) group by label"
        )
    connection.execute(
        "insert into given_name select label, min(name) from listed semi join entity_label using (label) "
        "anti join given_name using (label) where name is not null group by label"
    )
    reader = _stream(
        connection,
        "select label, coalesce(name, label) as name from entity_label left join given_name using (label) "
        "order by label",
    )
    total = 0
    with pq.ParquetWriter(out, schemas.ENTITIES, compression="zstd") as writer:
        for table in rebatch(reader, ROW_GROUP_ROWS):
            ids = pa.array(np.arange(total, total + table.num_rows, dtype=np.int32))
            kinds = pa.nulls(table.num_rows, pa.string())
            writer.write_table(pa.table([ids, table["label"], table["name"], kinds], schema=schemas.ENTITIES))
            total += table.num_rows
    return total, _count(connection, "given_name")


def write_triples(
    connection: duckdb.DuckDBPyConnection,
    *,
    entities: Path,
    folder: Path,
    shard_rows: int,
    inverse_suffix: str | None = None,
) -> tuple[pa.Table, dict[str, InverseCounts]]:
    """Encode, deduplicate and sort the triples; write ``triples-NNNN.parquet``, each a range of heads.

    Needs the view ``raw`` of ``write_entities``. Triples of a given inverse (``find_inverses``) are turned
    round. Returns the relations (schemas.RELATIONS), and by label the counts of those that have an inverse.
    """
    connection.read_parquet([str(entities)]).create_view("entity")
    given: list[str] = connection.sql("select distinct relation from raw").to_arrow_table()["relation"].to_pylist()
    base_of = find_inverses(set(given), inverse_suffix)
    labels = sorted(set(given) - set(base_of), key=str.encode)
    inverse_of = {base: inverse for inverse, base in base_of.items()}
    ids = {label: number for number, label in enumerate(labels)}
    relation_id = {
        "label": given,
        "relation_id": pa.array([ids[base_of.get(label, label)] for label in given], pa.int32()),
        "turned": [label in base_of for label in given],
    }
    connection.register("relation_id", pa.table(relation_id))
    connection.execute(
        "create temp table triple as select if(turned, t.entity_id, h.entity_id) as head, r.relation_id as relation, "
        "if(turned, h.entity_id, t.entity_id) as tail, bool_or(not turned) as forward, bool_or(turned) as inverse "
        "from raw join entity h on raw.head = h.label join relation_id r on raw.relation = r.label "
        "join entity t on raw.tail = t.label group by all"
    )
    reader = _stream(connection, "select head, relation, tail from triple order by head, relation, tail")
    for number, table in enumerate(cut_at_heads(reader, shard_rows)):
        pq.write_table(table.cast(schemas.TRIPLES), folder / f"triples-{number:04d}.parquet", compression="zstd")
    counts = connection.sql(
        "select count(*) as n, count(*) filter (forward and inverse) as num_both, "
        "count(*) filter (not inverse) as num_only_forward, count(*) filter (not forward) as num_only_inverse "
        "from triple group by relation order by relation"
    ).to_arrow_table()
    inverses = [inverse_of.get(label) for label in labels]
    relations = pa.table([list(ids.values()), labels, counts["n"], inverses], schema=schemas.RELATIONS)
    rows = counts.drop_columns("n").to_pylist()
    found = zip(labels, inverses, rows, strict=True)
    return relations, {label: InverseCounts(inverse, **row) for label, inverse, row in found if inverse is not None}


def _stream(connection: duckdb.DuckDBPyConnection, query: str) -> pa.RecordBatchReader:
    return connection.sql(query).to_arrow_reader(BATCH_ROWS)


def _count(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    return int(connection.sql(f"select count(*) from {table}").fetchall()[0][0])


def rebatch(reader: pa.RecordBatchReader, rows: int) -> Iterator[pa.Table]:
    """Yield tables of exactly ``rows`` rows (the last may be shorter), however the reader cuts its batches."""
    held = reader.schema.empty_table()
    for batch in reader:
        held = pa.concat_tables([held, pa.Table.from_batches([batch])])
        while held.num_rows >= rows:
            yield held.slice(0, rows).combine_chunks()
            held = held.slice(rows)
    if held.num_rows:
        yield held.combine_chunks()


def cut_at_heads(reader: pa.RecordBatchReader, rows: int) -> Iterator[pa.Table]:
    """Yield tables of at least ``rows`` rows (the last may be shorter) that end where the head changes.

    The cuts depend on the sorted rows alone, not on the reader's batches.
    """
    held = reader.schema.empty_table()
    for batch in reader:
        held = pa.concat_tables([held, pa.Table.from_batches([batch])])
        while held.num_rows > rows:
            tail = held["head"].slice(rows - 1).to_numpy()
            changes = np.flatnonzero(tail[1:] != tail[:-1])
            if not len(changes):
                break
            cut = rows + int(changes[0])
            yield held.slice(0, cut).combine_chunks()
            held = held.slice(cut)
    if held.num_rows:
        yield held.combine_chunks()
