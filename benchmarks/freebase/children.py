"""What the Freebase benchmarks do in processes of their own; each imports only what it needs, since starting counts."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.child import folder_bytes
from benchmarks.measure import peak_megabytes

READ_BYTES = 4 << 20
LOOK_EVERY = 64  # blocks between two looks at the disk
STEPS = ("closure", "dense ids, shards, CSR", "names, types, literals, indexes")
# The tasks of each step; what is done before a task, since the one before it, counts with it.
STEP_OF = {name: 0 for name in ("present_part", "nodes_of_part", "reach_part", "named_part", "mark_part", "cap_part")}
STEP_OF |= {name: 1 for name in ("distinct_types", "write_runs", "write_bucket")}


def make_dump(path: str, plain_bytes: int, malformed_share: float = 0.0) -> dict[str, int]:
    """Write a dump; return its lines and plain bytes."""
    from benchmarks.freebase_dump import write_dump

    dump = write_dump(Path(path), plain_bytes=plain_bytes, malformed_share=malformed_share)
    return {"lines": dump.lines, "plain_bytes": dump.plain_bytes}


def make_parts(folder: str, num_triples: int, seed: int = 0) -> dict[str, int]:
    """Write the coded parts of a dump; return what they hold."""
    from benchmarks.freebase.coded import write_coded_parts

    return write_coded_parts(Path(folder), num_triples, seed)


def parse(path: str, out: str, threads: int = 1) -> dict[str, Any]:
    """Parse a dump; return what was read and kept, and the bytes on disk, at the end and at most."""
    from kgqa_core.graph.dump.parse import parse_dump

    most, blocks = 0, 0

    def look(done: int, total: int) -> None:
        nonlocal most, blocks
        blocks += 1
        if blocks % LOOK_EVERY == 0 or done == total:
            most = max(most, folder_bytes(Path(out)))

    report = parse_dump(Path(path), Path(out), threads=threads, progress=look)
    disk = folder_bytes(Path(out))
    return {"lines": report.num_lines, "rows": report.rows, "disk": disk, "most_disk": max(most, disk)}


def inflate(path: str) -> int:
    """Inflate a file and drop the text; return its bytes."""
    from isal import igzip

    buffer, total = bytearray(READ_BYTES), 0
    with igzip.open(path, "rb") as stream:
        while count := stream.readinto(buffer):
            total += count
    return total


def read_lines(path: str) -> dict[str, object]:
    """Read a dump with the oracle; return line and reason of malformed lines, and how many triples are kept."""
    from kgqa_core.graph.dump.filters import TRIPLE, DumpOptions
    from kgqa_core.graph.dump.ntriples import label_of_iri, parse_line

    options, uses = DumpOptions(), dict[str, int]()
    rejects, triples = {}, 0
    with gzip.open(path, "rb") as stream:
        for number, line in enumerate(stream, 1):
            read = parse_line(line.rstrip(b"\n"))
            if isinstance(read, str):
                rejects[number] = read
            elif read is not None:
                if read.relation not in uses:
                    uses[read.relation] = options.use_of(label_of_iri(read.relation))
                wanted = read.language is None or read.language.lower() == options.language
                triples += wanted and uses[read.relation] == TRIPLE
    return {"rejects": rejects, "triples": triples}


def draw_topics(num_triples: int, count: int) -> list[str]:
    """Return topics of a made-up Freebase."""
    from benchmarks.freebase.world import World
    from benchmarks.freebase_dump import draw_topics as draw

    return draw(World(num_triples), count)


def build(parts: str, out: str, topics: list[str], hops: int | None, memory_bytes: int) -> dict[str, Any]:
    """Build the graph of the topics' closure (hops None: of everything); return CPU s and peak MB of each step."""
    from kgqa_core.graph.closure.closure import build_from_dump
    from kgqa_core.graph.closure.options import ClosureLimits, ClosureOptions

    steps = _Steps()
    most = 0

    def mapped(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        nonlocal most
        for item in items:
            result = function(item)
            steps.end(STEP_OF.get(function.__name__, 2))
            most = max(most, folder_bytes(Path(out)))
            yield result

    options = ClosureOptions(hops=hops)
    limits = ClosureLimits(map_tasks=mapped, memory_bytes=memory_bytes)
    report = build_from_dump([Path(parts)], topics, Path(out), options=options, limits=limits)
    steps.end(2)
    return {
        "steps": list(zip(STEPS, steps.cpu, steps.peak, strict=True)),
        "entities": report.num_entities,
        "triples": report.num_triples,
        "missing": report.num_topics_missing,
        "disk": folder_bytes(Path(out)),
        "most_disk": most,
    }


class _Steps:
    """CPU seconds and peak memory of steps that end one after the other."""

    def __init__(self) -> None:
        self._before = 0.0  # the start of the process counts with the first step
        self.cpu, self.peak = [0.0] * len(STEPS), [0.0] * len(STEPS)

    def end(self, step: int) -> None:
        """Count what was used since the last end for a step."""
        now = time.process_time()
        self.cpu[step] += now - self._before
        self.peak[step] = peak_megabytes()  # so far: a peak never falls
        self._before = now


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
