"""Cutting input files into chunks that are parsed apart from each other."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.errors import InputError, shorten
from kgqa_core.graph.csr import build_csr, write_csr
from kgqa_core.graph.formats import (
    NAME_COLUMNS,
    ROG_COLUMNS,
    TRIPLE_COLUMNS,
    Chunk,
    ChunkReport,
    FileFormat,
    line_cuts,
    open_parquet,
    parse_chunk,
    require_file,
)
from kgqa_core.graph.gzip_files import unpack
from kgqa_core.graph.kg import write_string_indexes
from kgqa_core.graph.nsm import listed_part, parse_nsm_chunk
from kgqa_core.graph.rdf import is_by_line, parse_rdf_chunk
from kgqa_core.graph.rejects import check_reject_ratio, collect_rejects, write_rejects
from kgqa_core.graph.rog import read_rog_chunk
from kgqa_core.graph.shards import InverseCounts, connect, write_entities, write_triples


def list_chunks(
    path: Path, *, format: FileFormat, columns: tuple[str, ...], parts: Path, chunk_bytes: int
) -> Iterator[Chunk]:
    """Cut ``path`` into slices of about ``chunk_bytes`` that end at line ends (Parquet: at row groups).

    A gzip of lines is unpacked into ``parts`` first. RDF that cannot be cut at line ends is one slice. Raises
    InputError when a Parquet file is none, or lacks one of the columns.
    """
    if format == "rdf":
        cuts = line_cuts(path, chunk_bytes) if is_by_line(path) else iter([(0, path.stat().st_size)])
    elif format == "parquet":
        cuts = _row_group_cuts(path, columns, chunk_bytes)
    elif format == "rog" and path.suffix == ".parquet":
        cuts = _row_cuts(path, chunk_bytes)
    else:
        path = _plain(path, format, parts)
        cuts = line_cuts(path, chunk_bytes)
    for number, (start, end) in enumerate(cuts):
        part = parts / f"{columns[0]}-{number:06d}.parquet"
        yield Chunk(path=path, format=format, columns=columns, start=start, end=end, part=part)


def _plain(path: Path, format: FileFormat, parts: Path) -> Path:
    if path.suffix != ".gz":
        return path
    if format in ("nsm", "rog"):
        raise InputError(f"{path}: question files are not read from a gzip. Unpack it: gunzip --keep {path.name}")
    return unpack(path, parts)


def _row_group_cuts(path: Path, columns: tuple[str, ...], chunk_bytes: int) -> Iterator[tuple[int, int]]:
    file = _open_with(path, columns)
    start, taken = 0, 0
    for group in range(file.num_row_groups):
        taken += file.metadata.row_group(group).total_byte_size
        if taken >= chunk_bytes or group + 1 == file.num_row_groups:
            yield start, group + 1
            start, taken = group + 1, 0


def _row_cuts(path: Path, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut inside row groups: a row that holds a whole subgraph may take 100 kB, a row group a gigabyte of Python."""
    metadata = _open_with(path, ROG_COLUMNS).metadata
    start = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        end = start + group.num_rows
        step = max(1, group.num_rows * chunk_bytes // max(group.total_byte_size, 1))
        yield from ((first, min(first + step, end)) for first in range(start, end, step))
        start = end


def _open_with(path: Path, columns: tuple[str, ...]) -> pq.ParquetFile:
    file = open_parquet(path)
    missing = [column for column in columns if column not in file.schema_arrow.names]
    if missing:
        raise InputError(
            f"{path}: no column {missing[0]!r}; the columns are {shorten(file.schema_arrow.names)}. "
            f"A Parquet file needs the columns {', '.join(columns)}: rename them and run again."
        )
    return file


# ------ Build a graph artifact from a triple file: parse in chunks, encode, deduplicate, sort, index.


MapChunks = Callable[[Callable[[Chunk], ChunkReport], Iterable[Chunk]], Iterable[ChunkReport]]


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """How a build works. None of it changes the entities, relations or triples; only shard_rows moves bytes."""

    map_chunks: MapChunks = map  # how chunks are mapped; ``fan_out.fan_out`` gives one over Dask
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
    format: FileFormat,
    out_dir: Path,
    names: Path | None = None,
    max_reject_ratio: float = 0.001,
    inverse_suffix: str | None = None,
    limits: BuildLimits = BuildLimits(),
) -> GraphReport:
    """Build the graph of ``path``, one file or several, in ``out_dir`` (see docs/own-data.md for the formats).

    ``names``: optional Parquet (label, name) or TSV file. ``inverse_suffix``: what marks a relation as the inverse of
    another (see ``inverses``). Raises InputError where a file is missing, unreadable, empty, or has a larger share of
    rejected rows than ``max_reject_ratio``.
    """
    paths = [path] if isinstance(path, Path) else list(path)
    for each in paths:
        require_file(each, what="graph file")
    if names is not None:
        require_file(names, what="names file")
    parts = out_dir / "parts"
    _clear(out_dir, parts)
    parts.mkdir(parents=True)
    try:
        files = [_parse(each, format, TRIPLE_COLUMNS, parts / str(number), limits) for number, each in enumerate(paths)]
        triples = [report for reports in files for report in reports]
        named = [] if names is None else _parse(names, _names_format(names), NAME_COLUMNS, parts, limits)
        for reports in (*files, named):
            check_reject_ratio(reports, max_ratio=max_reject_ratio, key="dataset.graph.max_reject_ratio")
        if not any(report.num_rows for report in triples):
            shown = ", ".join(map(str, paths))
            raise InputError(f"graph file: {shown} holds no triple. A line should look like: {EXAMPLES[format]}")
        write_rejects(collect_rejects([*files, named]), out_dir / "rejects.parquet")
        return _write_graph(triples, named, out_dir, inverse_suffix, limits)
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def _clear(out_dir: Path, parts: Path) -> None:
    """Remove what a killed build left and this one might not overwrite."""
    shutil.rmtree(parts, ignore_errors=True)
    for shard in out_dir.glob("triples-*.parquet"):
        shard.unlink()


