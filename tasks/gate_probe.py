"""A fresh process that loads a release as a server would, and answers some questions: what does that take?

Usage: python -m tasks.gate_probe SERVED HOME QUESTIONS.json REPLY.json
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from pathlib import Path

from kgqa_core.run.ask import Asked, open_served


def main(served: Path, home: Path, questions: Path, reply: Path) -> None:
    """Write load_seconds, max_seconds and mean_seconds of a question, memory_mb at its peak, and errors."""
    started = time.perf_counter()
    answerer = open_served(served, home)
    answerer.ask("ready?", answerer.system.graph.label_of(0))  # loads or compiles the walk
    loaded = time.perf_counter() - started
    seconds, errors = [], []
    for row in json.loads(questions.read_text(encoding="utf-8")):
        began = time.perf_counter()
        (answer,) = answerer.ask_all([Asked(row["question"], row["topic"])])
        seconds.append(time.perf_counter() - began)
        if answer.error:
            errors.append(f"{row['question']}: {answer.error}")
    found = {
        "load_seconds": loaded,
        "max_seconds": max(seconds, default=0.0),
        "mean_seconds": sum(seconds) / max(len(seconds), 1),
        "memory_mb": peak_mb(),
    }
    reply.write_text(json.dumps({**found, "errors": errors}), encoding="utf-8")


def peak_mb() -> float:
    """Return the most memory that this process had, in MB. Linux' ru_maxrss begins with the peak of who started it."""
    status = Path("/proc/self/status")
    found = status.exists() and re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="utf-8"))
    return (int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024 / 1e6


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
