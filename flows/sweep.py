"""The flow of a sweep: every point an ordinary run, then the comparison of all."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run

from flows.pipeline import PROJECT, retrain
from kgqa_core.artifacts import Artifact
from kgqa_core.errors import KgqaError
from kgqa_core.run.pipeline import StageOutcome
from kgqa_core.sweeps.points import SweepPoint, join_repetitions, read_sweep
from tasks.run_content import SweepRun, sweep_content
from tasks.sweep import compare_runs, read_point
from tasks.tracking import git_commit, publish_sweep

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """The outcome of a sweep."""

    name: str
    artifact: Artifact  # tables, plots and the document of the comparison
    built: dict[str, list[str]]  # label of a point -> stages that were made for it


@flow(name="sweep", persist_result=False)
def sweep(path: Path, overrides: list[str]) -> SweepSummary:
    """Run every point of a sweep file, and compare them."""
    plan = read_sweep(path, overrides)
    rows, built = [], {}
    for number, point in enumerate(plan.points, start=1):
        _log.info("run %d of %d: %s", number, len(plan.points), point.label)
        outcomes = run_point(point)
        built[point.label] = [outcome.key for outcome in outcomes if outcome.built]
        rows += read_point(point, outcomes)
    artifact = compare_runs(plan, rows)
    if plan.points[0].config.tracking.enabled:
        run = SweepRun(str(flow_run.id), git_commit(PROJECT))
        publish_sweep(plan.home, sweep_content(plan, run, artifact, join_repetitions(rows, plan.file.repeat)))
    return SweepSummary(plan.name, artifact, built)


def run_point(point: SweepPoint) -> tuple[StageOutcome, ...]:
    """Run one point as an ordinary run; an error of ours says which point it was."""
    try:
        return retrain(point.config).outcomes
    except KgqaError as problem:
        raise type(problem)(f"run {point.label!r} of the sweep: {problem}") from problem
