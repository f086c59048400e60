"""Mapping shard-sized tasks over a Dask cluster. A module of its own: who builds in-process never loads Dask.

A task is an importable function of one item. Its results are files, each written under another name and renamed once
it is whole (``artifacts.written_whole``), and a small report: so a task that runs twice, because its worker died or was
only thought to, changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar
from uuid import uuid4

from kgqa_core.errors import KgqaError, shorten

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]  # (done, total)

POLL_SECONDS = 5.0  # between two looks at whether there still is a worker
PATIENCE_SECONDS = 120.0  # without any worker; a killed one is back within a few


def fan_out(
    client: Any,
    *,
    progress: Progress | None = None,
    arrived: Callable[[Any], None] = lambda result: None,
    patience: float = PATIENCE_SECONDS,
) -> Callable[[Callable[[Item], Result], Iterable[Item]], list[Result]]:
    """Return a stand-in for ``map`` that runs on the workers of a ``distributed.Client`` and keeps the items' order.

    Workers must see the same folders under the same paths. Items are taken when a worker is free for them, so there
    may be any number. A killed worker costs only its task, and results on their way from there to here: milliseconds
    after they were made. ``arrived`` gets each result; ``progress`` is told where the number of items is known.

    A failure is raised here and cancels what still waits. Raises KgqaError where a task's workers were killed time
    after time, with the item's name, and where there has been no worker for ``patience`` seconds.
    """
    slots = _Slots(client)

    def map_tasks(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        total = len(items) if isinstance(items, Sized) else None
        name = str(getattr(getattr(function, "func", function), "__name__", "task"))
        numbered = enumerate(items)
        upcoming = next(numbered, None)
        running: dict[Any, tuple[int, Item]] = {}
        results: dict[int, Result] = {}
        try:
            while upcoming is not None or running:
                while upcoming is not None and slots.take(wait=not running):
                    key = f"{name}-{uuid4().hex[:8]}-{upcoming[0]}-{name_of(upcoming[1])}"
                    running[client.submit(function, upcoming[1], key=key, pure=False)] = upcoming
                    upcoming = next(numbered, None)
                for future in _wait_for_some(client, list(running), patience):
                    number, item = running[future]
                    results[number] = _result_of(future, name, item)
                    del running[future]
                    future.release()  # else a worker that dies later would have its result to make again
                    slots.give(1)
                    arrived(results[number])
                    if progress is not None and total is not None:
                        progress(len(results), total)
        finally:
            slots.give(len(running))
            with suppress(OSError):  # a scheduler that is gone has forgotten them
                client.cancel(list(running))
        return [results[number] for number in range(len(results))]

    return map_tasks


class _Slots:
    """No more tasks at once than the cluster has threads, whoever asks.

    A task that waits behind another on the same worker would be blamed, too, where that one kills the worker.
    """

    def __init__(self, client: Any) -> None:
        self._client, self._taken, self._freed = client, 0, threading.Condition()

    def take(self, *, wait: bool) -> bool:
        """Take a slot; where none is free, wait for one or return False. Workers may come and go meanwhile."""
        while True:
            with _scheduler_lost():
                num_threads = max(1, sum(self._client.nthreads().values()))
            with self._freed:
                if self._taken < num_threads:
                    self._taken += 1
                    return True
                if not wait:
                    return False
                self._freed.wait(POLL_SECONDS)

    def give(self, count: int) -> None:
        with self._freed:
            self._taken -= count
            self._freed.notify_all()


def name_of(item: object) -> str:
    """Return what an item is called in errors and on Dask's pages: its path, or what it says of itself."""
    named = item if isinstance(item, str | Path) else getattr(item, "name", None) or getattr(item, "path", None)
    return str(named) if isinstance(named, str | Path) else shorten(item)


def _wait_for_some(client: Any, futures: list[Any], patience: float) -> Iterable[Any]:
    from distributed import wait

    alive = monotonic()
    while True:
        with _scheduler_lost():
            try:
                return list(wait(futures, timeout=min(POLL_SECONDS, patience), return_when="FIRST_COMPLETED").done)
            except TimeoutError:
                if client.nthreads():
                    alive = monotonic()
        if monotonic() - alive > patience:
            raise KgqaError(
                f"the Dask cluster has had no worker for {patience:.0f} s, and {len(futures)} tasks wait. Start "
                "workers that come back when they die (`dask worker` with its nanny, as by default), then run again: "
                "finished stages are kept."
            )


def _result_of(future: Any, function: str, item: object) -> Any:
    from distributed.scheduler import KilledWorker

    with _scheduler_lost():
        try:
            return future.result()
        except KilledWorker as problem:
            raise KgqaError(
                f"{name_of(item)}: every one of the {problem.allowed_failures + 1} workers that tried {function!r} on "
                "it was killed, most often for want of memory. Give each worker more (cluster.memory_limit), with "
                "fewer of them if need be (cluster.workers), then run again: finished stages are kept."
            ) from problem


@contextmanager
def _scheduler_lost() -> Iterator[None]:
    from distributed.comm.core import CommClosedError

    try:
        yield
    except (CancelledError, CommClosedError) as problem:
        raise KgqaError(
            "the Dask scheduler went away or dropped the tasks of this run. See that it runs (cluster.address), then "
            "run again: finished stages are kept."
        ) from problem
