"""Build a graph artifact from triple files: parse in chunks, encode, deduplicate and sort in DuckDB, index.

Some files give a relation in both directions: ``plays_in_club`` and ``plays_in_club_inverse``. A graph stores every
triple once and walks it both ways, so a given inverse is no relation of its own: its triples are turned round, and its
label is the text of the relation walked backwards.
"""

from __future__ import annotations

import glob
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.config_base import Layout
from kgqa_core.errors import ArtifactError, InputError, shorten
from kgqa_core.graph import formats, input_files
from kgqa_core.graph.csr import SHARED_NAMES, build_csr, write_csr, write_string_indexes
from kgqa_core.graph.formats import NAME_COLUMNS, PLAIN, TRIPLE_COLUMNS, ChunkReport, open_format
from kgqa_core.types import MapTasks

if TYPE_CHECKING:
    import duckdb  # loaded by ``connect``: looking at a run needs none

BATCH_ROWS = 131_072
ROW_GROUP_ROWS = 1_048_576
NAMES_TRIED = 99  # lines of a .csv of names, whose delimiter is looked for


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """How a build works. None of it changes the entities, relations or triples; only shard_rows moves bytes."""

    map_chunks: MapTasks = map  # of chunks and other tasks
    chunk_bytes: int = 8 * 2**20  # of input per chunk
    shard_rows: int = 4 * 2**20  # triples per shard, at least, rounded up to a whole head
    memory_limit: str = "2GB"  # DuckDB's own; the process uses more


@dataclass(frozen=True, slots=True)
class GraphReport:
    """What a build found. All but the counts per relation is written to graph.json."""

    num_entities: int
    num_relations: int
    num_triples: int  # distinct
    num_duplicates: int  # exact repeats dropped; a triple and its given inverse are no repeats
    num_rows: int  # triple rows kept, repeats included
    num_blank: int  # blank and header lines
    num_named: int  # entities whose name came from the names file
    num_shared_names: int  # names that several entities have
    rejects: dict[str, int] = field(default_factory=dict)  # reason -> rows
    triples_per_relation: dict[str, int] = field(default_factory=dict)
    # Relation -> its inverse, where one is given: label, and distinct triples num_both, num_only_forward, _inverse.
    inverses: dict[str, dict[str, Any]] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)  # ENTITIES.kind -> entities, of RDF

    @property
    def num_rejects(self) -> int:
        """All rejected rows, of the triple file and the names file."""
        return sum(self.rejects.values())


def build_graph(
    path: Path | Sequence[Path],
    *,
    format: str,
    out_dir: Path,
    names: Path | None = None,
    max_reject_ratio: float = 0.001,
    inverse_suffix: str | None = None,
    layout: Layout = PLAIN,
    limits: BuildLimits = BuildLimits(),
) -> GraphReport:
    """Build the graph of ``path``, one file or several, in ``out_dir`` (see docs/own-data.md for the formats).

    ``names``: optional Parquet (label, name) or TSV file, of entities and relations. ``inverse_suffix``: what marks a
    relation as the inverse of another. ``layout``: which columns hold what. Raises InputError where a file is missing,
    unreadable, empty, or has a larger share of rejected rows than ``max_reject_ratio``.
    """
    paths = [path] if isinstance(path, Path) else list(path)
    for file in paths:
        input_files.require_file(file, what="graph file")
    headers = [(file, line.text) for file in paths if layout.header for line in formats.first_fields(file, "\t", False)]
    for file, header in headers:
        if header != headers[0][1]:
            raise InputError(f"{file}: its first line is not the header of {headers[0][0]}. Give all files it, or none")
    if names is not None:
        input_files.require_file(names, what="names file")
    for shard in out_dir.glob("triples-*.parquet"):  # of a killed build, which this one might not overwrite
        shard.unlink()
    with input_files.scratch_folder(out_dir / "parts") as parts:
        triples_of = partial(_parse, format=format, columns=TRIPLE_COLUMNS, limits=limits, layout=layout)
        files = [triples_of(file, parts=parts / str(number)) for number, file in enumerate(paths)]
        form, layout = _names_layout(names) if names else ("", PLAIN)
        named = _parse(names, form, NAME_COLUMNS, parts, limits, layout) if names else []
        for reports in (*files, named):
            num_rejects = sum(sum(report.rejects.values()) for report in reports)
            num_rows = num_rejects + sum(report.num_rows for report in reports)
            rejects = input_files.collect_rejects([reports])
            input_files.check_rejects(rejects, num_rejects=num_rejects, num_rows=num_rows, max_ratio=max_reject_ratio)
        triples = list(chain(*files))
        if not any(report.num_rows for report in triples):
            shown = ", ".join(map(str, paths))
            raise InputError(
                f"graph file: {shown} holds no triple. A line should look like: {open_format(format).example}"
            )
        if names and not any(report.num_rows for report in named):
            raise InputError(f"names file: {names} holds no name. A line should look like: label TAB name")
        input_files.write_rejects(input_files.collect_rejects([*files, named]), out_dir / "rejects.parquet")
        report = _write_graph(triples, named, out_dir, inverse_suffix, limits)
        if named and not report.num_named:
            _require_named_relation(named, out_dir)
        return report


