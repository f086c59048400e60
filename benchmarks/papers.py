"""Every run file of the papers on the miniature: does each stage run, and in what time? Its figures mean nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.measure import PROJECT, write_section
from kgqa_core.config_file import read_config
from kgqa_core.errors import KgqaError

FILES = [path for path in sorted((PROJECT / "conf" / "papers").glob("*.yaml")) if path.name != "tables.yaml"]


def run(home: Path, files: list[Path] = FILES) -> None:
    """Run all in one process, one after another, and say how each went."""
    from flows.pipeline import retrain
    from tasks.miniature import enter_miniature
    from tasks.server import prefect_server

    os.environ["KGQA_HOME"] = str(home)
    rows = []
    with prefect_server(home):
        for conf in files:
            started, before = time.perf_counter(), time.process_time()
            try:
                summary = retrain(read_config(conf, enter_miniature(conf)))
                outcome = f"{len(summary.built)} of {len(summary.outcomes)} stages made, {len(summary.results)} rows"
            except KgqaError as problem:
                outcome = f"**failed**: {problem}"
            seconds, cpu = time.perf_counter() - started, time.process_time() - before
            rows.append(f"| {conf.name} | {seconds:.0f} | {cpu:.0f} | {outcome} |")
            print(rows[-1], flush=True)
    text = "What a file shares with one before it is made once; a command of its own takes its start beside this.\n\n"
    text += "| run file | s | CPU s | outcome |\n|---|---:|---:|---|\n" + "\n".join(rows)
    write_section("The papers' run files in small", text, "python -m benchmarks papers")


SMALL = [path for path in FILES if path.name in ("rog-webqsp.yaml", "etd-wc2014.yaml")]
