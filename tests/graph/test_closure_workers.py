"""A closure on workers: the same bytes for any number of them, with tasks run twice, out of order, or killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.freebase.world import World
from benchmarks.freebase_dump import draw_topics, write_dump
from kgqa_core.config import ClusterSection
from kgqa_core.graph import closure_walk
from kgqa_core.graph.build import BuildLimits
from kgqa_core.graph.closure import build_from_dump
from kgqa_core.graph.dump import parse_dump
from kgqa_core.graph.dump_rows import DumpOptions
from kgqa_core.graph.fan_out import fan_out
from kgqa_core.run.cluster import open_cluster

PLAIN_BYTES = 1_500_000
OPTIONS: dict[str, dict[str, Any]] = {"two hops": {"hops": 2, "cvt_is_hop": False}, "everything": {"hops": None}}
SHARD_ROWS = 499
Contents = Callable[[Path], dict[str, bytes]]
Built = dict[str, dict[str, bytes]]
KILLED = {"run_query", "write_runs", "write_bucket"}
MapTasks = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up dump, parsed, several parts of each kind."""
    folder = tmp_path_factory.mktemp("dump")
    write_dump(folder / "dump.nt.gz", plain_bytes=PLAIN_BYTES)
    (folder / "parts").mkdir()
    parse_dump(folder / "dump.nt.gz", folder / "parts", options=DumpOptions(block_bytes=2**17, blocks_per_part=2))
    assert len(list((folder / "parts").glob("triples-*.parquet"))) > 3
    return folder / "parts"


@pytest.fixture(autouse=True, scope="module")
def small_groups() -> Iterator[None]:
    """A task for each few hundred rows: more than one of each kind."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(closure_walk, "GROUP_ROWS", 1500)
        yield


@pytest.fixture(scope="module")
def topics() -> list[str]:
    return draw_topics(World(PLAIN_BYTES // 365, 0), 7)


@pytest.fixture(scope="module")
def expected(dump: Path, topics: list[str], tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The graphs that one process makes, undisturbed."""
    found = {}
    for name, options in OPTIONS.items():
        folder = tmp_path_factory.mktemp("expected")
        build_from_dump([dump], topics, folder, limits=BuildLimits(shard_rows=SHARD_ROWS), **options)
        found[name] = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert sum(file.startswith("triples-") for file in found[name]) > 2
    return found


def run_twice(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """What a worker does that is thought to be dead: it ends its work after another has done it."""
    first = [function(item) for item in items]
    second = [function(item) for item in items]
    assert repr(first) == repr(second)
    return second


def run_backwards(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    return [function(item) for item in reversed(list(items))][::-1]


@pytest.mark.parametrize(("how", "name"), [(run_twice, "two hops"), (run_backwards, "everything")])
def test_tasks_may_run_twice_and_in_any_order(
    dump: Path, topics: list[str], expected: Built, contents: Contents, tmp_path: Path, how: MapTasks, name: str
) -> None:
    build_from_dump([dump], topics, tmp_path, limits=BuildLimits(how, shard_rows=SHARD_ROWS), **OPTIONS[name])
    assert contents(tmp_path) == expected[name]


# Real workers


@pytest.fixture(scope="module", params=[1, 3])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with open_cluster(ClusterSection(workers=request.param), home=tmp_path_factory.mktemp("cluster")) as client:
        yield client


def killed_once(item: tuple[int, Any], *, function: Callable[[Any], Any], marks: Path) -> Any:
    """Do the work; the first time that a chosen task runs, its worker is killed before it can tell of it."""
    number, task = item
    result = function(task)
    mark = marks / f"{function.__name__}-{number}"
    if function.__name__ in KILLED and number == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return result


@pytest.mark.slow
def test_workers_that_are_killed_change_no_byte(
    dump: Path, topics: list[str], expected: Built, contents: Contents, client: object, tmp_path: Path
) -> None:
    marks = tmp_path / "killed"
    marks.mkdir()

    def map_tasks(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        return fan_out(client)(partial(killed_once, function=function, marks=marks), enumerate(items))

    limits = BuildLimits(map_tasks, shard_rows=SHARD_ROWS)
    build_from_dump([dump], topics, tmp_path / "graph", limits=limits, **OPTIONS["two hops"])
    assert contents(tmp_path / "graph") == expected["two hops"]
    assert {path.name for path in marks.iterdir()} == {f"{name}-1" for name in KILLED}
