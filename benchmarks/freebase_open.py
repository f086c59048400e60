"""Opening a built graph in a fresh process: how long until neighbours are there, by id and by name."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.child import folder_bytes, run_child
from benchmarks.freebase.children import build, make_parts, open_one, pick_names
from benchmarks.measure import write_section

ASKED_IDS_MS, ASKED_NAME_MS = 10, 50


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    triples: int
    repeats: int  # processes, each with an entity of its own


FULL = Size(triples=20_000_000, repeats=15)
SMALL = Size(triples=100_000, repeats=2)


def run(home: Path, size: Size = FULL) -> None:
    """Open a graph in fresh processes, with its files in the system's cache and without, and write the section."""
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        graph, made = make_graph(Path(scratch), size.triples)
        named = run_child(pick_names, graph=graph, count=size.repeats).result
        run_child(open_one, graph=graph, entity=named[0][0], name=named[0][1])
        warm = [run_child(open_one, graph=graph, entity=entity, name=name).result for entity, name in named]
        cold = []
        for entity, name in named:
            forget(graph)
            cold.append(run_child(open_one, graph=graph, entity=entity, name=name).result)
        megabytes = folder_bytes(graph) / 1e6
    rows = [
        f"| files | until neighbours by id, ms: median, most (asked: <= {ASKED_IDS_MS}) | CPU ms | "
        f"with one name resolved and its neighbours, ms: median, most (asked: <= {ASKED_NAME_MS}) | CPU ms |",
        "|---|---|---:|---|---:|",
        row("in the system's cache", warm),
        row("dropped from it (posix_fadvise)", cold),
    ]
    imports = statistics.median(one["imports"] for one in warm)
    note = (
        f"A graph of {made['triples'] / 1e6:.3g} M triples and {made['entities'] / 1e6:.3g} M entities, "
        f"{megabytes:,.0f} MB, opened in {size.repeats} fresh processes, each for another entity: wall time from "
        "opening the folder to all neighbours of one entity in both directions; the name by a folder opened anew, "
        "through the memory-mapped index. Not in it: starting Python, and "
        f"{imports:,.0f} ms for importing numpy, pyarrow and the package. "
        "The limits that were asked for hold for the median with files in the cache: "
        f"{verdict(warm)}."
    )
    write_section(
        "Freebase: opening a graph", "\n\n".join([note, "\n".join(rows)]), "python -m benchmarks freebase_open"
    )


def make_graph(folder: Path, triples: int) -> tuple[Path, dict[str, int]]:
    """Build the graph of everything in made-up coded parts; return its folder and what it holds."""
    parts, graph = folder / "parts", folder / "graph"
    run_child(make_parts, folder=parts, num_triples=triples)
    return graph, run_child(build, parts=parts, out=graph, topics=[], hops=None, memory_bytes=2**31).result


def forget(folder: Path) -> None:
    """Ask the system to drop the files of a folder from its cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def row(label: str, opened: Sequence[dict[str, float]]) -> str:
    """Return a row of the table."""
    cells = [
        f"{statistics.median(one[what] for one in opened):.1f}, {max(one[what] for one in opened):.1f} | "
        f"{statistics.median(one[f'{what}_cpu'] for one in opened):.1f}"
        for what in ("ids", "name")
    ]
    return f"| {label} | {' | '.join(cells)} |"


def verdict(opened: Sequence[dict[str, float]]) -> str:
    """Say whether the medians are within what was asked."""
    limits = {"ids": ASKED_IDS_MS, "name": ASKED_NAME_MS}
    over = [what for what, limit in limits.items() if statistics.median(one[what] for one in opened) > limit]
    return f"not reached for {', '.join(over)}" if over else "reached"
