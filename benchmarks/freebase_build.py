"""From coded parts of 20 and 100 million triples to a graph: CPU time, memory and disk, step by step."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.child import Child, folder_bytes, run_child
from benchmarks.freebase.children import STEPS, build, draw_topics, make_parts
from benchmarks.measure import write_section

WARM_TRIPLES = 20_000
SHARED_STEPS = 2  # of STEPS: what the figures asked for speak of


@dataclass(frozen=True, slots=True)
class Case:
    """A graph to build, and what was asked of it."""

    triples: int
    hops: int | None  # None: everything
    memory_bytes: int
    asked_cpu: float  # seconds
    asked_peak: float  # MB


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    cases: Sequence[Case]
    topics: int


GIB = 2**30
FULL = Size(
    (
        Case(20_000_000, None, 2 * GIB, 25, 2000),
        Case(20_000_000, 2, 2 * GIB, 25, 2000),
        Case(100_000_000, None, 4 * GIB, 150, 4000),
        Case(100_000_000, 2, 4 * GIB, 150, 4000),
    ),
    topics=1000,
)
SMALL = Size((Case(200_000, None, 2 * GIB, 25, 2000), Case(200_000, 2, 2 * GIB, 25, 2000)), topics=20)


@dataclass(frozen=True, slots=True)
class Built:
    """A case and what it took."""

    case: Case
    rows: int  # triples in the parts
    parts_bytes: int
    child: Child

    @property
    def asked_cpu(self) -> float:
        """CPU seconds of the steps that the figure asked for speaks of."""
        return sum(cpu for _, cpu, _ in self.child.result["steps"][:SHARED_STEPS])

    @property
    def asked_peak(self) -> float:
        """MB at most up to the end of those steps."""
        return float(max(peak for _, _, peak in self.child.result["steps"][:SHARED_STEPS]))


def run(home: Path, size: Size = FULL) -> None:
    """Build every case in a process of its own and write the section."""
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        folder = Path(scratch)
        for hops in (None, 2):
            measure(folder, Case(WARM_TRIPLES, hops, GIB, 0, 0), 20)  # compiles
        built = [measure(folder, case, size.topics) for case in size.cases]
    parts = (
        "Coded parts of a made-up Freebase (benchmarks/freebase/coded.py: Zipf relations and entities, CVT nodes), as "
        f"parsing gives them; topics: {size.topics:,}, a fifth of them hubs, expanded in both directions without caps. "
        "Each build in a process of its own with one worker; its start counts with the closure, and what is done "
        "between tasks with the step that follows. Peaks are VmHWM up to the end of a step, memory-mapped pages that "
        "were read included.",
        "\n".join(step_rows(built)),
        "\n".join(figure_rows(built)),
    )
    write_section("Freebase: from coded parts to a graph", "\n\n".join(parts), "python -m benchmarks freebase_build")


def measure(folder: Path, case: Case, num_topics: int) -> Built:
    """Make the parts, build the graph, and remove both."""
    parts, out = folder / "parts", folder / "graph"
    made = run_child(make_parts, folder=parts, num_triples=case.triples).result
    topics = run_child(draw_topics, num_triples=case.triples, count=num_topics).result
    child = run_child(build, parts=parts, out=out, topics=topics, hops=case.hops, memory_bytes=case.memory_bytes)
    built = Built(case, made["kept"], folder_bytes(parts), child)
    shutil.rmtree(parts)
    shutil.rmtree(out)
    return built


def closure_of(case: Case) -> str:
    """Return words for what is in the graph."""
    return "all triples" if case.hops is None else f"k = {case.hops}"


def step_rows(built: Sequence[Built]) -> list[str]:
    """Return a row per case: its size, then CPU seconds and peak of each step."""
    steps_head = " | ".join(f"{step}: CPU s, peak MB" for step in STEPS)
    rows = [
        f"| triples given, M | closure | entities, M | triples, M | {steps_head} | all: CPU s | wall s | parts, MB | "
        "graph, MB | most on disk, MB |",
        f"|---:|---|---:|---:|{'---:|' * len(STEPS)}---:|---:|---:|---:|---:|",
    ]
    for one in built:
        result = one.child.result
        steps = " | ".join(f"{cpu:.1f}, {peak:,.0f}" for _, cpu, peak in result["steps"])
        rows.append(
            f"| {one.rows / 1e6:.3g} | {closure_of(one.case)} | {result['entities'] / 1e6:.3g} | "
            f"{result['triples'] / 1e6:.3g} | {steps} | {one.child.cpu:.1f} | {one.child.wall:.1f} | "
            f"{one.parts_bytes / 1e6:,.0f} | {result['disk'] / 1e6:,.0f} | {result['most_disk'] / 1e6:,.0f} |"
        )
    return rows


def figure_rows(built: Sequence[Built]) -> list[str]:
    """Return the table of what was asked and reached."""
    rows = [
        "| closure, dense ids, shards, CSR of | asked | reached | with names, types, literals and indexes |",
        "|---|---|---|---|",
    ]
    for one in built:
        case = one.case
        rows.append(
            f"| {one.rows / 1e6:.3g} M triples, {closure_of(case)} | <= {case.asked_cpu:.0f} CPU s, <= "
            f"{case.asked_peak / 1000:.0f} GB | {one.asked_cpu:.1f} CPU s, {one.asked_peak / 1000:.2f} GB | "
            f"{one.child.cpu:.1f} CPU s, {one.child.peak / 1000:.2f} GB |"
        )
    return rows
