"""Which labels of a dump the topics reach: DuckDB's semi-joins of what was reached so far with all triples, per hop.

A task is a query over a group of files, and its result is a file. Nothing that is found depends on how files are
grouped or in which order tasks run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import written_whole
from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.graph.build import BuildLimits, connect, create_view, write_ordered
from kgqa_core.graph.dump_rows import LITERAL
from kgqa_core.profiles import MID

if TYPE_CHECKING:
    import duckdb

GROUP_ROWS = 2**25  # rows of the files that one task reads, about: it builds a table of what it looks up
# By format, what is a label and so no name.
IDS = {"freebase": MID, "wikidata": r"[PQ][1-9][0-9]*", "rdf": r"[A-Za-z][A-Za-z0-9+.-]*://\S+"}
NODES = pa.schema([("id", pa.int32()), ("label", pa.string()), ("leave", pa.int8())])


@dataclass(frozen=True, slots=True)
class Query:
    """A query over some Parquet files, and where its rows go."""

    sql: str
    views: dict[str, tuple[Path, ...]]  # name in the query -> files
    out: Path
    limits: tuple[str, Path]  # memory limit of DuckDB, folder to spill to


def run_query(query: Query) -> Path:
    """Write the rows of a query to its Parquet file."""
    with connect(*query.limits, query.views) as connection, written_whole(query.out) as out:
        connection.sql(query.sql).write_parquet(str(out), compression="lz4")
    return query.out


class Closure:
    """What is known of a closure: DuckDB's tables ``reached`` and ``hub``, and files in a work folder."""

    def __init__(
        self, dumps: Sequence[Path], work: Path, connection: duckdb.DuckDBPyConnection, limits: BuildLimits
    ) -> None:
        self.dumps, self.work, self.connection, self.limits = dumps, work, connection, limits
        self.files = {kind: _files(dumps, kind) for kind in ("triples", "types", "names")}
        self.relations = sorted({label for dump in dumps for label in _read_relations(dump)}, key=str.encode)
        self.num_repeats = 0  # under a cap
        self.kept: list[Path] = []  # under a cap: files of triples, with the hop that walked them
        self._num_files = 0
        connection.execute(
            "create temp table reached (label varchar, level tinyint, leave tinyint); create temp table hub "
            "(label varchar, relation varchar, backward bool, hop int, degree bigint, kept bigint)"
        )
        if not any(pq.read_metadata(path).num_rows for path in self.files["triples"]):
            shown = ", ".join(str(dump) for dump in dumps) or "no folder given"
            raise InputError(
                f"dump: {shown}: no triple was kept. Were all relations taken for noise, or is it another dump?"
            )

    def new_file(self, stem: str) -> Path:
        """Return where a file of the work folder goes."""
        self._num_files += 1
        return self.work / f"{stem}-{self._num_files:05d}"

    def queries(self, kind: str | Sequence[Path], sql: str, **shared: Path) -> list[Query]:
        """Return a query for each group of files of about GROUP_ROWS rows, which is its view ``part``."""
        groups: list[list[Path]] = []
        room = 0
        for path in self.files[kind] if isinstance(kind, str) else kind:
            if room <= 0:
                groups.append([])
                room = GROUP_ROWS
            groups[-1].append(path)
            room -= pq.read_metadata(path).num_rows
        views = {name: (path,) for name, path in shared.items()}
        limits = (self.limits.memory_limit, self.work)
        return [Query(sql, {"part": tuple(group), **views}, self.new_file("found"), limits) for group in groups]

    def each(self, kind: str, sql: str, **shared: Path) -> None:
        """Run a query over each group of files; its rows are then the view ``found``."""
        found = list(self.limits.map_chunks(run_query, self.queries(kind, sql, **shared)))
        create_view(self.connection, "found", found)

    def save(self, sql: str) -> Path:
        """Write the rows of a query over the tables to a file."""
        path = self.new_file("table")
        self.connection.sql(sql).write_parquet(str(path), compression="lz4")
        return path

    def count(self, sql: str) -> int:
        """Return the one number that a query gives."""
        return int(self.connection.sql(sql).fetchall()[0][0])

    def reach_all(self) -> list[int]:
        """Reach every node of every triple; return that no hop made a pass."""
        self.each("triples", "select distinct unnest([head, tail]) as label from part")
        self.connection.execute("insert into reached select distinct label, 0, 1 from found")
        return [0, 1]

    def walk(self, topics: Sequence[str], hops: int, cvt_is_hop: bool, cap: int | None) -> list[int]:
        """Reach what lies within ``hops`` steps of the topics; return the passes over the dump per hop, 0 first.

        ``leave`` of a node is the hop that walks its triples. Where CVTs do not count, those among the nodes that are
        new are walked at once, in passes of their own, until no new CVT is reached.
        """
        if not topics:
            raise InputError("topics: the questions name none, so no part of the dump can be walked from them")
        sql = self.connection.execute
        self.connection.register("topic", pa.table({"label": pa.array(sorted(set(topics)), pa.string())}))
        sql("create or replace temp table leaving as from topic")
        passes = [0]
        for hop in range(1, hops + 1):
            passes.append(0)
            while self.count("select count(*) from leaving"):
                passes[-1] += 1
                first = sum(passes) == 1
                if cap is None:
                    self._reach(both_ends=first)
                else:
                    self._reach_capped(cap, hop)
                if first:
                    sql("insert into reached select label, 0, 1 from topic semi join found using (label)")
                    if not self.count("select count(*) from reached"):
                        shown = ", ".join(sorted(set(topics), key=str.encode)[:5]) or "none given"
                        raise InputError(
                            f"topics: none of {len(set(topics))} ({shown}) is in a triple of the dump. Are they labels "
                            'as the dump has them, such as "m.0abc"?'
                        )
                new = "select distinct label from found anti join reached using (label)"
                sql(f"create or replace temp table new as {new}")
                if cvt_is_hop:
                    sql("truncate leaving")
                else:
                    self._leave_cvts()
                leave = f"if(label in (from leaving), {hop}, {hop + 1})"
                sql(f"insert into reached select label, {hop}, {leave} from new")
            sql(f"insert into leaving select label from reached where leave = {hop + 1}")
        return passes

    def _reach(self, *, both_ends: bool) -> None:
        """Find the other ends, or both ends, of the triples that have an end in ``leaving``."""
        ends = "unnest([head, tail])" if both_ends else "if(inside, tail, head)"
        reached = "inside or tail_inside" if both_ends else "inside <> tail_inside"
        self.each(
            "triples",
            f"select distinct {ends} as label from (select head, tail, head in (from frontier) as inside, "
            f"tail in (from frontier) as tail_inside from part) where {reached}",
            frontier=self.save("from leaving"),
        )

    def _reach_capped(self, cap: int, hop: int) -> None:
        """Find the ends of the first ``cap`` triples of each group; keep these triples, and list what was cut."""
        self.each(
            "triples",
            "select label, relation, backward, other, count(*) as times from (select head as label, relation, "
            "false as backward, tail as other from part where head in (from frontier) union all select tail, relation, "
            "true, head from part where tail in (from frontier)) group by all",
            frontier=self.save("from leaving"),
        )
        group = "over (partition by label, relation, backward"
        self.connection.execute(
            f"create or replace temp table edge as select *, row_number() {group} order by other) as place, "
            f"count(*) {group}) as degree from "
            "(select label, relation, backward, other, sum(times) as times from found group by all)"
        )
        self.num_repeats += self.count("select coalesce(sum(times) - count(*), 0) from edge")
        self.connection.execute(
            f"insert into hub select label, relation, backward, {hop}, degree, {cap} from edge "
            f"where place = 1 and degree > {cap}"
        )
        kept = (
            "select if(backward, other, label) as head, relation, if(backward, label, other) as tail, "
            f"{hop}::tinyint as hop from edge where place <= {cap}"
        )
        self.kept.append(self.save(kept))
        ends = self.connection.sql(f"select unnest([label, other]) as label from edge where place <= {cap}")
        ends.create_view("found", replace=True)

    def _leave_cvts(self) -> None:
        """Let the CVTs among ``new`` be left at once."""
        wanted = self.save(f"select label from new where regexp_full_match(label, '{MID}')")
        self.each("names", "select distinct entity as label from part where entity in (from wanted)", wanted=wanted)
        create_view(self.connection, "wanted", [wanted])
        self.connection.execute("create or replace temp table leaving as from wanted anti join found using (label)")

    def number(self) -> tuple[Path, int]:
        """Number the reached labels in byte order; return a file of NODES and how many there are."""
        path = self.new_file("nodes")
        rows = self.connection.sql("select label, leave from reached order by label")
        return path, write_ordered(rows, NODES, path, numbered=True, compression="lz4", use_dictionary=False)


