"""A Freebase build on one and two local workers, and on one, two and four of a simulated schedule."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.child import Child, run_child
from benchmarks.freebase.children import draw_topics
from benchmarks.freebase.on_workers import build_on_workers, make_many_parts, profile
from benchmarks.freebase.schedule import Profile, simulate
from benchmarks.measure import write_section

WARM_TRIPLES = 20_000
MEASURED = (1, 2)  # workers
SIMULATED = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    triples: int
    part_rows: int  # 1 GiB of the plain dump, a part of a real build, holds about 3 million triples
    hops: Sequence[int | None]  # None: everything
    topics: int
    rounds: int  # of each measurement: the fastest counts, for nobody has this machine to himself


FULL = Size(triples=12_000_000, part_rows=3_000_000, hops=(None, 2), topics=1000, rounds=2)
SMALL = Size(triples=200_000, part_rows=25_000, hops=(2,), topics=20, rounds=1)


@dataclass(frozen=True, slots=True)
class Case:
    """One closure and what building it took."""

    hops: int | None
    profile: Profile
    alone: float  # wall s in one process
    runs: dict[int, Child]  # by workers


def run(home: Path, size: Size = FULL) -> None:
    """Measure, simulate, and write the section."""
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        parts, warm = Path(scratch) / "parts", Path(scratch) / "warm"
        kept = run_child(make_many_parts, folder=parts, num_triples=size.triples, part_rows=size.part_rows).result
        run_child(make_many_parts, folder=warm, num_triples=WARM_TRIPLES, part_rows=WARM_TRIPLES // 8)
        topics = run_child(draw_topics, num_triples=WARM_TRIPLES, count=20).result
        topics += run_child(draw_topics, num_triples=size.triples, count=size.topics).result
        given = {"parts": parts, "warm": warm, "topics": topics, "scratch": scratch}
        cases = [measure(given, hops, size.rounds) for hops in size.hops]
    write_section(
        "Freebase: one worker and several",
        "\n\n".join([describe(kept, size), "\n".join(rows(cases)), *map(comment, cases)]),
        "python -m benchmarks freebase_workers",
    )


def measure(given: dict[str, object], hops: int | None, rounds: int) -> Case:
    """Build alone and on workers, turn by turn; keep the fastest of each."""
    alone: list[Child] = []
    runs: dict[int, list[Child]] = {workers: [] for workers in MEASURED}
    for _ in range(rounds):
        alone.append(run_child(profile, hops=hops, **given))
        for workers, children in runs.items():
            children.append(run_child(build_on_workers, hops=hops, workers=workers, **given))
    best = min((child.result for child in alone), key=lambda result: Profile(result["serial"], result["maps"]).total)
    fastest = {workers: min(children, key=lambda child: child.result["build"]) for workers, children in runs.items()}
    return Case(
        hops,
        Profile(best["serial"], best["maps"]),
        min(child.result["wall"] for child in alone),
        fastest,
    )


def describe(kept: int, size: Size) -> str:
    """Return what was built and how it was measured."""
    return (
        f"Coded parts of a made-up Freebase, {kept / 1e6:.3g} million triples in parts of {size.part_rows / 1e6:.2g} "
        "million, to a graph. Measured: on a local Dask cluster of one-thread workers, once started and warm; the "
        f"fastest of {size.rounds}. CPU time is that of the build in all processes, the scheduler's included. "
        "Simulated: the CPU seconds "
        "of each task of a build in one process, in the order of the build, each taken by the worker that is free "
        "first, with the time that an empty task takes here added to each; what is between the maps stays serial. It "
        f"gives every worker a processor of its own, and the leading process another; here there are {os.cpu_count()} "
        "for all of them, and for whatever else runs."
    )


def rows(cases: Sequence[Case]) -> list[str]:
    """Return the table."""
    table = [
        "| closure | workers | wall s, measured | against 1 worker | wall s, simulated | against 1 worker | "
        "starting, s | CPU s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case in cases:
        name = "all triples" if case.hops is None else f"k = {case.hops}"
        total = case.profile.total
        table.append(f"| {name} | none | {case.alone:.1f} | | {total:.1f} | | | {total:.1f} |")
        per_task = case.runs[MEASURED[0]].result["per_task"]
        one, first = simulate(case.profile, 1, per_task), case.runs[MEASURED[0]].result["build"]
        for workers in SIMULATED:
            simulated = simulate(case.profile, workers, per_task)
            cells = [f"{simulated:.1f}", f"{one / simulated:.2f}x"]
            if child := case.runs.get(workers):
                build = child.result["build"]
                cells = [f"{build:.1f}", f"{first / build:.2f}x", *cells, f"{child.result['start']:.1f}"]
                cells.append(f"{child.result['cpu']:.1f}")
            else:
                cells = ["", "", *cells, "", ""]
            table.append(f"| {name} | {workers} | {' | '.join(cells)} |")
    return table


def comment(case: Case) -> str:
    """Return what limits the gain."""
    costs = [cost for costs in case.profile.maps for cost in costs]
    per_task = case.runs[MEASURED[0]].result["per_task"]
    return (
        f"{'All triples' if case.hops is None else f'k = {case.hops}'}: {len(costs)} tasks in {len(case.profile.maps)} "
        f"maps, of {1000 * sum(costs) / len(costs):.0f} ms on average and {max(costs):.1f} s at most; an empty task "
        f"takes {1000 * per_task:.0f} ms. {100 * case.profile.serial_share:.0f} % of the work is between the maps, "
        f"so no number of workers gains more than {1 / case.profile.serial_share:.1f}x."
    )