EXAMPLES: dict[FileFormat, str] = {
    "wikimovies": "Rear Window|directed_by|Alfred Hitchcock",
    "tsv": "head<TAB>relation<TAB>tail",
    "csv": 'head,relation,"tail, with a comma"',
    "parquet": "columns head, relation, tail",
    "nsm": '{"question": "…", "entities": ["m.1"], "answers": [], "subgraph": {"tuples": [["m.1", "r", "m.2"]]}}',
    "rog": '{"question": "…", "q_entity": ["Ada"], "a_entity": ["London"], "graph": [["Ada", "born_in", "London"]]}',
    "rdf": "<http://example.org/Ada> <http://example.org/bornIn> <http://example.org/London> .",
}


PARSERS: dict[FileFormat, Callable[[Chunk], ChunkReport]] = {
    "nsm": parse_nsm_chunk,
    "rog": partial(parse_nsm_chunk, read=read_rog_chunk),
    "rdf": parse_rdf_chunk,
}


def _names_format(names: Path) -> FileFormat:
    return "parquet" if names.suffix == ".parquet" else "tsv"


def _parse(
    path: Path, format: FileFormat, columns: tuple[str, ...], parts: Path, limits: BuildLimits
) -> list[ChunkReport]:
    parts.mkdir(exist_ok=True)
    # A list, so that whoever maps can tell how much of it is done; 400 GB of text are 50,000 small records.
    chunks = list(list_chunks(path, format=format, columns=columns, parts=parts, chunk_bytes=limits.chunk_bytes))
    return list(limits.map_chunks(PARSERS.get(format, parse_chunk), chunks))


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
    entities = pq.read_table(out_dir / "entities.parquet")
    write_string_indexes(entities, out_dir)
    return sum(count > 1 for count in entities["name"].value_counts().field("counts").to_pylist())
