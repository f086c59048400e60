"""Freebase: parsing a dump, its malformed lines, the closure of topics, workers, and opening the graph."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.child import Child, folder_bytes, run_child
from benchmarks.freebase import children
from benchmarks.measure import write_section

ASKED_PARSE, ASKED_CLOSURE = 100, 35  # MB per CPU s; CPU s of 20 million triples
ASKED_IDS_MS, ASKED_NAME_MS = 10, 50
COMMAND = "python -m benchmarks freebase_build"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    plain_bytes: Sequence[int]  # of the dumps, ascending
    faulty_bytes: int  # of the dump with malformed lines
    triples: Sequence[int]  # of the parts that closures are built from; the last ones are opened, and built by workers
    topics: int
    repeats: int  # of each parse; the least CPU time counts
    opened: int  # processes that open a graph


FULL = Size((1_000_000_000, 4_000_000_000), 200_000_000, (5_000_000, 20_000_000), 1000, 2, 15)
SMALL = Size((2_000_000, 6_000_000), 2_000_000, (100_000,), 20, 1, 2)


def run(home: Path, size: Size = FULL) -> None:
    """Measure everything, each in processes of its own, and write the sections."""
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        folder = Path(scratch)
        write_section("Freebase: parsing the dump", parsing(folder, size), COMMAND)
        write_section("Freebase: from a parsed dump to a graph", building(folder, size), COMMAND)
        write_section("Freebase: opening a graph", opening(folder / "graph", size.opened), COMMAND)


def parsing(folder: Path, size: Size) -> str:
    """Return the tables of parsing."""
    rows = [
        "| dump, GB | between the terms | lines, M | CPU s | MB per CPU s | peak RSS, MB | 2 threads: wall s | CPU s | "
        "peak RSS, MB | isal alone: MB per CPU s | parts, MB |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for plain_bytes, blanks in ((size.plain_bytes[0], True), *((count, False) for count in size.plain_bytes)):
        path = folder / "dump.nt.gz"
        made = run_child(children.make_dump, path=path, plain_bytes=plain_bytes, blanks=blanks, malformed_share=1e-6)
        one, two = (
            min((parse_once(path, folder, threads) for _ in range(size.repeats)), key=lambda child: child.cpu)
            for threads in (1, 2)
        )
        inflated = run_child(children.inflate, path=path)
        megabytes = made.result["plain_bytes"] / 1e6
        rows.append(
            f"| {megabytes / 1000:.3g} | {'blank' if blanks else 'tab'} | {made.result['lines'] / 1e6:.3g} | "
            f"{one.cpu:.2f} | {megabytes / one.cpu:,.0f} | {one.peak:,.0f} | {two.wall:.2f} | {two.cpu:.2f} | "
            f"{two.peak:,.0f} | {megabytes / inflated.cpu:,.0f} | {one.result['disk'] / 1e6:,.0f} |"
        )
        path.unlink()
    note = (
        "Made-up dumps (benchmarks/freebase_dump.py) in the form and mixture of Freebase's, gzip of level 1. Every "
        "line is checked against the grammar of N-Triples. Plain bytes over CPU s from the start of the process to its "
        f"end, asked: at least {ASKED_PARSE} MB per CPU s, memory flat."
    )
    return "\n\n".join([note, "\n".join(rows), malformed(folder, size.faulty_bytes)])


def parse_once(path: Path, folder: Path, threads: int = 1) -> Child:
    """Parse a dump in a process of its own; the parts are removed."""
    out = folder / "parts"
    out.mkdir()
    child = run_child(children.parse, path=path, out=out, threads=threads)
    child.result["malformed"] = pq.read_table(out / "rejects.parquet")["line"].to_pylist()
    shutil.rmtree(out)
    return child


def malformed(folder: Path, plain_bytes: int) -> str:
    """Say whether malformed lines at known places are all rejected, and no others, and whether the oracle agrees."""
    path = folder / "faulty.nt.gz"
    made = run_child(children.make_dump, path=path, plain_bytes=plain_bytes, malformed_share=1e-3).result
    parsed, oracle = parse_once(path, folder), run_child(children.read_lines, path=path)
    agree = parsed.result["malformed"] == made["malformed"] == oracle.result["malformed"]
    agree &= parsed.result["rows"]["triples"] == oracle.result["triples"]
    path.unlink()
    verdict = "reject exactly these" if agree else "DO NOT AGREE on these"
    return (
        f"{len(made['malformed']):,} malformed lines of 17 kinds at known places among {made['lines']:,}: the parse "
        f"and its oracle, one regular expression per line, {verdict} and keep the same triples "
        f"({parsed.cpu:.1f} and {oracle.cpu:.1f} CPU s)."
    )


def building(folder: Path, size: Size) -> str:
    """Return the tables of closures; the last graph stays in ``folder/graph``."""
    rows = [
        "| triples given, M | closure | entities, M | triples, M | CPU s | wall s | peak RSS, MB | graph, MB |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for count in size.triples:
        parts, out = folder / f"parts-{count}", folder / "graph"
        given = run_child(children.make_parts, folder=parts, num_triples=count).result
        topics = run_child(children.draw_topics, num_triples=count, count=size.topics).result
        for hops in (2, None):
            shutil.rmtree(out, ignore_errors=True)
            child = run_child(children.build, parts=parts, out=out, topics=topics, hops=hops)
            closure, built = "all triples" if hops is None else f"k = {hops}", child.result
            rows.append(
                f"| {given / 1e6:.3g} | {closure} | {built['entities'] / 1e6:.3g} | {built['triples'] / 1e6:.3g} | "
                f"{child.cpu:.1f} | {child.wall:.1f} | {child.peak:,.0f} | {built['disk'] / 1e6:,.0f} |"
            )
    found = [
        run_child(children.build_on_workers, parts=parts, topics=topics, hops=2, scratch=folder, workers=workers).result
        for workers in (1, 2)
    ]
    same = "the same bytes" if found[0]["files"] == found[1]["files"] else "OTHER BYTES"
    note = (
        f"Made-up parts (benchmarks/freebase/parts.py: Zipf relations and entities, CVT nodes), {size.topics:,} "
        "topics, a fifth of them hubs, walked in both directions without caps, in one process under a limit of 2 GB; "
        f"names, types, literals and indexes included. Asked: at most {ASKED_CLOSURE} CPU s for 20 million triples."
    )
    workers = (
        f"k = 2 of the last on a local Dask cluster that is started already: 1 worker {found[0]['seconds']:.1f} s, 2 "
        f"workers {found[1]['seconds']:.1f} s wall, {same}."
    )
    return "\n\n".join([note, "\n".join(rows), workers])


def opening(graph: Path, count: int) -> str:
    """Return the table of opening a graph in fresh processes, with its files in the system's cache and without."""
    named = run_child(children.pick_names, graph=graph, count=count).result
    rows = [
        f"| files | until neighbours by id, ms: median, most (asked: <= {ASKED_IDS_MS}) | with one name resolved and "
        f"its neighbours, ms: median, most (asked: <= {ASKED_NAME_MS}) |",
        "|---|---|---|",
    ]
    for label, cold in (("in the system's cache", False), ("dropped from it (posix_fadvise)", True)):
        found: list[dict[str, Any]] = []
        for entity, name in named:
            if cold:
                forget(graph)
            found.append(run_child(children.open_one, graph=graph, entity=entity, name=name).result)
        cells = (
            f"{statistics.median(one[what] for one in found):.1f}, {max(one[what] for one in found):.1f}"
            for what in ("ids", "name")
        )
        rows.append(f"| {label} | {' | '.join(cells)} |")
    note = f"A graph of {folder_bytes(graph) / 1e6:,.0f} MB, opened in fresh processes, each for another entity."
    return "\n\n".join([note, "\n".join(rows)])


def forget(folder: Path) -> None:
    """Ask the system to drop the files of a folder from its cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
