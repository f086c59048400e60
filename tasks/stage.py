"""The Prefect task around a stage: its name, its retries, and nothing else. What it does is declared in the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


def run_as_task(work: Callable[[], R], *, title: str, key: str, io: bool) -> R:
    """Do a piece of work as one Prefect task, whose run is called by the stage's key."""
    from tasks.runtime import pipeline_task

    @pipeline_task(title, io=io, run_name=key)
    def stage() -> R:
        return work()

    return stage()
