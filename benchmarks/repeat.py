"""What a second run with nothing new costs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import kgqa_json, write_section


def run(home: Path) -> None:
    """Run the demo and the joint MetaQA run twice and measure the second time."""
    rows = ["| run | stages executed | CPU s | wall s |", "|---|---:|---:|---:|"]
    for conf in ("conf/demo.yaml", "conf/metaqa-joint.yaml"):
        kgqa_json(["run", conf], home)
        found, cost = kgqa_json(["run", conf], home)
        built = sum(stage["built"] for stage in found["stages"])
        rows.append(f"| `kgqa run {conf}` | {built} | {cost.cpu_seconds:.1f} | {cost.wall_seconds:.1f} |")
    note = "CPU seconds of the whole command: its Prefect server and MLflow's bookkeeping included. Asked: at most 15."
    write_section("Second run with nothing new", "\n".join([*rows, "", note]), "python -m benchmarks repeat")
