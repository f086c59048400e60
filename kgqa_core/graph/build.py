"""Build a graph artifact from triple files: parse in chunks, encode, deduplicate, sort, index."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.errors import InputError
from kgqa_core.graph.csr import build_csr, write_csr
from kgqa_core.graph.formats import (
    NAME_COLUMNS,
    TRIPLE_COLUMNS,
    ChunkReport,
    list_chunks,
    listed_part,
    open_format,
    require_file,
)
from kgqa_core.graph.rejects import check_reject_ratio, collect_rejects, write_rejects
from kgqa_core.graph.shards import InverseCounts, connect, write_entities, write_triples
from kgqa_core.graph.strings import write_string_indexes

MapTasks = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """How a build works. None of it changes the entities, relations or triples; only shard_rows moves bytes."""

    map_chunks: MapTasks = map  # how chunks and other tasks are mapped; ``fan_out.fan_out`` gives one over Dask
    chunk_bytes: int = 8 * 2**20  # of input per chunk
    shard_rows: int = 4 * 2**20  # triples per shard, at least, rounded up to a whole head
    memory_limit: str = "2GB"  # DuckDB's own; the process uses more
    temp_directory: Path | None = None  # where DuckDB spills; None: inside the output folder


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
    inverses: dict[str, InverseCounts] = field(default_factory=dict)  # relation -> its inverse, where one is given
    kinds: dict[str, int] = field(default_factory=dict)  # ENTITIES.kind -> entities, where the format tells

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
    limits: BuildLimits = BuildLimits(),
) -> GraphReport:
    """Build the graph of ``path``, one file or several, in ``out_dir`` (see docs/own-data.md for the formats).

    ``names``: optional Parquet (label, name) or TSV file. ``inverse_suffix``: what marks a relation as the inverse of
    another (see ``shards``). Raises InputError where a file is missing, unreadable, empty, or has a larger share of
    rejected rows than ``max_reject_ratio``.
    """
    paths = [path] if isinstance(path, Path) else list(path)
    for each in paths:
        require_file(each, what="graph file")
    if names is not None:
        require_file(names, what="names file")
        names_format = "parquet" if names.suffix == ".parquet" else "tsv"
    parts = out_dir / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    for shard in out_dir.glob("triples-*.parquet"):  # of a killed build, which this one might not overwrite
        shard.unlink()
    parts.mkdir(parents=True)
    try:
        files = [_parse(each, format, TRIPLE_COLUMNS, parts / str(number), limits) for number, each in enumerate(paths)]
        triples = [report for reports in files for report in reports]
        named = [] if names is None else _parse(names, names_format, NAME_COLUMNS, parts, limits)
        for reports in (*files, named):
            check_reject_ratio(reports, max_ratio=max_reject_ratio, key="dataset.graph.max_reject_ratio")
        if not any(report.num_rows for report in triples):
            shown = ", ".join(map(str, paths))
            raise InputError(
                f"graph file: {shown} holds no triple. A line should look like: {open_format(format).example}"
            )
        write_rejects(collect_rejects([*files, named]), out_dir / "rejects.parquet")
        return _write_graph(triples, named, out_dir, inverse_suffix, limits)
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def _parse(path: Path, format: str, columns: tuple[str, ...], parts: Path, limits: BuildLimits) -> list[ChunkReport]:
    parts.mkdir(exist_ok=True)
    # A list, so that whoever maps can tell how much of it is done; 400 GB of text are 50,000 small records.
    chunks = list(list_chunks(path, format=format, columns=columns, parts=parts, chunk_bytes=limits.chunk_bytes))
    return list(limits.map_chunks(open_format(format).parse, chunks))


def _write_graph(
    triples: list[ChunkReport],
    named: list[ChunkReport],
    out_dir: Path,
    inverse_suffix: str | None,
    limits: BuildLimits,
) -> GraphReport:
    spill = limits.temp_directory or out_dir / "parts"
    entities = out_dir / "entities.parquet"
    with connect(memory_limit=limits.memory_limit, temp_directory=spill) as connection:
        num_entities, num_named = write_entities(
            connection,
            parts=[report.chunk.part for report in triples],
            name_parts=[report.chunk.part for report in named],
            listed_parts=[place for report in triples if (place := listed_part(report.chunk.part)).is_file()],
            out=entities,
        )
        relations, inverses = write_triples(
            connection,
            entities=entities,
            folder=out_dir,
            shard_rows=limits.shard_rows,
            inverse_suffix=inverse_suffix,
        )
    pq.write_table(relations, out_dir / "relations.parquet", compression="zstd")
    num_shared_names = _write_indexes(out_dir, num_entities, relations.num_rows)
    per_relation = dict(zip(relations["label"].to_pylist(), relations["num_triples"].to_pylist(), strict=True))
    num_rows, num_triples = sum(report.num_rows for report in triples), sum(per_relation.values())
    report = GraphReport(
        num_entities=num_entities,
        num_relations=relations.num_rows,
        num_triples=num_triples,
        num_duplicates=num_rows - num_triples - sum(counts.num_both for counts in inverses.values()),
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


def write_facts(report: Any, path: Path) -> None:
    """Write a report as JSON without its counts per relation.

    These stand in relations.parquet, and thousands of them would be read whenever the graph is opened.
    """
    facts = {name: value for name, value in asdict(report).items() if name != "triples_per_relation"}
    path.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _write_indexes(out_dir: Path, num_entities: int, num_relations: int) -> int:
    """Write the CSR and the string indexes; return how many names several entities share."""
    shards = pa.concat_tables([pq.read_table(shard) for shard in sorted(out_dir.glob("triples-*.parquet"))])
    columns = [shards[name].to_numpy() for name in TRIPLE_COLUMNS]
    write_csr(build_csr(*columns, num_entities=num_entities, num_relations=num_relations), out_dir)
    return write_string_indexes(out_dir / "entities.parquet", out_dir)