def _names_layout(path: Path) -> tuple[str, Layout]:
    """Return format and layout of a file of names; a .csv has the delimiter that cuts most of its lines in two."""
    delimiter = "\t"
    if ".csv" in path.suffixes[-2:]:  # also .csv.gz
        cut = {sign: formats.first_fields(path, sign, quotes=True, most=NAMES_TRIED) for sign in "\t,;"}
        delimiter = max(cut, key=lambda sign: sum(len(line.fields) == 2 for line in cut[sign]))
    if path.suffix == ".parquet":
        return "parquet", Layout(delimiter=delimiter)
    return "tsv" if delimiter == "\t" else "csv", Layout(delimiter=delimiter)


def _parse(
    path: Path, format: str, columns: tuple[str, ...], parts: Path, limits: BuildLimits, layout: Layout = PLAIN
) -> list[ChunkReport]:
    parts.mkdir(exist_ok=True)
    chunks = formats.list_chunks(
        path, format=format, columns=columns, parts=parts, chunk_bytes=limits.chunk_bytes, layout=layout
    )
    return list(limits.map_chunks(open_format(format).parse, chunks))


def _require_named_relation(named: Sequence[ChunkReport], folder: Path) -> None:
    """Raise InputError where a names file that names no entity of a graph names no relation either.

    Not while DuckDB is open: what an error that ends the process still holds of it is printed as leaked.
    """
    relations = pq.read_table(folder / "relations.parquet")
    if relations["name"].equals(relations["label"]):
        last = next(report.chunk for report in reversed(named) if report.num_rows)  # the first line may be a header
        there, here = (pq.read_table(file)["label"][-1].as_py() for file in (last.part, folder / "entities.parquet"))
        raise InputError(
            f"names file: no label of {last.path} is in the graph. There it is {shorten(there)}, in the graph "
            f"{shorten(here)}. A line should be: label TAB name"
        )


