"""Tasks mapped over a real Dask cluster: the same bytes as in this process, whoever is killed meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kgqa_core import schemas
from kgqa_core.config import ClusterSection
from kgqa_core.config_base import SubgraphSection
from kgqa_core.errors import InputError, KgqaError
from kgqa_core.graph import closure_walk
from kgqa_core.graph.build import BuildLimits, build_graph
from kgqa_core.graph.closure import build_from_dump
from kgqa_core.graph.formats import Chunk
from kgqa_core.graph.input_files import records_table
from kgqa_core.graph.kg import open_graph
from kgqa_core.graph.subgraph_build import build_subgraphs
from kgqa_core.graph.subgraph_cut import QUESTIONS_FILE, cut_subgraphs
from kgqa_core.run import cluster
from kgqa_core.run.cluster import fan_out, name_of, open_cluster
from kgqa_core.types import Question
from tests.graph.closure_worlds import World, write_parts
from tests.nsm import write_nsm
from tests.processes import NO_DASHBOARD

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Two worker processes of one thread each; a task may lose one of them, and no more."""
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        open_cluster(ClusterSection(workers=2), home=tmp_path_factory.mktemp("cluster")) as client,
    ):
        yield client


def _build_and_pack(folder: Path, mapper: Any) -> None:
    """Build the graph of questions with subgraphs, and pack these."""
    path = write_nsm(folder / "dev.jsonl")
    build_graph(path, format="nsm", out_dir=folder / "graph", limits=BuildLimits(mapper, chunk_bytes=307))
    (folder / "blocks").mkdir()
    graph = open_graph(folder / "graph")
    build_subgraphs([path], graph=graph, out_dir=folder / "blocks", map_chunks=mapper, chunk_bytes=307)


def _build_and_cut(folder: Path, mapper: Any) -> None:
    """Build the graph of a file with a reject in it, and cut subgraphs."""
    path = folder / "kb.txt"
    path.write_text("".join(f"e{n % 53}|r{n % 7}|e{n * n % 61}\n" for n in range(1_009)) + "bad\n", encoding="utf-8")
    limits = BuildLimits(mapper, chunk_bytes=1_013)
    build_graph(path, format="wikimovies", out_dir=folder / "graph", max_reject_ratio=0.01, limits=limits)
    questions = [Question(f"q{n}", "?", "?", (n,), ((n * 5) % 31,), "test") for n in range(31)]
    pq.write_table(records_table(questions, schemas.QUESTIONS), folder / QUESTIONS_FILE)
    (folder / "blocks").mkdir()
    graph, cut = open_graph(folder / "graph"), SubgraphSection(method="pagerank", max_entities=13)
    cut_subgraphs(folder, graph=graph, cut=cut, out_dir=folder / "blocks", map_buckets=mapper, bucket_questions=7)


def _follow_dump(folder: Path, mapper: Any) -> None:
    """Build the closure of a parsed dump, in several tasks of each kind."""
    triples = tuple((f"m.0{n % 53}", f"r{n % 7}", f"m.0{n * n % 61}") for n in range(211))
    names = tuple((f"m.0{n}", n % 3, None if n % 3 == 2 else f"name {n % 5}") for n in range(31))
    world = World((triples,), names, (("m.05", "film.film"),), ("m.05",))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(closure_walk, "GROUP_ROWS", 50)
        limits = BuildLimits(mapper, shard_rows=17)
        dumps = write_parts(world, folder / "dumps", part_rows=23)
        build_from_dump(dumps, world.topics, folder / "graph", cvt_is_hop=False, limits=limits)


Make = Callable[[Path, Any], None]


def assert_alike(tmp_path: Path, make: Make, mapper: Any) -> None:
    """Make the same here and elsewhere, and compare the bytes."""
    found = []
    for name, how in (("here", map), ("there", mapper)):
        (tmp_path / name).mkdir()
        make(tmp_path / name, how)
        folders = [tmp_path / name / part for part in ("graph", "blocks")]
        files = [path for folder in folders for path in sorted(folder.glob("*"))]
        found.append({path.relative_to(tmp_path / name): path.read_bytes() for path in files})
    assert found[0] == found[1]


@pytest.mark.parametrize("make", [_build_and_pack, _build_and_cut, _follow_dump])
def test_fanning_out_gives_the_same_bytes(tmp_path: Path, client: object, make: Make) -> None:
    assert_alike(tmp_path, make, fan_out(client))


# Results


def _square(number: int) -> int:
    return number * number


def test_results_are_in_order_and_progress_is_told_where_the_number_of_items_is_known(client: object) -> None:
    told: list[tuple[int, int]] = []
    map_tasks = fan_out(client, progress=lambda done, total: told.append((done, total)))
    assert map_tasks(_square, []) == []
    assert map_tasks(_square, [2, 3, 5]) == [4, 9, 25]
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert map_tasks(_square, iter([2, 3])) == [4, 9]
    assert len(told) == 3


