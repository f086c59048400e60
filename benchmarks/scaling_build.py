"""Building one synthetic graph in a process of its own, without torch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import peak_megabytes
from benchmarks.synthetic import draw_triples, write_triples
from kgqa_core.graph.build import build_graph


@dataclass(frozen=True, slots=True)
class Built:
    """What building cost."""

    triples: int  # distinct
    entities: int
    seconds: float  # CPU, all threads
    megabytes: float  # of the graph's folder
    peak: float  # MB of the process


def make_file(path: Path, count: int) -> None:
    """Write a synthetic graph as TSV."""
    write_triples(draw_triples(count), path)


def build_one(path: Path, folder: Path) -> Built:
    """Build the graph of a TSV file."""
    started = time.process_time()
    report = build_graph(path, format="tsv", out_dir=folder)
    seconds = time.process_time() - started
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
    return Built(report.num_triples, report.num_entities, seconds, size, peak_megabytes())
