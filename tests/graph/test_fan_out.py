"""Chunks mapped over a real Dask cluster give the same bytes as in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kgqa_core.errors import InputError
from kgqa_core.graph.build import BuildLimits, build_graph
from kgqa_core.graph.fan_out import fan_out
from kgqa_core.graph.kg import open_graph
from kgqa_core.graph.subgraph_build import build_subgraphs
from tests.nsm import write_nsm

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client() -> Iterator[object]:
    """Two worker processes of one thread each."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_fanning_out_gives_the_same_bytes(
    tmp_path: Path, client: object, contents: Callable[[Path], dict[str, bytes]]
) -> None:
    path = tmp_path / "kb.txt"
    path.write_text("".join(f"e{n % 53}|r{n % 7}|e{n * n % 61}\n" for n in range(1_009)) + "bad\n", encoding="utf-8")
    for name, mapper in (("here", map), ("there", fan_out(client))):
        limits = BuildLimits(mapper, chunk_bytes=1_013)
        build_graph(path, format="wikimovies", out_dir=tmp_path / name, max_reject_ratio=0.01, limits=limits)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


def test_subgraphs_are_packed_alike_on_workers(
    tmp_path: Path, client: object, contents: Callable[[Path], dict[str, bytes]]
) -> None:
    path = write_nsm(tmp_path / "dev.jsonl")
    for name, mapper in (("here", map), ("there", fan_out(client))):
        limits = BuildLimits(mapper, chunk_bytes=307)
        build_graph(path, format="nsm", out_dir=tmp_path / "graphs" / name, limits=limits)
        (tmp_path / name).mkdir()
        graph = open_graph(tmp_path / "graphs" / name)
        build_subgraphs([path], graph=graph, out_dir=tmp_path / name, map_chunks=mapper, chunk_bytes=307)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    assert contents(tmp_path / "graphs" / "here") == contents(tmp_path / "graphs" / "there")


def _fail(number: int) -> int:
    raise InputError(f"chunk {number} is unreadable")


def test_a_failure_on_a_worker_is_raised_here(client: object) -> None:
    with pytest.raises(InputError, match="is unreadable"):
        fan_out(client)(_fail, range(3))