def _write_graph(
    triples: list[ChunkReport],
    named: list[ChunkReport],
    out_dir: Path,
    inverse_suffix: str | None,
    limits: BuildLimits,
) -> GraphReport:
    """Write all files of the graph from the parts of its chunks."""
    entities = out_dir / "entities.parquet"
    parts = {
        "raw": [report.chunk.part for report in triples],
        "raw_name": [report.chunk.part for report in named],
        "raw_listed": [place for report in triples if (place := formats.listed_part(report.chunk.part)).is_file()],
    }
    with connect(limits.memory_limit, out_dir / "parts", parts) as connection:
        num_entities, num_named = _write_entities(connection, parts, entities)
        create_view(connection, "entity", [entities])
        shards, relations, inverses = _write_triples(connection, out_dir, limits.shard_rows, inverse_suffix)
        if named:
            given = "select label, arg_min(name, position) from raw_name join relation_id using (label) group by label"
            relations = with_names(relations, dict(connection.sql(given).fetchall()).get)
        ((num_shared_names,),) = connection.sql(SHARED_NAMES).fetchall()
    write_string_indexes(entities, out_dir)
    pq.write_table(relations, out_dir / "relations.parquet", compression="zstd")
    columns = [shards[name].to_numpy() for name in TRIPLE_COLUMNS]
    write_csr(build_csr(*columns, num_entities=num_entities, num_relations=relations.num_rows), out_dir)
    per_relation = dict(zip(relations["label"].to_pylist(), relations["num_triples"].to_pylist(), strict=True))
    num_rows = sum(report.num_rows for report in triples)
    report = GraphReport(
        num_entities=num_entities,
        num_relations=relations.num_rows,
        num_triples=shards.num_rows,
        num_duplicates=num_rows - shards.num_rows - sum(counts["num_both"] for counts in inverses.values()),
        num_rows=num_rows,
        num_blank=sum(report.num_blank for report in triples),
        num_named=num_named,
        num_shared_names=num_shared_names,
        rejects=dict(sorted(sum((Counter(r.rejects) for r in [*triples, *named]), Counter()).items())),
        triples_per_relation=per_relation,
        inverses=inverses,
    )
    write_facts(report, out_dir / "graph.json")
    return report


def _write_entities(
    connection: duckdb.DuckDBPyConnection, parts: Mapping[str, Sequence[Path]], out: Path
) -> tuple[int, int]:
    """Number the entities in byte order of their labels; write schemas.ENTITIES.

    Returns the number of entities and how many of them a name was given for. Of two names for one label the first
    in the file counts. Listed parts (see ``formats.listed_part``) bring entities without a triple, and names for
    those that the names file leaves without one, of two the first in byte order.
    """
    sql = connection.execute
    sql("create temp table entity_label as select head as label from raw union select tail from raw")
    sql("create temp table given_name (label varchar, name varchar)")
    if parts["raw_listed"]:
        sql("insert into entity_label select label from raw_listed where name is null except from entity_label")
    if parts["raw_name"]:
        sql(
            "insert into given_name select label, arg_min(name, position) from raw_name semi join entity_label "
            "using (label) group by label"
        )
    if parts["raw_listed"]:
        sql(
            "insert into given_name select label, min(name) from raw_listed semi join entity_label using (label) "
            "anti join given_name using (label) where name is not null group by label"
        )
    entities = connection.sql(
        "select label, coalesce(name, label) as name, null as kind, null as datatype, null as language "
        "from entity_label left join given_name using (label) order by label"
    )
    ((num_named,),) = connection.sql("select count(*) from given_name").fetchall()
    return write_ordered(entities, schemas.ENTITIES, out, numbered=True), int(num_named)


def _write_triples(
    connection: duckdb.DuckDBPyConnection, folder: Path, shard_rows: int, inverse_suffix: str | None
) -> tuple[pa.Table, pa.Table, dict[str, dict[str, Any]]]:
    """Encode, deduplicate and sort the triples; write ``triples-NNNN.parquet``, each a range of heads.

    Triples of a given inverse (``find_inverses``) are turned round. Returns the triples, the relations
    (schemas.RELATIONS), and by label the counts of those that have an inverse.
    """
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
    ordered = connection.sql("select head, relation, tail from triple order by head, relation, tail")
    triples = ordered.to_arrow_table().cast(schemas.TRIPLES).combine_chunks()
    heads, start, number = triples["head"].to_numpy(), 0, 0
    while start < len(heads):
        last = heads[min(start + shard_rows, len(heads)) - 1]
        end = int(np.searchsorted(heads, last, side="right"))
        pq.write_table(triples.slice(start, end - start), folder / f"triples-{number:04d}.parquet", compression="zstd")
        start, number = end, number + 1
    counts = connection.sql(
        "select count(*) as n, count(*) filter (forward and inverse) as num_both, "
        "count(*) filter (not inverse) as num_only_forward, count(*) filter (not forward) as num_only_inverse "
        "from triple group by relation order by relation"
    ).to_arrow_table()
    inverses = [inverse_of.get(label) for label in labels]
    relations = pa.table([list(ids.values()), labels, labels, counts["n"], inverses], schema=schemas.RELATIONS)
    found = zip(labels, inverses, counts.drop_columns("n").to_pylist(), strict=True)
    counted = {label: {"label": inverse, **row} for label, inverse, row in found if inverse is not None}
    return triples, relations, counted


