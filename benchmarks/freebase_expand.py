"""Expanding topics over 20 M triples: the walk alone, as it is shipped, and a loop over a dictionary of lists."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import run_child
from benchmarks.freebase.children import build, draw_topics, make_parts
from benchmarks.freebase.expanding import expand, loop, ship
from benchmarks.measure import write_section

ASKED = {2: (0.2, 5, 100), 3: (4.0, 10, 50)}  # hops -> CPU s, times faster than the loop, and with its build


ALONE, BOTH = "the walk alone, forwards", "the walk alone, both directions"
SHIPPED = "as shipped: both directions, distinct triples and digests, Parquet"
LOOP = "loop over a dictionary of lists, forwards"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    triples: int
    topics: int
    shipped: dict[int, int]  # hops -> how many of the topics are cut to Parquet
    cap: int
    repeats: int  # of each walk; the least CPU time counts


FULL = Size(triples=20_000_000, topics=1000, shipped={2: 1000, 3: 20}, cap=200, repeats=3)
SMALL = Size(triples=100_000, topics=50, shipped={2: 50, 3: 10}, cap=200, repeats=1)
Rows = dict[str, dict[int, Any]]  # what was done -> hops -> what it took


def run(home: Path, size: Size = FULL) -> None:
    """Expand the topics each way, in processes of their own, and write the section."""
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        parts, graph = Path(scratch) / "parts", Path(scratch) / "graph"
        run_child(make_parts, folder=parts, num_triples=size.triples)
        made = run_child(build, parts=parts, out=graph, topics=[], hops=None).result
        topics = run_child(draw_topics, num_triples=size.triples, count=size.topics).result
        rows = measure(graph, topics, Path(scratch), size)
    for hops in ASKED:
        walked = [(rows[what][hops]["edges"], rows[what][hops]["entities"]) for what in (ALONE, LOOP)]
        if walked[0] != walked[1]:
            raise SystemExit(f"the walk and the loop differ at k = {hops}: {walked[0]} and {walked[1]}")
    note = (
        f"{size.topics:,} topics, a fifth of them hubs, one by one over {made['triples'] / 1e6:.3g} M triples and "
        f"{made['entities'] / 1e6:.3g} M entities; at most {size.cap} tails of each (entity, relation, direction). "
        "The loop reaches the same entities over the same number of edges as the walk alone. CPU s of one process with "
        f"the graph open and compiled code loaded; the compiled walk the least of {size.repeats} runs."
    )
    tables = ["\n".join(walk_rows(rows)), "\n".join(figure_rows(rows[ALONE], rows[LOOP]))]
    write_section("Freebase: expansion", "\n\n".join([note, *tables]), "python -m benchmarks freebase_expand")


def measure(graph: Path, topics: list[str], folder: Path, size: Size) -> Rows:
    """Expand each way, k by k."""
    asked = {"graph": graph, "topics": topics, "cap": size.cap}
    rows: Rows = {what: {} for what in (ALONE, BOTH, SHIPPED, LOOP)}
    for hops in ASKED:
        rows[ALONE][hops] = best(size.repeats, expand, **asked, hops=hops, forward=True)
        rows[BOTH][hops] = best(size.repeats, expand, **asked, hops=hops, forward=False)
        some = {**asked, "topics": topics[: size.shipped[hops]]}
        rows[SHIPPED][hops] = best(1, ship, **some, hops=hops, out=folder / "subgraphs")
        shutil.rmtree(folder / "subgraphs")
        rows[LOOP][hops] = best(1, loop, **asked, hops=hops)
    return rows


def best(repeats: int, call: Any, **arguments: Any) -> Any:
    """Return the run that took the least CPU time."""
    return min((run_child(call, **arguments).result for _ in range(repeats)), key=lambda result: result["cpu"])


def walk_rows(rows: Rows) -> list[str]:
    """Return a row per number of hops and way."""
    table = [
        "| k | what | topics | CPU s | edges walked, M | ns per edge | entities reached, M | triples, M | "
        "on disk, MB | peak RSS, MB |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for hops in ASKED:
        for what, found in rows.items():
            one = found[hops]
            edges = (
                f"{one['edges'] / 1e6:,.3g} | {1e9 * one['cpu'] / max(1, one['edges']):.1f}" if one["edges"] else "|"
            )
            made = f"{one['triples'] / 1e6:,.3g} | {one['bytes'] / 1e6:,.0f}" if "triples" in one else "|"
            table.append(
                f"| {hops} | {what} | {one['topics']:,} | {one['cpu']:.3f} | {edges} | {one['entities'] / 1e6:,.3g} | "
                f"{made} | {one['peak']:,.0f} |"
            )
    return table


def figure_rows(alone: dict[int, Any], loops: dict[int, Any]) -> list[str]:
    """Return the table of what was asked and reached."""
    rows = [
        "| expansion alone | asked: CPU s | reached | loop: CPU s | its dictionary: CPU s | "
        "asked: times faster than the loop | reached | with the dictionary's build | reached |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for hops, (seconds, times, with_build) in ASKED.items():
        cpu, slow = alone[hops]["cpu"], loops[hops]
        rows.append(
            f"| k = {hops} | <= {seconds} | {cpu:.3f} | {slow['cpu']:.2f} | {slow['build']:.1f} | >= {times} | "
            f"{slow['cpu'] / cpu:.0f} | >= {with_build} | {(slow['cpu'] + slow['build']) / cpu:.0f} |"
        )
    return rows
