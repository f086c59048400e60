"""Parsing a Freebase-shaped dump to coded parts: speed, memory and disk against size, and what a full dump takes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.child import Child, run_child
from benchmarks.freebase.children import inflate, make_dump, parse
from benchmarks.measure import write_section
from kgqa_core.graph.dump.codes import NO_NUMBA

FULL_BYTES, FULL_LINES = 400e9, 3.1e9  # of the public dump, at the most that is reported of it
CORES = 2
ASKED_MB_PER_SECOND, ASKED_PEAK_MB, ASKED_MINUTES, ASKED_FULL_PEAK_MB = 400, 400, 45, 4000
MALFORMED = 1e-6


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    plain_bytes: Sequence[int]  # of the dumps, ascending
    oracle_bytes: int  # for the path without numba
    repeats: int  # of each parse; the least CPU time counts


FULL = Size(plain_bytes=(1_000_000_000, 3_000_000_000, 5_000_000_000), oracle_bytes=100_000_000, repeats=3)
SMALL = Size(plain_bytes=(2_000_000, 6_000_000, 10_000_000), oracle_bytes=1_000_000, repeats=1)


@dataclass(frozen=True, slots=True)
class Point:
    """A dump of one size and what it took."""

    plain_bytes: int
    lines: int
    file_bytes: int
    parse: Child  # with one thread
    two: Child  # with one thread that inflates and two that scan
    inflate: Child
    disk: int  # bytes, of the coded parts
    most_disk: int  # bytes, while parsing


def run(home: Path, size: Size = FULL) -> None:
    """Measure the points and the oracle, and write the section."""
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        folder = Path(scratch)
        run_child(make_dump, path=folder / "warm.nt.gz", plain_bytes=400_000)
        parse_once(folder / "warm.nt.gz", folder)  # compiles
        parse_once(folder / "warm.nt.gz", folder, threads=2)
        points = [measure(folder, plain_bytes, size.repeats) for plain_bytes in size.plain_bytes]
        made = run_child(make_dump, path=folder / "oracle.nt.gz", plain_bytes=size.oracle_bytes).result
        oracle = parse_once(folder / "oracle.nt.gz", folder, environment={NO_NUMBA: "1"})
    oracle_speed = made["plain_bytes"] / 1e6 / oracle.cpu
    parts = (
        "Made-up dumps (benchmarks/freebase_dump.py) in the form and mixture of Freebase's: two lines in three are "
        "noise. As gzip of level 1, which packs them 9-fold (level 6: 11.6-fold, the public dump: 11-fold). Plain "
        "bytes over CPU s, from the start of the process to its end with all files written. Peak RSS is VmHWM.",
        "\n".join(size_rows(points)),
        f"The path without numba, a regular expression per line, on {made['plain_bytes'] / 1e6:,.0f} MB: "
        f"{oracle_speed:,.0f} MB per CPU s, peak RSS {oracle.peak:,.0f} MB.",
        "\n".join(figure_rows(points)),
        arithmetic(points),
    )
    write_section("Freebase: parsing the dump", "\n\n".join(parts), "python -m benchmarks freebase_parse")


def measure(folder: Path, plain_bytes: int, repeats: int) -> Point:
    """Make a dump, parse and inflate it, and remove it again."""
    path = folder / f"{plain_bytes}.nt.gz"
    made = run_child(make_dump, path=path, plain_bytes=plain_bytes, malformed_share=MALFORMED).result
    runs = [parse_once(path, folder) for _ in range(repeats)]
    two = min((parse_once(path, folder, threads=2) for _ in range(repeats)), key=lambda child: child.wall)
    inflates = [run_child(inflate, path=path) for _ in range(repeats)]
    file_bytes = path.stat().st_size
    path.unlink()
    best = min(runs, key=lambda child: child.cpu)
    least = min(inflates, key=lambda child: child.cpu)
    disk, most_disk = best.result["disk"], best.result["most_disk"]
    return Point(made["plain_bytes"], made["lines"], file_bytes, best, two, least, disk, most_disk)


def parse_once(path: Path, folder: Path, *, threads: int = 1, environment: dict[str, str] | None = None) -> Child:
    """Parse a dump in a process of its own; the parts are removed."""
    out = folder / "parts"
    out.mkdir()
    child = run_child(parse, environment=environment, path=path, out=out, threads=threads)
    shutil.rmtree(out)
    return child


def size_rows(points: Sequence[Point]) -> list[str]:
    """Return the table of sizes."""
    rows = [
        "| plain, GB | lines, M | gzip, GB | 1 thread: CPU s | MB per CPU s | peak RSS, MB | "
        "2 threads: wall s | CPU s | peak RSS, MB | inflate alone (isal): MB per CPU s | coded parts, MB | "
        "most on disk while parsing, MB |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for point in points:
        megabytes = point.plain_bytes / 1e6
        rows.append(
            f"| {megabytes / 1e3:.3g} | {point.lines / 1e6:.3g} | {point.file_bytes / 1e9:.3g} | "
            f"{point.parse.cpu:.2f} | {megabytes / point.parse.cpu:,.0f} | {point.parse.peak:,.0f} | "
            f"{point.two.wall:.2f} | {point.two.cpu:.2f} | {point.two.peak:,.0f} | "
            f"{megabytes / point.inflate.cpu:,.0f} | {point.disk / 1e6:,.0f} | {point.most_disk / 1e6:,.0f} |"
        )
    return rows


def figure_rows(points: Sequence[Point]) -> list[str]:
    """Return the table of what was asked and reached."""
    last, speed = points[-1], points[-1].plain_bytes / 1e6 / points[-1].parse.cpu
    peaks = [point.parse.peak for point in points]
    full = extrapolate(points)
    sizes = f"{points[0].plain_bytes / 1e9:.2g} to {last.plain_bytes / 1e9:.2g} GB"
    return [
        "| figure | asked | reached |",
        "|---|---|---|",
        f"| parse to Parquet, start included, {last.plain_bytes / 1e9:.2g} GB | >= {ASKED_MB_PER_SECOND} MB per CPU s "
        f"| {speed:,.0f} |",
        f"| peak memory from {sizes}, 1 thread | flat, <= {ASKED_PEAK_MB} MB | "
        f"{min(peaks):,.0f} to {max(peaks):,.0f} MB |",
        f"| full dump on {CORES} cores, extrapolated | <= {ASKED_MINUTES} minutes | {full['wall_minutes']:.0f} minutes "
        f"(CPU time shared out evenly: {full['even_minutes']:.0f}) |",
        f"| its memory | <= {ASKED_FULL_PEAK_MB / 1000:.0f} GB | {full['peak'] / 1000:.2f} GB |",
    ]


def extrapolate(points: Sequence[Point]) -> dict[str, float]:
    """Return what straight lines through the points say of the full dump."""
    plain = [point.plain_bytes for point in points]

    def line(values: Sequence[float]) -> tuple[float, float]:
        slope, start = np.polyfit(plain, values, 1)
        return float(start), float(slope)

    cpu_start, cpu = line([point.parse.cpu for point in points])
    wall_start, wall = line([point.two.wall for point in points])
    two_cpu_start, two_cpu = line([point.two.cpu for point in points])
    peak_start, peak = line([point.two.peak for point in points])
    return {
        "cpu_start": cpu_start,
        "cpu_per_gb": cpu * 1e9,
        "wall_start": wall_start,
        "wall_per_gb": wall * 1e9,
        "wall_minutes": (wall_start + wall * FULL_BYTES) / 60,
        "even_minutes": (two_cpu_start + two_cpu * FULL_BYTES) / 60 / CORES,
        "peak_per_gb": peak * 1e9,
        # A slope below zero is noise: memory does not fall with size.
        "peak": max(max(point.two.peak for point in points), peak_start + max(0.0, peak) * FULL_BYTES),
        "disk": max(point.disk / point.plain_bytes for point in points) * FULL_BYTES,
        "most_disk": max(point.most_disk / point.plain_bytes for point in points) * FULL_BYTES,
        "lines": points[-1].lines / points[-1].plain_bytes * FULL_BYTES,
    }


def arithmetic(points: Sequence[Point]) -> str:
    """Return how the full dump's figures come about."""
    full = extrapolate(points)
    gigabytes, wall = FULL_BYTES / 1e9, full["wall_minutes"]
    per_line = points[-1].plain_bytes / points[-1].lines
    return (
        f"The full dump is taken as {gigabytes:,.0f} GB plain and {FULL_LINES / 1e9:.1f} billion lines "
        f"({FULL_BYTES / FULL_LINES:.0f} bytes a line; here {per_line:.0f}). Straight lines through the "
        f"{len(points)} points: CPU s with 1 thread = {full['cpu_start']:.2f} + {full['cpu_per_gb']:.3f} per GB; "
        f"wall s with 2 threads = {full['wall_start']:.2f} + {full['wall_per_gb']:.3f} per GB, so "
        f"{full['wall_start']:.1f} + {gigabytes:,.0f} * {full['wall_per_gb']:.3f} = {60 * wall:,.0f} s = "
        f"{wall:.1f} minutes. Memory with 2 threads grows by {full['peak_per_gb']:.2f} MB per GB. Disk: "
        f"{full['disk'] / 1e9:.0f} GB of coded parts, {full['most_disk'] / 1e9:.0f} GB at most while parsing, beside "
        "the gzip of the dump itself, which is never unpacked. Not in it: the closure, see the next sections."
    )
