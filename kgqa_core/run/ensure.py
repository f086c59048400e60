"""Making what a run lacks: the stages that are asked for, and first whatever they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from kgqa_core.run.changes import accept_changes, compare_builds, find_changes
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from kgqa_core.run.stages import known_stages

R = TypeVar("R")


class Worker(Protocol):
    """What does a piece of work, such as a Prefect task: it adds a name, retries and a place in a UI."""

    def __call__(self, work: Callable[[], R], *, title: str, key: str, io: bool) -> R:
        """Return what ``work`` returns; ``io``: try again after an OSError."""


def work_here(work: Callable[[], R], *, title: str, key: str, io: bool) -> R:
    """Do a piece of work in this process, with nothing around it."""
    return work()


def ensure(
    pipeline: Pipeline, goals: Iterable[str], *, accept: bool = False, worker: Worker = work_here
) -> list[StageOutcome]:
    """Make the stages ``goals`` and all that they read, where the store lacks them.

    Graph and questions are compared with the last accepted build before anything is made of them.

    Args:
        pipeline: the run.
        goals: keys of stages.
        accept: go on from the new build however much changed since the last one.
        worker: does the work of each stage that is missing.

    Returns:
        all these stages in order, and the comparison of the builds where something changed.

    Raises:
        DriftError: more changed since the last accepted build than the configuration allows.
    """
    stages = known_stages()
    data = [key for key, spec in pipeline.specs.items() if stages[spec.stage].is_data]
    rest = [key for key in pipeline.needed_for(goals) if key not in data]
    outcomes = _make_all(pipeline, data, worker)
    if data and (builds := find_changes(pipeline, outcomes)):
        compare = partial(compare_builds, pipeline, builds)
        changes = worker(compare, title="compare builds", key="changes", io=False)
        accept_changes(pipeline, builds, changes.artifact, accept=accept)
        outcomes.append(changes)
    return [*outcomes, *_make_all(pipeline, rest, worker)]


def _make_all(pipeline: Pipeline, keys: Sequence[str], worker: Worker) -> list[StageOutcome]:
    made: dict[str, StageOutcome] = {}
    for key in keys:
        if key in made:
            continue
        if found := pipeline.find(key):
            pipeline.remember(key, found)
            made[key] = StageOutcome(key, found, built=False)
            continue
        spec = pipeline.specs[key]
        stage = known_stages()[spec.stage]
        for other in spec.depends_on_run.values():
            ensure(pipeline.other_run(other.conf), [other.key], worker=worker)
        if stage.build_all is None:
            made[key] = worker(partial(pipeline.make, key), title=stage.title, key=key, io=stage.io)
            continue
        alike = [each for each in keys if pipeline.specs[each].stage == stage.name and not pipeline.find(each)]
        work = partial(stage.build_all, pipeline, alike)
        name = key if len(alike) == 1 else f"{stage.name} ({len(alike)})"
        made |= {outcome.key: outcome for outcome in worker(work, title=stage.title, key=name, io=stage.io)}
    return [made[key] for key in keys]
