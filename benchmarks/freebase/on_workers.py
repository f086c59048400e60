"""What the benchmark of workers does in processes of its own."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.freebase.schedule import Profile
from kgqa_core.graph.closure.closure import build_from_dump
from kgqa_core.graph.closure.options import ClosureLimits, ClosureOptions, MapTasks

NUM_EMPTY = 100  # tasks that do nothing


def make_many_parts(folder: str, num_triples: int, part_rows: int) -> int:
    """Write the coded parts of a dump, of so many triples each; return how many there are in all."""
    from benchmarks.freebase.coded import write_coded_parts

    return write_coded_parts(Path(folder), num_triples, part_rows=part_rows)["kept"]


def profile(parts: str, warm: str, topics: list[str], hops: int | None, scratch: str) -> dict[str, Any]:
    """Build in this process; return the CPU seconds of each task and of what is between the maps."""
    found = Profile()
    _build(warm, topics, hops, scratch, map)
    started, before = time.perf_counter(), time.process_time()

    def mapped(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        nonlocal before
        found.serial.append(time.process_time() - before)
        results, costs = [], []
        for item in items:
            begun = time.process_time()
            results.append(function(item))
            costs.append(time.process_time() - begun)
        found.maps.append(costs)
        before = time.process_time()
        return results

    _build(parts, topics, hops, scratch, mapped)
    found.serial.append(time.process_time() - before)
    return {"serial": found.serial, "maps": found.maps, "wall": time.perf_counter() - started}


def build_on_workers(
    parts: str, warm: str, topics: list[str], hops: int | None, scratch: str, workers: int
) -> dict[str, float]:
    """Build on a local cluster; return seconds of starting it, per empty task, and of the build, wall and CPU."""
    from kgqa_core.config import ClusterSection
    from kgqa_core.graph.fan_out import fan_out
    from kgqa_core.run.cluster import open_cluster

    started = time.perf_counter()
    with open_cluster(ClusterSection(workers=workers, memory_limit="4GB"), home=Path(scratch)) as client:
        map_tasks = fan_out(client)
        _build(warm, topics, hops, scratch, map_tasks)  # imports and compiled kernels, in every worker
        ready = time.perf_counter()
        map_tasks(abs, range(NUM_EMPTY))
        begun = time.perf_counter()
        used = -_cpu_seconds(client)
        _build(parts, topics, hops, scratch, map_tasks)
        used += _cpu_seconds(client)
        done = time.perf_counter()
    per_task = workers * (begun - ready) / NUM_EMPTY
    return {"start": ready - started, "per_task": per_task, "build": done - begun, "cpu": used}


def _cpu_seconds(client: Any) -> float:
    """Return the CPU seconds of this process, the scheduler's among them, and of the workers, so far."""
    of_workers: dict[str, float] = client.run(time.process_time)
    return time.process_time() + sum(of_workers.values())


def _build(parts: str, topics: list[str], hops: int | None, scratch: str, map_tasks: MapTasks) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as out:
        options, limits = ClosureOptions(hops=hops), ClosureLimits(map_tasks=map_tasks)
        build_from_dump([Path(parts)], topics, Path(out), options=options, limits=limits)
