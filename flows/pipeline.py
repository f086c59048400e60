"""The flows. Each makes what it needs first, so any of them can be deployed on its own; a sweep is many runs."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import yaml
from prefect import flow
from prefect.runtime import flow_run

from flows.summary import RunSummary, summarise, write_report
from kgqa_core.artifacts import Artifact
from kgqa_core.config import RunConfig
from kgqa_core.config_base import FileDataset
from kgqa_core.config_file import config_hash, read_config
from kgqa_core.errors import ConfigError, KgqaError
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from kgqa_core.sweeps.points import SweepPoint, join_repetitions, read_sweep
from tasks.run_content import FlowRun, Serving, sweep_content
from tasks.runtime import run_as_task, write_results_artifact
from tasks.tracking import git_commit, publish, publish_sweep

_log = logging.getLogger(__name__)

PROJECT = Path(__file__).resolve().parents[1]


def open_pipeline(config: RunConfig | Path) -> Pipeline:
    """Return the stages of a run configuration, or of the file that holds one (what a deployment passes)."""
    return Pipeline(read_config(config) if isinstance(config, Path) else config)


def make(pipeline: Pipeline, *wanted: str, accept: bool = False) -> RunSummary:
    """Make the stages of these kinds or keys (default: all) and what they read; what is missing is a Prefect task."""
    goals = [key for key, spec in pipeline.specs.items() if not wanted or {key, spec.stage} & {*wanted}]
    outcomes = ensure(pipeline, goals, accept=accept, worker=run_as_task)
    return write_report(pipeline, summarise(pipeline, outcomes))


@flow(name="make_stages", persist_result=False)
def make_stages(config: RunConfig | Path, keys: tuple[str, ...]) -> RunSummary:
    """Make some stages, by their keys, and what they read: what a command lacks. A later run tells MLflow of them."""
    return make(open_pipeline(config), *keys)


@flow(name="build_graph", persist_result=False)
def build_graph(config: RunConfig | Path, accept: bool = False) -> RunSummary:
    """Build graph shards and linked questions; ``accept``: whatever changed since the last build."""
    return make(open_pipeline(config), "questions", accept=accept)


@flow(name="encode", persist_result=False)
def encode(config: RunConfig | Path) -> RunSummary:
    """Encode the distinct masked texts and the relations."""
    return make(open_pipeline(config), "encodings")


@flow(name="train_explorer", persist_result=False)
def train_explorer(config: RunConfig | Path) -> RunSummary:
    """Train one explorer per seed."""
    return make(open_pipeline(config), "explorer")


@flow(name="evaluate", persist_result=False)
def evaluate(config: RunConfig | Path) -> RunSummary:
    """Score the explorers beside their controls; a run with systems puts those side by side, and tells MLflow."""
    started_ms = round(time.time() * 1000)
    pipeline = open_pipeline(config)
    if pipeline.config.systems is None:
        return make(pipeline, "evaluation")
    return report(pipeline, make(pipeline, "comparison"), started_ms)


@flow(name="train_reasoner", persist_result=False)
def train_reasoner(config: RunConfig | Path) -> RunSummary:
    """Tune the language model on instructions from the graph, train the planners, score their plans, tell MLflow."""
    started_ms = round(time.time() * 1000)
    pipeline = open_pipeline(config)
    if pipeline.config.plans is None:
        raise ConfigError(f"run {pipeline.config.name!r} trains no planner: give its configuration a section 'plans'")
    return report(pipeline, make(pipeline, "reasoner", "plans"), started_ms)


@flow(name="retrain", persist_result=False)
def retrain(config: RunConfig | Path) -> RunSummary:
    """The whole flow: every stage, a results artifact, and the comparison in MLflow."""
    started_ms = round(time.time() * 1000)
    pipeline = open_pipeline(config)
    return report(pipeline, make(pipeline), started_ms)


def report(pipeline: Pipeline, summary: RunSummary, started_ms: int) -> RunSummary:
    """Show what a run found in Prefect's UI and in MLflow."""
    write_results_artifact(summary.markdown)
    if pipeline.config.tracking.enabled:
        publish(pipeline.home, describe_run(pipeline.config, started_ms), summary.outcomes)
    return summary


def describe_run(config: RunConfig, started_ms: int) -> FlowRun:
    """Return what a tracker shall know of the running flow."""
    return FlowRun(
        id=str(flow_run.id),
        name=str(flow_run.name),
        dataset=config.dataset.name,
        config_name=config.name,
        config_hash=config_hash(config),
        config_text=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
        git_commit=git_commit(PROJECT),
        started_ms=started_ms,
        serving=describe_serving(config),
        max_traces=config.systems.max_traces if config.systems else 0,
    )


def describe_serving(config: RunConfig) -> Serving | None:
    """Return what its explorers need where they are served; None where they are not registered.

    One that learned to explore a subgraph per question is not: whoever asks something new has none to give it.
    """
    if (
        config.explorer is None
        or not config.tracking.register_models
        or (isinstance(config.dataset, FileDataset) and config.dataset.subgraphs.method != "none")
    ):
        return None
    return Serving(config.encoding, config.evaluation, config.runtime.batch_size)


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """The outcome of a sweep."""

    name: str
    artifact: Artifact  # tables, plots and the document of the comparison
    built: dict[str, list[str]]  # label of a point -> stages that were made for it


@flow(name="sweep", persist_result=False)
def sweep(path: Path, overrides: list[str]) -> SweepSummary:
    """Run every point of a sweep file, and compare them."""
    from tasks.sweep import compare_runs, read_point  # loads matplotlib

    plan = read_sweep(path, overrides)
    rows, built = [], {}
    for number, point in enumerate(plan.points, start=1):
        _log.info("run %d of %d: %s", number, len(plan.points), point.label)
        outcomes = run_point(point)
        built[point.label] = [outcome.key for outcome in outcomes if outcome.built]
        rows += read_point(point, outcomes)
    artifact = compare_runs(plan, rows)
    if plan.points[0].config.tracking.enabled:
        told = {"flow_run_id": str(flow_run.id), "git_commit": git_commit(PROJECT)}
        publish_sweep(plan.home, sweep_content(plan, artifact, join_repetitions(rows, plan.file.repeat), **told))
    return SweepSummary(plan.name, artifact, built)


def run_point(point: SweepPoint) -> tuple[StageOutcome, ...]:
    """Run one point as an ordinary run; an error of ours says which point it was."""
    try:
        return retrain(point.config).outcomes
    except KgqaError as problem:
        raise type(problem)(f"run {point.label!r} of the sweep: {problem}") from problem
