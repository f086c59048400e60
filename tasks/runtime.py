"""What every flow runs in: the retry policy of tasks, the results artifact, the Dask cluster. Its server: server.py.

Importing this module imports neither Prefect nor Dask; each function imports what it needs when it is called.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from kgqa_core.errors import KgqaError

if TYPE_CHECKING:
    from uuid import UUID

    from distributed import Client
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


def pipeline_task(name: str, *, io: bool = False) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Return the decorator that makes a function a task of this pipeline.

    Prefect neither caches nor keeps what tasks return: the artifact store alone decides what is skipped. Only tasks
    marked ``io`` are tried again, and only after an ``OSError``: no other error of ours goes away by itself.
    """
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    return task(
        name=name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=IO_RETRIES if io else 0,
        retry_delay_seconds=1,
        retry_condition_fn=_is_io_failure if io else None,
    )


def _is_io_failure(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Is this failure one that trying again may mend?"""
    try:
        state.result()
    except OSError:
        return True
    except Exception:  # whatever it is, the flow reports it; here only its kind matters
        return False
    return False


def write_results_artifact(markdown: str, *, description: str = "What this run measured") -> UUID:
    """Show ``markdown`` as the artifact ``results`` of the running flow or task in Prefect's UI; return its id."""
    from prefect.artifacts import create_markdown_artifact

    made = create_markdown_artifact(markdown, key=RESULTS_KEY, description=description)
    return cast("UUID", made)  # a coroutine only where called from one


@contextmanager
def local_cluster(
    num_workers: int, *, scratch: Path, scheduler: str | None = None, timeout: float = 30.0
) -> Iterator[Client]:
    """Yield a client of a Dask cluster: a local one for as long as the context lasts, or that at ``scheduler``.

    Local workers are processes with one thread each (and one OpenMP thread, else they fight for cores), spill to
    ``scratch`` and end with the context.

    Raises ``KgqaError`` where no scheduler answers at ``scheduler`` within ``timeout`` seconds.
    """
    import dask
    from distributed import Client, LocalCluster

    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=timeout)
        except (OSError, ValueError) as problem:
            raise KgqaError(
                f"No Dask scheduler answers at {scheduler!r} ({problem}). Start one with `dask scheduler`, or leave "
                "the address out to use a local cluster."
            ) from problem
        with client:
            yield client
        return
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    logging.getLogger("distributed").setLevel(logging.WARNING)
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ": {**threads, "PYTHONSAFEPATH": "1"}}),
        LocalCluster(
            n_workers=num_workers,
            threads_per_worker=1,
            host="127.0.0.1",
            # No dashboard; the scheduler's own port for health checks is any free one, not always the same.
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            silence_logs=logging.WARNING,
            local_directory=str(scratch),
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