def _touch(path: Path) -> None:
    path.touch()


def test_items_are_taken_when_a_worker_is_free_for_them(client: object, tmp_path: Path) -> None:
    ahead: list[int] = []

    def items() -> Iterator[Path]:
        for number in range(31):
            ahead.append(number - len(list(tmp_path.iterdir())))
            yield tmp_path / str(number)

    fan_out(client)(_touch, items())
    assert len(list(tmp_path.iterdir())) == 31
    assert max(ahead) <= 2 + 1  # two workers, and the next one in hand


# Failures


def _fail_at_three(path: Path) -> None:
    if path.name == "3":
        raise InputError(f"chunk {path.name} is unreadable")
    path.touch()


def test_a_failure_on_a_worker_is_raised_here_and_ends_the_rest(client: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="chunk 3 is unreadable"):
        fan_out(client)(_fail_at_three, (tmp_path / str(number) for number in range(97)))
    assert len(list(tmp_path.iterdir())) < 50  # the other worker went on until it was heard of
    assert fan_out(client)(_square, range(3)) == [0, 1, 4]


def test_without_a_worker_there_is_an_end_to_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import Client, LocalCluster

    monkeypatch.setattr(cluster, "PATIENCE_SECONDS", 0.3)

    with (
        LocalCluster(n_workers=0, processes=False, scheduler_kwargs=NO_DASHBOARD) as empty,
        Client(empty) as client,
        pytest.raises(KgqaError, match=r"no worker for 0 s, and 1 tasks wait. Start workers"),
    ):
        fan_out(client)(_square, range(3))


# Killed workers


def _die_once(path: Path) -> int:
    """Note that this item was worked on; end the worker the first time it is told to work on the victim."""
    with path.open("a") as stream:
        stream.write("x")
    if path.name == "victim" and path.stat().st_size == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def test_a_killed_worker_costs_only_its_task_and_a_result_on_its_way(client: object, tmp_path: Path) -> None:
    names = [*map(str, range(11)), "victim", *map(str, range(11, 23))]
    fan_out(client)(_die_once, [tmp_path / name for name in names])
    times = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert times.keys() == set(names)
    assert times.pop("victim") == 2
    # Two workers, two tasks at once: beside the victim, one may have ended whose report is not fetched yet.
    again = [name for name, count in times.items() if count > 1]
    assert len(again) <= 1
    assert all(times[name] == 2 for name in again)


def _always_die(path: Path) -> None:
    if path.name == "poison":
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_task_that_always_dies_names_its_input_and_what_to_do(client: object, tmp_path: Path) -> None:
    items = [tmp_path / name for name in ("a", "b", "c", "poison", *map(str, range(97)))]
    with pytest.raises(KgqaError) as caught:
        fan_out(client)(_always_die, items)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'poison'}: every one of the 2 workers that tried '_always_die' on it")
    assert "cluster.memory_limit" in message
    assert fan_out(client)(_square, range(3)) == [0, 1, 4]  # workers are back


def _killed_once(item: tuple[int, Any], *, function: Callable[[Any], Any], when: str, marks: Path) -> Any:
    """Do the work; the first time that it is the turn of item 1, end the worker at this point of it."""
    number, task = item
    mark = marks / getattr(function, "func", function).__name__
    if number != 1 or mark.exists():
        return function(task)
    mark.touch()
    if when == "after":
        function(task)
    elif when == "meanwhile":
        import pyarrow.parquet as pq

        def half_of_it(table: object, path: Path, **options: object) -> None:
            path.write_bytes(b"PAR1, and then the worker was killed")
            os.kill(os.getpid(), signal.SIGKILL)

        pq.write_table = half_of_it
        function(task)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("make", "when", "num_killed"),
    [(_build_and_pack, "before", 2), (_build_and_pack, "meanwhile", 2), (_follow_dump, "after", 3)],
)
def test_a_worker_killed_at_any_point_of_a_build_changes_no_byte(
    tmp_path: Path, client: object, make: Make, when: str, num_killed: int
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def map_tasks(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        return fan_out(client)(partial(_killed_once, function=function, when=when, marks=marks), enumerate(items))

    assert_alike(tmp_path, make, map_tasks)
    assert len(list(marks.iterdir())) == num_killed  # once in each kind of task


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ("kb.txt", "kb.txt"),
        (Path("data/kb.txt"), "data/kb.txt"),
        (Chunk(Path("kb.txt"), "tsv", (), 3, 17, Path("part")), "kb.txt, bytes 3 to 17"),
        (Chunk(Path("kb.parquet"), "parquet", (), 0, 2, Path("part")), "kb.parquet, row groups 0 to 2"),
        (Chunk(Path("train.parquet"), "rog", (), 0, 64, Path("part")), "train.parquet, rows 0 to 64"),
        (41, "41"),
    ],
)
def test_an_item_is_called_by_its_file(item: object, name: str) -> None:
    assert name_of(item) == name
