"""Malformed lines at known places: are all caught, with their exact numbers, and nothing else, by all three readers?"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.child import run_child
from benchmarks.freebase.children import parse, read_lines
from benchmarks.freebase.faults import MALFORMED, ODD
from benchmarks.freebase_dump import Dump, write_dump
from benchmarks.measure import write_section
from kgqa_core.graph.dump.codes import NO_NUMBA


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    plain_bytes: int
    malformed_share: float
    odd_share: float


FULL = Size(plain_bytes=200_000_000, malformed_share=1e-3, odd_share=2e-4)
SMALL = Size(plain_bytes=2_000_000, malformed_share=8e-3, odd_share=2e-3)


@dataclass(frozen=True, slots=True)
class Found:
    """What a reader made of a dump."""

    rejects: dict[int, str]  # line -> reason
    triples: int  # kept
    cpu: float  # seconds


def run(home: Path, size: Size = FULL) -> None:
    """Read one dump three ways and write the section."""
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        folder = Path(scratch)
        shares = {"malformed_share": size.malformed_share, "odd_share": size.odd_share}
        dump = write_dump(folder / "dump.nt.gz", plain_bytes=size.plain_bytes, **shares)
        paths: dict[str, Callable[[], Found]] = {
            "compiled scanner": lambda: by_parser(dump.path, folder),
            "the same without numba": lambda: by_parser(dump.path, folder, {NO_NUMBA: "1"}),
            "oracle: one regular expression per line": lambda: by_oracle(dump.path),
        }
        found = {name: read() for name, read in paths.items()}
    write_section(
        "Freebase: malformed lines",
        "\n\n".join([headline(dump, found), "\n".join(path_rows(dump, found)), "\n".join(kind_rows(dump, found))]),
        "python -m benchmarks freebase_malformed",
    )


def by_parser(path: Path, folder: Path, environment: dict[str, str] | None = None) -> Found:
    """Read a dump with the package's parser, in a process of its own."""
    out = folder / "parts"
    out.mkdir()
    child = run_child(parse, environment=environment, path=path, out=out)
    table = pq.read_table(out / "rejects.parquet")
    shutil.rmtree(out)
    rejects = dict(zip(table["line"].to_pylist(), table["reason"].to_pylist(), strict=True))
    return Found(rejects, child.result["rows"]["triples"], child.cpu)


def by_oracle(path: Path) -> Found:
    """Read a dump line by line, in a process of its own."""
    child = run_child(read_lines, path=path)
    return Found(
        {int(line): reason for line, reason in child.result["rejects"].items()}, child.result["triples"], child.cpu
    )


def headline(dump: Dump, found: dict[str, Found]) -> str:
    """Say what was planted and whether all was found."""
    planted = {one.line for one in dump.malformed}
    exact = all(set(one.rejects) == planted for one in found.values())
    kinds = len({one.kind for one in dump.malformed})
    verdict = "all three readers reject exactly those lines" if exact else "NOT all readers reject exactly those lines"
    return (
        f"{dump.lines:,} lines, {dump.plain_bytes / 1e6:,.0f} MB; {len(dump.malformed):,} malformed ones of {kinds} "
        f"kinds planted at known places (asked: 8), and {len(dump.odd):,} that are legal but look odd, of "
        f"{len({one.kind for one in dump.odd})} kinds: {verdict}."
    )


def path_rows(dump: Dump, found: dict[str, Found]) -> list[str]:
    """Return a row per reader."""
    planted = {one.line for one in dump.malformed}
    rows = [
        "| reader | caught, exact line | missed | rejected besides | triples kept | CPU s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, one in found.items():
        caught = set(one.rejects)
        rows.append(
            f"| {name} | {len(caught & planted):,} | {len(planted - caught):,} | {len(caught - planted):,} | "
            f"{one.triples:,} | {one.cpu:.1f} |"
        )
    return rows


def kind_rows(dump: Dump, found: dict[str, Found]) -> list[str]:
    """Return a row per kind of planted line: how often each reader caught it, and why it says that it did."""
    rows = [f"| kind | planted | {' | '.join(found)} | reasons given |", f"|---|---:|{'---:|' * len(found)}---|"]
    for kind in (*sorted(MALFORMED), *sorted(ODD)):
        lines = [one.line for one in (*dump.malformed, *dump.odd) if one.kind == kind]
        caught = [f"{sum(line in one.rejects for line in lines):,}" for one in found.values()]
        reasons = Counter(one.rejects[line] for one in found.values() for line in lines if line in one.rejects)
        given = ", ".join(sorted(reasons)) if kind in MALFORMED else "none: legal"
        shown = json.dumps(kind)[1:-1]
        rows.append(f"| {shown} | {len(lines):,} | {' | '.join(caught)} | {given} |")
    return rows
