"""What the demo costs on a fresh home, and what a second run with nothing new costs."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.measure import kgqa_json, write_section


def run(home: Path) -> None:
    """Run the demo on a fresh home, then it and the joint MetaQA run again."""
    rows = ["| run | stages executed | CPU s | wall s |", "|---|---:|---:|---:|"]
    with tempfile.TemporaryDirectory() as fresh:
        rows.append(measure("conf/demo.yaml", Path(fresh), "on a fresh home"))
        rows.append(measure("conf/demo.yaml", Path(fresh), "again"))
    kgqa_json(["run", "conf/metaqa-joint.yaml"], home)
    rows.append(measure("conf/metaqa-joint.yaml", home, "again"))
    note = (
        "Of the whole command: its Prefect server and MLflow's bookkeeping included. Asked: the demo in at most 180 s "
        "on 2 cores, a run with nothing new in at most 15 CPU s."
    )
    write_section("First and second run", "\n".join([*rows, "", note]), "python -m benchmarks repeat")


def measure(conf: str, home: Path, when: str) -> str:
    """Run a configuration and return its row of the table."""
    found, cost = kgqa_json(["run", conf], home)
    built = sum(stage["built"] for stage in found["stages"])
    return f"| `kgqa run {conf}`, {when} | {built} | {cost.cpu_seconds:.1f} | {cost.wall_seconds:.1f} |"
