"""The policy of tasks, and quick imports."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tasks.runtime
from tasks.runtime import pipeline_task, quick_imports

ROOT = Path(tasks.runtime.__file__).parents[1]


def test_the_rooms_around_a_run_are_entered_without_loading_what_is_heavy() -> None:
    program = (
        "import sys, kgqa_core.run.cluster, tasks.runtime, tasks.server, tasks.tracking, tasks.registry\n"
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

    plain = pipeline_task("train explorer")(do_nothing)
    assert plain.name == "train explorer"
    assert (plain.cache_policy, plain.persist_result, plain.retries) == (NO_CACHE, False, 0)
    reading = pipeline_task("read shards", io=True)(do_nothing)
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


def do_nothing() -> None:
    pass