def _files(dumps: Sequence[Path], kind: str) -> list[Path]:
    return [path for dump in dumps for path in sorted(dump.glob(f"{kind}-*.parquet"))]


def _read_relations(dump: Path) -> list[str]:
    try:
        return list(pq.read_table(dump / "relations.parquet", columns=["label"])["label"].to_pylist())
    except (OSError, pa.ArrowInvalid) as error:
        raise ArtifactError(f"{dump} holds no parsed dump ({error}). Build it again: kgqa build CONF") from error


def labels_named(
    names: Sequence[str], dumps: Sequence[Path], *, ids: str = MID, memory_limit: str, temp_directory: Path
) -> dict[str, list[str]]:
    """Return, of the texts that are names or aliases in a dump, or else literals, the labels that bear them, sorted.

    A text that is one of ``ids``, a pattern, is taken for no name: where all are, as in WebQSP, the parts of a dump
    need not be read. Keys of Freebase (``/en/ada_lovelace``) are not kept of a dump, but they are spelled as the names
    that they are made of. Triples, which are most of a dump, are read only where a text is no name.
    """
    wanted = sorted(name for name in set(names) if not re.fullmatch(ids, name))
    spelled = "'/en/' || trim(regexp_replace(lower(name), '[^a-z0-9]+', '_', 'g'), '_')"
    has_keys = any(name.startswith("/en/") for name in wanted)
    keys = f" union all select {spelled}, entity from part" if has_keys else ""
    literals = f"select regexp_extract(tail, '{LITERAL}', 1) as name, tail as entity from part where tail[1] = '\"'"
    found: dict[str, list[str]] = {}
    for kind, called in (("names", f"select name, entity from part{keys}"), ("triples", literals)):
        left = [name for name in wanted if name not in found and not (kind == "triples" and name.startswith("/en/"))]
        if left and (parts := _files(dumps, kind)):
            with connect(memory_limit, temp_directory, {"part": parts}) as connection:
                connection.register("wanted", pa.table({"name": left}))
                query = "select name, list(distinct entity order by entity) from called semi join wanted using (name)"
                found |= connection.sql(f"with called as ({called}) {query} group by name").fetchall()
    return dict(sorted(found.items()))
