"""Asynchronous work as a plain iterator, whether or not the caller has an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _End:
    problem: BaseException | None


def iterate(work: Callable[[Callable[[T], None]], Awaitable[None]]) -> Iterator[T]:
    """Run ``work`` in an event loop of a thread of its own, and yield what it emits as it does.

    What it raises is raised here. A caller that stops early cancels it, and waits until it is gone.
    """
    emitted: queue.SimpleQueue[T | _End] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        await work(emitted.put)

    def cancel() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()

    def target() -> None:
        problem: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(run())
        except BaseException as raised:  # handed on to the caller's thread
            problem = raised
        emitted.put(_End(problem))

    thread = threading.Thread(target=target, name="kgqa-requests", daemon=True)
    thread.start()
    try:
        while not isinstance(item := emitted.get(), _End):
            yield item
        if item.problem is not None:
            raise item.problem
    finally:
        with contextlib.suppress(RuntimeError):  # it is over already
            loop.call_soon_threadsafe(cancel)
        thread.join()
