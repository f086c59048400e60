"""Expanding 1,000 topics over 20 M triples: the walk alone, as it is shipped, and a loop over a dictionary of lists."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import run_child
from benchmarks.freebase.children import draw_topics
from benchmarks.freebase.expanding import expand, loop
from benchmarks.freebase_open import make_graph
from benchmarks.measure import write_section

ASKED = {2: (0.2, 5, 100), 3: (4.0, 10, 50)}  # hops -> CPU s, times faster than the loop, and with its build


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    triples: int
    topics: int
    cap: int
    repeats: int  # of each; the least CPU time counts


FULL = Size(triples=20_000_000, topics=1000, cap=200, repeats=3)
SMALL = Size(triples=100_000, topics=50, cap=200, repeats=1)


def run(home: Path, size: Size = FULL) -> None:
    """Expand the topics each way, in processes of their own, and write the section."""
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        graph, made = make_graph(Path(scratch), size.triples)
        topics = run_child(draw_topics, num_triples=size.triples, count=size.topics).result
        asked = {"graph": graph, "topics": topics, "cap": size.cap}
        alone, shipped, loops = dict[int, Any](), dict[int, Any](), dict[int, Any]()
        for hops in ASKED:
            alone[hops] = best(size.repeats, expand, **asked, hops=hops, forward=True, triples=False)
            shipped[hops] = best(size.repeats, expand, **asked, hops=hops, forward=False, triples=True)
            loops[hops] = best(1, loop, **asked, hops=hops)
            same = [(one[hops]["edges"], one[hops]["entities"]) for one in (alone, loops)]
            if same[0] != same[1]:
                raise SystemExit(f"the walk and the loop differ at k = {hops}: {same}")
    note = (
        f"{size.topics:,} topics, a fifth of them hubs, one by one over {made['triples'] / 1e6:.3g} M triples and "
        f"{made['entities'] / 1e6:.3g} M entities; at most {size.cap} tails of each (entity, relation, direction). "
        "`alone`: triples walked forwards, as in the loop, which reaches the same entities over the same number of "
        "edges. CPU s of one process with the graph open and its pages read; the compiled walk the least of "
        f"{size.repeats} runs."
    )
    tables = ["\n".join(walk_rows(alone, shipped, loops)), "\n".join(figure_rows(alone, loops))]
    write_section("Freebase: expansion", "\n\n".join([note, *tables]), "python -m benchmarks freebase_expand")


def best(repeats: int, call: Any, **arguments: Any) -> Any:
    """Return the run that took the least CPU time."""
    return min((run_child(call, **arguments).result for _ in range(repeats)), key=lambda result: result["cpu"])


def walk_rows(alone: dict[int, Any], shipped: dict[int, Any], loops: dict[int, Any]) -> list[str]:
    """Return a row per way and number of hops."""
    rows = ["| k | what | CPU s | edges walked, M | ns per edge | entities reached, M | triples, M | peak RSS, MB |"]
    rows.append("|---:|---|---:|---:|---:|---:|---:|---:|")
    ways = {
        "alone": alone,
        "both directions, each topic's distinct triples written down": shipped,
        "loop over a dictionary of lists": loops,
    }
    for hops in alone:
        for label, found in ways.items():
            one = found[hops]
            triples = f"{one['triples'] / 1e6:,.3g}" if one.get("triples") else ""
            rows.append(
                f"| {hops} | {label} | {one['cpu']:.3f} | {one['edges'] / 1e6:,.3g} | "
                f"{1e9 * one['cpu'] / max(1, one['edges']):.1f} | {one['entities'] / 1e6:,.3g} | {triples} | "
                f"{one['peak']:,.0f} |"
            )
    return rows


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
