"""Building one synthetic graph in a process of its own, without torch."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.child import folder_bytes
from benchmarks.synthetic import draw_triples, write_triples
from kgqa_core.graph.build import build_graph


def make_file(path: str, count: int) -> None:
    """Write a synthetic graph as TSV."""
    write_triples(draw_triples(count), Path(path))


def build_one(path: str, folder: str) -> dict[str, float]:
    """Build the graph of a TSV file; return its distinct triples, entities and megabytes, and CPU seconds."""
    started = time.process_time()
    report = build_graph(Path(path), format="tsv", out_dir=Path(folder))
    seconds, size = time.process_time() - started, folder_bytes(Path(folder)) / 1e6
    return {"triples": report.num_triples, "entities": report.num_entities, "build": seconds, "megabytes": size}
