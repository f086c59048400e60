"""What the Freebase benchmarks do in processes of their own; each imports only what it needs, since starting counts."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.child import folder_bytes
from benchmarks.measure import peak_megabytes

READ_BYTES = 4 << 20


def make_dump(path: str, plain_bytes: int, malformed_share: float = 0.0, blanks: bool = False) -> dict[str, Any]:
    """Write a dump, with blanks for tabs where asked; return its lines, plain bytes and malformed lines."""
    from benchmarks.freebase_dump import write_dump

    dump = write_dump(Path(path), plain_bytes=plain_bytes, malformed_share=malformed_share)
    if blanks:
        Path(path).write_bytes(gzip.compress(gzip.decompress(Path(path).read_bytes()).replace(b"\t", b" "), 1))
    return {"lines": dump.lines, "plain_bytes": dump.plain_bytes, "malformed": [one.line for one in dump.malformed]}


def parse(path: str, out: str, threads: int = 1) -> dict[str, Any]:
    """Parse a dump; return what was read and kept, and the bytes on disk."""
    from kgqa_core.graph.dump import parse_dump

    journal = Path(f"{out}.journal")
    report = parse_dump(Path(path), Path(out), journal=journal, threads=threads)
    shutil.rmtree(journal)
    return {"lines": report.num_lines, "rows": report.rows, "disk": folder_bytes(Path(out))}


def inflate(path: str) -> int:
    """Inflate a file and drop the text; return its bytes."""
    from isal import igzip

    total = 0
    with igzip.open(path, "rb") as stream:
        while text := stream.read(READ_BYTES):
            total += len(text)
    return total


def read_lines(path: str) -> dict[str, Any]:
    """Read a dump line by line; return the malformed lines, and how many triples are kept."""
    from kgqa_core.graph.dump_rows import TRIPLE, DumpOptions, Statement, parse_line
    from kgqa_core.profiles import label_of_iri

    options, rejects, triples = DumpOptions(), [], 0
    with gzip.open(path, "rb") as stream:
        for number, line in enumerate(stream, 1):
            read = parse_line(line.rstrip(b"\n"))
            if isinstance(read, str):
                rejects.append(number)
            elif isinstance(read, Statement) and (read.language or "en").lower() in options.profile.language:
                triples += options.use_of(label_of_iri(read.relation)) == TRIPLE and read.object != ""
    return {"malformed": rejects, "triples": triples}


def make_parts(folder: str, num_triples: int) -> int:
    """Write what parsing a dump gives; return its triples."""
    from benchmarks.freebase.parts import write_parts

    return write_parts(Path(folder), num_triples)


def draw_topics(num_triples: int, count: int) -> list[str]:
    """Return topics of a made-up Freebase."""
    from benchmarks.freebase.world import World
    from benchmarks.freebase_dump import draw_topics as draw

    return draw(World(num_triples), count)


def build(parts: str, out: str, topics: list[str], hops: int | None, memory_limit: str = "2GB") -> dict[str, Any]:
    """Build the graph of the topics' closure (hops None: of everything) in this process."""
    from kgqa_core.graph.build import BuildLimits
    from kgqa_core.graph.closure import build_from_dump

    limits = BuildLimits(memory_limit=memory_limit)
    report = build_from_dump([Path(parts)], topics, Path(out), hops=hops, limits=limits)
    disk = folder_bytes(Path(out))
    return {"entities": report.num_entities, "triples": report.num_triples, "disk": disk}


def build_on_workers(parts: str, topics: list[str], hops: int | None, scratch: str, workers: int) -> dict[str, Any]:
    """Do the same on a local Dask cluster that is started already; return its seconds, and a hash of each file."""
    import hashlib

    from kgqa_core.config import ClusterSection
    from kgqa_core.graph import closure_walk
    from kgqa_core.graph.build import BuildLimits
    from kgqa_core.graph.closure import build_from_dump
    from kgqa_core.run.cluster import fan_out, open_cluster

    closure_walk.GROUP_ROWS = 2**22  # as many tasks as a larger dump has
    with (
        open_cluster(ClusterSection(workers=workers, memory_limit="4GB"), home=Path(scratch)) as client,
        tempfile.TemporaryDirectory(dir=scratch) as out,
    ):
        started = time.perf_counter()
        build_from_dump([Path(parts)], topics, Path(out), hops=hops, limits=BuildLimits(fan_out(client)))
        seconds = time.perf_counter() - started
        files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(Path(out).iterdir())}
    return {"seconds": seconds, "files": files, "peak": peak_megabytes()}


def pick_names(graph: str, count: int) -> list[tuple[int, str]]:
    """Return (entity, name) of entities that share their name with no other, spread over the graph."""
    import pyarrow.parquet as pq

    table = pq.read_table(Path(graph) / "entities.parquet", columns=["entity_id", "name", "kind"])
    counts = {row["values"]: row["counts"] for row in table["name"].value_counts().to_pylist()}
    own = [row for row in table.to_pylist() if row["kind"] == "entity" and counts[row["name"]] == 1]
    step = max(1, len(own) // count)
    return [(row["entity_id"], row["name"]) for row in own[::step][:count]]


def open_one(graph: str, entity: int, name: str) -> dict[str, float]:
    """Open a graph; return milliseconds until neighbours by id, and with one name resolved until its neighbours."""
    started = time.perf_counter()
    from kgqa_core.graph.kg import KnowledgeGraph, open_graph

    def neighbours(opened: KnowledgeGraph, of: int) -> int:
        first, last = opened.group_ptr[of], opened.group_ptr[of + 1]
        return sum(len(opened.neighbors(of, int(relation))) for relation in opened.group_relation[first:last])

    imported, cpu_before = time.perf_counter(), time.process_time()
    opened = open_graph(Path(graph))
    by_id = neighbours(opened, entity)
    ids_done, cpu_ids = time.perf_counter(), time.process_time()
    opened = open_graph(Path(graph))
    found = opened.ids_of_name(name)
    by_name = sum(neighbours(opened, one) for one in found)
    shown = opened.name_of(found[0])
    done, cpu_done = time.perf_counter(), time.process_time()
    assert shown == name and entity in found
    return {
        "imports": 1000 * (imported - started),
        "ids": 1000 * (ids_done - imported),
        "name": 1000 * (done - ids_done),
        "ids_cpu": 1000 * (cpu_ids - cpu_before),
        "name_cpu": 1000 * (cpu_done - cpu_ids),
        "neighbours": by_id + by_name,
    }
