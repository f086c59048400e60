"""What every flow runs in: the retry policy of tasks, the results artifact. Its server: server.py; Dask: cluster.py.

Importing this module does not import Prefect; each function imports what it needs when it is called.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from uuid import UUID

    from prefect import Task
    from prefect.client.schemas.objects import State, TaskRun

P = ParamSpec("P")
R = TypeVar("R")

IO_RETRIES = 2
RESULTS_KEY = "results"


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import heavy packages inside this context: a third of their CPU time is garbage collection that frees nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()  # no gc.freeze: what is frozen is not freed at exit, and duckdb's bindings complain at length


def pipeline_task(
    name: str, *, io: bool = False, run_name: str | None = None
) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Return the decorator that makes a function a task of this pipeline.

    Prefect neither caches nor keeps what tasks return: the artifact store alone decides what is skipped. Only tasks
    marked ``io`` are tried again, and only after an ``OSError``: no other error of ours goes away by itself.
    """
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    return task(
        name=name,
        task_run_name=run_name and run_name.replace("{", "{{").replace("}", "}}"),  # a file's name may hold braces
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=IO_RETRIES if io else 0,
        retry_delay_seconds=1,
        retry_condition_fn=_is_io_failure if io else None,
    )


def _is_io_failure(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    return isinstance(state.result(raise_on_failure=False), OSError)


def write_results_artifact(markdown: str, *, description: str = "What this run measured") -> UUID:
    """Show ``markdown`` as the artifact ``results`` of the running flow or task in Prefect's UI; return its id."""
    from prefect.artifacts import create_markdown_artifact

    made = create_markdown_artifact(markdown, key=RESULTS_KEY, description=description)
    return cast("UUID", made)  # a coroutine only where called from one


def run_as_task(work: Callable[[], R], *, title: str, key: str, io: bool) -> R:
    """Do a piece of work as one Prefect task, whose run is called by the stage's key."""

    @pipeline_task(title, io=io, run_name=key)
    def stage() -> R:
        return work()

    return stage()
