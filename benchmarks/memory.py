"""Peak memory of 3-hop training, the whole flow: what the flow process and those it starts have resident."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import PROJECT, data_folder, kgqa_command, peak_megabytes, write_section

EVERY = 0.05  # seconds between two looks; a peak is kept by the system itself, only the end of a process can be missed
IMPORTS = "import torch, transformers, prefect, mlflow, numba, pyarrow, duckdb, matplotlib"
FULL, SMALL = "conf/metaqa-3hop.yaml", "conf/demo.yaml"  # what is run


@dataclass(slots=True)
class Watched:
    """A process and what it had resident."""

    name: str
    peaks: list[tuple[float, float]] = field(default_factory=list)  # (time, largest MB so far)

    def peak(self, at: float = float("inf")) -> float:
        """Return the largest MB up to a time."""
        return max((peak for when, peak in self.peaks if when <= at), default=0.0)


def run(home: Path, conf: str = FULL) -> None:
    """Run the configuration with one seed on a fresh home and watch its processes."""
    data_folder()
    with tempfile.TemporaryDirectory() as fresh:
        command = ["run", conf, "--set", "explorer.seeds=[0]"]
        flow, others = watch(command, Path(fresh))
        ends = stage_ends(Path(fresh))
    rows = [
        "| process | peak RSS, MB |",
        "|---|---:|",
        f"| **the flow process** (asked: 1,200) | **{flow.peak():,.0f}** |",
    ]
    rows += [f"| {other.name} | {other.peak():,.0f} |" for other in sorted(others, key=lambda one: -one.peak())]
    rows.append(f"| the imports alone, in a process of their own | {import_megabytes():,.0f} |")
    stages = ["| after the stage | peak of the flow process so far, MB |", "|---|---:|"]
    stages += [f"| {name} | {flow.peak(end):,.0f} |" for name, end in ends]
    note = (
        f"`kgqa {' '.join(command)}` on a fresh home. VmHWM of each process: shared pages count in each, and pages of "
        "memory-mapped files count as far as they were read."
    )
    write_section("Memory", "\n".join([*rows, "", note, "", *stages]), "python -m benchmarks memory")


def watch(arguments: list[str], home: Path) -> tuple[Watched, list[Watched]]:
    """Run a ``kgqa`` command and return what it had resident, and what the processes that it started had.

    Raises:
        SystemExit: the command failed.
    """
    command, options = kgqa_command(arguments, home)
    seen: dict[int, Watched] = {}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, **options) as process:
        while process.poll() is None:
            for pid in [process.pid, *descendants(process.pid)]:
                try:
                    seen.setdefault(pid, Watched(name_of(pid))).peaks.append((time.time(), peak_megabytes(pid)))
                except (OSError, ValueError):  # ended between two looks
                    continue
            time.sleep(EVERY)
    if process.returncode:
        raise SystemExit(f"kgqa {' '.join(arguments)} failed")
    return seen.pop(process.pid), [watched for watched in seen.values() if watched.peaks]


def descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and those that they did, while they run."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text(encoding="ascii").split()]
        except OSError:  # the thread has ended
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def name_of(pid: int) -> str:
    """Return the program of a process without its folders and arguments."""
    words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
    script = next((word for word in words[1:] if word.endswith(".py")), words[0])
    return Path(script).name or "?"


def stage_ends(home: Path) -> list[tuple[str, float]]:
    """Return when each stage was finished, in that order."""
    manifests = (home / "artifacts").glob("*/*/manifest.json")
    return sorted(((path.parent.parent.name, path.stat().st_mtime) for path in manifests), key=lambda one: one[1])


def import_megabytes() -> float:
    """Return what a Python that imports the large libraries, and does nothing, has resident."""
    code = f"{IMPORTS}\nfrom benchmarks.measure import peak_megabytes\nprint(peak_megabytes())"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])
