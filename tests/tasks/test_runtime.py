"""The policy of tasks, quick imports, and a Dask cluster that starts only when asked and leaves nothing behind."""

from __future__ import annotations

import gc
import http
import http.client
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tasks.runtime
from kgqa_core.errors import KgqaError
from tasks.leftovers import process_started
from tasks.runtime import local_cluster, pipeline_task, quick_imports

ROOT = Path(tasks.runtime.__file__).parents[1]


def test_the_rooms_around_a_run_are_entered_without_loading_what_is_heavy() -> None:
    program = (
        "import sys, tasks.runtime, tasks.server, tasks.tracking, tasks.registry\n"
        "print([name for name in ('prefect', 'mlflow', 'dask', 'distributed', 'torch', 'matplotlib', 'pandas') "
        "if name in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == "[]"


def test_a_task_caches_and_keeps_nothing_and_only_io_is_tried_again() -> None:
    from prefect.cache_policies import NO_CACHE

    plain = pipeline_task("train explorer")(threads_and_process)
    assert plain.name == "train explorer"
    assert (plain.cache_policy, plain.persist_result, plain.retries) == (NO_CACHE, False, 0)
    reading = pipeline_task("read shards", io=True)(threads_and_process)
    assert (reading.cache_policy, reading.persist_result, reading.retries) == (NO_CACHE, False, 2)


@pytest.mark.parametrize("was_on", [True, False])
def test_garbage_collection_pauses_while_importing_and_is_as_it_was_afterwards(was_on: bool) -> None:
    (gc.enable if was_on else gc.disable)()
    try:
        with pytest.raises(ImportError), quick_imports():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == was_on
    finally:
        gc.enable()


def threads_and_process() -> tuple[str | None, int]:
    return os.environ.get("OMP_NUM_THREADS"), os.getpid()


def is_served(host: str, port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    finally:
        connection.close()


@pytest.mark.slow
def test_local_workers_are_processes_of_one_thread_that_end_with_the_context(tmp_path: Path) -> None:
    with local_cluster(2, scratch=tmp_path) as client:
        workers = client.scheduler_info()["workers"]
        assert [worker["nthreads"] for worker in workers.values()] == [1, 1]
        assert not is_served("127.0.0.1", client.scheduler_info()["services"]["dashboard"], "/status")
        answers = client.run(threads_and_process).values()
        assert [threads for threads, _ in answers] == ["1", "1"]
        pids = [pid for _, pid in answers]
        assert os.getpid() not in pids
        assert client.submit(sum, [2, 3, 5, 7]).result() == 17
        # A cluster that is already there is used as it is, and goes on when the second client leaves.
        address = client.scheduler_info()["address"]
        with local_cluster(13, scratch=tmp_path, scheduler=address) as second:
            assert len(second.scheduler_info()["workers"]) == 2
        assert client.submit(sum, [11, 13]).result() == 24
    assert [process_started(pid) for pid in pids] == [None, None]


def test_a_scheduler_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(KgqaError, match=r"tcp://127\.0\.0\.1:9.*dask scheduler"),
        local_cluster(2, scratch=tmp_path, scheduler="tcp://127.0.0.1:9", timeout=0.5),
    ):
        pytest.fail("port 9 is no scheduler")
