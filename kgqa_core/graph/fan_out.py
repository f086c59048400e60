"""Mapping chunks over a Dask cluster. A module of its own, so that whoever builds in-process never loads Dask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

FAN_OUT_BYTES = 256 * 2**20
"""Input size from which starting a local cluster (seconds) pays; smaller files are read in-process."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def fan_out(client: Any) -> Callable[[Callable[[Item], Result], Iterable[Item]], list[Result]]:
    """Return a stand-in for ``map`` that runs on the workers of a ``distributed.Client`` and keeps the items' order.

    Workers must see the same folders under the same paths. A failure is raised here and cancels what still waits.
    """

    def map_chunks(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        futures = client.map(function, list(items), pure=False)
        try:
            results: list[Result] = client.gather(futures)
            return results
        finally:
            client.cancel(futures)

    return map_chunks