def with_names(relations: pa.Table, name_of: Callable[[str], str | None]) -> pa.Table:
    """Return relations (schemas.RELATIONS) by the names of their labels; those that share a name have it and label."""
    labels = relations["label"].to_pylist()
    names = [name_of(label) or label for label in labels]
    taken = Counter(name for pair in zip(labels, names, strict=True) for name in set(pair))
    unique = [name if taken[name] == 1 else f"{name} ({label})" for label, name in zip(labels, names, strict=True)]
    return relations.set_column(2, schemas.RELATIONS.field("name"), [unique])


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


def write_facts(report: Any, path: Path) -> None:
    """Write a report as JSON without its counts per relation, maybe thousands, which relations.parquet has."""
    facts = {name: value for name, value in asdict(report).items() if name != "triples_per_relation"}
    path.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", "utf-8")


@contextmanager
def connect(
    memory_limit: str, temp_directory: Path, views: Mapping[str, Sequence[Path]]
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open an in-memory DuckDB connection. Its failures (out of memory or disk) leave as ArtifactError.

    ``views``: name in queries -> the Parquet files that it stands for; one without files is left out.
    """
    import duckdb

    try:
        config: dict[str, Any] = {"memory_limit": memory_limit, "temp_directory": str(temp_directory)}
        with signals_heeded(), duckdb.connect(config=config) as connection:
            for name, paths in views.items():
                if paths:
                    create_view(connection, name, paths)
            yield connection
    except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
        raise ArtifactError(
            f"building the graph failed with memory_limit {memory_limit!r}: {shorten(str(error))}. "
            "Raise runtime.memory_limit or free space on the disk, then run again."
        ) from error


@contextmanager
def signals_heeded() -> Iterator[None]:
    """Let a signal raise what its handler raises: DuckDB calls the handler, but raises a RuntimeError of its own."""
    caught: list[BaseException] = []

    def note(number: int, frame: FrameType | None) -> None:
        try:
            usual[number](number, frame)
        except BaseException as raised:
            caught.append(raised)
            raise

    is_main = threading.current_thread() is threading.main_thread()  # no other gets signals
    handlers = {number: signal.getsignal(number) for number in (signal.valid_signals() if is_main else ())}
    usual: dict[int, Callable[[int, FrameType | None], Any]]
    usual = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in usual:
        signal.signal(number, note)
    try:
        yield
    except RuntimeError:
        if caught:
            raise caught[-1] from None
        raise
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def create_view(connection: duckdb.DuckDBPyConnection, name: str, paths: Iterable[Path]) -> None:
    """Call the rows of some Parquet files ``name`` in queries; a ``*``, ``?`` or ``[`` of their paths is no pattern."""
    connection.read_parquet([glob.escape(str(path)) for path in paths]).create_view(name, replace=True)


def write_ordered(
    rows: duckdb.DuckDBPyRelation, schema: pa.Schema, out: Path, *, numbered: bool = False, **options: Any
) -> int:
    """Write ordered rows, in row groups that depend on them alone; return how many there are.

    ``numbered``: the schema has a first column more, which gets the numbers of the rows. ``options``: pyarrow's, of
    Parquet files.
    """
    total = 0
    with pq.ParquetWriter(out, schema, **{"compression": "zstd", **options}) as writer:
        for table in input_files.rebatch(rows.to_arrow_reader(BATCH_ROWS), ROW_GROUP_ROWS):
            if numbered:
                ids = pa.array(np.arange(total, total + table.num_rows, dtype=np.int32))
                table = table.add_column(0, schema.field(0), ids)
            writer.write_table(table.cast(schema))
            total += table.num_rows
    return total
