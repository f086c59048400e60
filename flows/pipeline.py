"""The flows. Each makes what it needs first, so any of them can be deployed on its own; a sweep is many runs."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Concatenate, Literal, ParamSpec

import yaml
from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run
from prefect.states import Cancelled

from flows.cli_session import advising_for
from flows.gated import judge_release, refuse_release, tell
from flows.summary import RunSummary, summarise, write_report
from kgqa_core.artifacts import Artifact
from kgqa_core.config import RunConfig
from kgqa_core.config_base import FileDataset
from kgqa_core.config_file import config_hash, home_here, read_config
from kgqa_core.errors import ConfigError, KgqaError
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from tasks.caps import CapReached, capped, spent_folder
from tasks.garbage import note_run
from tasks.logs import OURS, outlive_worker
from tasks.mlflow_store import mask
from tasks.objects import fetch_inputs
from tasks.outbox import OpenNote, end_killed, log_failure, noted
from tasks.release import releases_of, resolve_start, starts_from_release, without_start
from tasks.run_content import FlowRun, Serving, sweep_content
from tasks.runtime import StageTasks, dataset_lock, mark_crashed, only_process, train_in_pool
from tasks.sweep_points import SweepPoint, join_repetitions, read_sweep
from tasks.tracking import Published, deliver, git_commit, publish_sweep

P = ParamSpec("P")
_log = logging.getLogger(__name__)

TRAINING = ("explorer",)  # what the flow train_explorer makes, in a pool of GPUs perhaps: it has a retraining's caps
PROJECT = Path(__file__).resolve().parents[1]
for _name in OURS:  # a worker knows no command that does it: else Prefect shows a run without a word
    logging.getLogger(_name).setLevel(logging.INFO)
outlive_worker()


def open_started(config: RunConfig) -> tuple[Pipeline, str | None]:
    """Return the stages of a run, and the release that its explorer starts from, if any."""
    resolved, parent = resolve_start(config)
    return Pipeline(resolved), parent


def given(config: RunConfig | Path) -> RunConfig:
    """Return a run configuration as the user gave it, or what the file holds that a deployment passes."""
    return read_config(config) if isinstance(config, Path) else config


def advice(config: RunConfig | Path) -> AbstractContextManager[None]:
    """Let errors name the file of a run configuration as their CONF: a deployment has no command that does it."""
    return advising_for(config if isinstance(config, Path) else "CONF", ())


def name_run() -> str:
    """Return what the running flow is called in Prefect: as in MLflow, by its configuration and when it started."""
    given = flow_run.parameters
    return run_name(given.get("config", given.get("path")), time.time())


def run_name(config: RunConfig | Path | str, started: float) -> str:
    """Return what a run is called: ``metaqa-joint 2026-11-22 14:05``."""
    named = config if isinstance(config, str) else config.stem if isinstance(config, Path) else config.name
    return f"{named} {time.strftime('%Y-%m-%d %H:%M', time.localtime(started))}"


def by_one_process(
    work: Callable[Concatenate[RunConfig | Path, P], RunSummary],
) -> Callable[Concatenate[RunConfig | Path, P], RunSummary]:
    """Return a flow's function that works in one process of its run only, should Prefect start the run twice.

    A run that fails before it has a note, as its configuration cannot be read, is among those that ended all the same.
    """

    @wraps(work)
    def alone(config: RunConfig | Path, *args: P.args, **kwargs: P.kwargs) -> RunSummary:
        home, began = home_here(), time.time()
        try:
            home = given(config).runtime.home
            with only_process(home, str(flow_run.id)), advice(config):
                return work(config, *args, **kwargs)
        except KgqaError as problem:
            log_failure(home, str(flow_run.id), run_name(config, began), began, problem)
            raise

    return alone


def make(
    config: RunConfig | Path,
    *wanted: str,
    accept: bool = False,
    tracked: bool = False,
    judged: bool = False,
    train_on: str | None = None,
    counts_for: str | None = None,
) -> RunSummary:
    """Make the stages of these kinds or keys (default: all) and what they read; what is missing is a Prefect task.

    ``tracked``: MLflow is told how the run ended, however it ended, and Prefect shows the results. ``judged``: the gate
    decides whether what was made takes the champion's place, where the run has one; over its caps nothing does.
    ``train_on``: as ``retrain``. ``counts_for``: the run whose caps what is spent here counts for, too.
    """
    asked = given(config)
    pipeline, parent = open_started(asked)
    home, tracks, judged = asked.runtime.home, tracked and asked.tracking.enabled, judged and asked.gate is not None
    if judged:
        releases_of(asked)  # ConfigError before hours of training
    end_killed(home, mark_crashed)
    run = describe_run(asked)
    shared = spent_folder(home, counts_for or run.id) if counts_for or train_on else None
    limits = capped(asked.gate if judged or wanted == TRAINING else None, shared, keep=counts_for is not None)
    try:
        with noted(home, run, tracked=tracks) as note, limits as caps, advice(config):
            worker = StageTasks(note, caps.check)
            try:
                if fetch_inputs(pipeline):
                    pipeline, parent = open_started(asked)
                if judged and starts_from_release(asked):  # what it is made of says from which
                    fresh = Pipeline(without_start(asked))
                    ensure(fresh, ["questions"], accept=accept, worker=worker.begin(fresh, ["questions"]))
                    pipeline, parent = open_started(asked)
                if train_on and isinstance(config, Path) and lacks_explorer(pipeline):
                    caps.check("explorer")  # what was spent by now is known there
                    train_in_pool(config, train_on, home=home, counts_for=run.id)
                    caps.check("explorer")
                goals = [key for key, spec in pipeline.specs.items() if not wanted or {key, spec.stage} & {*wanted}]
                outcomes = worker.end(ensure(pipeline, goals, accept=accept, worker=worker.begin(pipeline, goals)))
                summary = summarise(pipeline, outcomes)
                if judged:
                    summary = judge_release(asked, pipeline, summary, parent)
            except CapReached as reached:
                if not judged:
                    raise
                summary = refuse_release(asked, pipeline, summarise(pipeline, note.note.stages), str(reached))
            if judged:
                note.has(summary.outcomes)
            summary = write_report(pipeline, summary)
            note_run(home, asked.name, summary.outcomes)
            if tracked:
                show_pages(pipeline, note)
    except BaseException:
        shown = deliver(home, note.note) if tracks else None
        if tracked:
            show_results(asked.name, shown, f"{note.note.run.status}: {note.note.run.error}")
        if judged:
            with suppress(KgqaError, OSError):  # what was decided before stands
                tell(asked)
        raise
    shown = deliver(home, note.note) if tracks else None
    if tracked:
        show_results(summary.name, shown, summary.markdown)
    if summary.gate:
        why = "May what was trained take the champion's place?"
        show_results(summary.name, shown, summary.gate["markdown"], kind="gate", description=why)
        tell(asked)
    return replace(summary, mlflow=shown)


def show_pages(pipeline: Pipeline, note: OpenNote) -> None:
    """Let a run's note name the report of what was compared, which is written here; a failure is a warning."""
    try:
        from flows.report_about import keep_report

        if report := keep_report(pipeline):
            note.shows(report)
    except Exception as problem:  # the run's figures are safe in the artifacts
        _log.warning("the report is not written: %s: %s", type(problem).__name__, problem)


def lacks_explorer(pipeline: Pipeline) -> bool:
    """Say whether an explorer is still to be trained."""
    return any(pipeline.find(key) is None for key, spec in pipeline.specs.items() if spec.stage == "explorer")


def show_results(
    name: str,
    shown: Published | None,
    markdown: str,
    *,
    kind: str = "results",
    description: str = "What this run measured",
) -> None:
    """Show what a run measured, or how it failed, as the artifact ``KIND-NAME`` in Prefect's UI, linked to MLflow."""
    report = f" · [report]({shown.report})" if shown and shown.report else ""
    link = f"[This run in MLflow]({shown.page}) · [all runs]({shown.table}){report}" if shown else ""
    key = re.sub(r"[^a-z0-9]+", "-", f"{kind}-{name}".lower()).strip("-")  # Prefect takes no other letters
    try:
        create_markdown_artifact("\n\n".join(filter(None, (link, markdown))), key=key, description=description)
    except Exception as problem:  # Prefect is away or busy: the results are in the artifacts
        _log.warning("Prefect does not show the results: %s: %s", type(problem).__name__, mask(str(problem)))


@flow(name="make_stages", flow_run_name=name_run, persist_result=False)
@by_one_process
def make_stages(config: RunConfig | Path, keys: tuple[str, ...]) -> RunSummary:
    """Make some stages, by their keys, and what they read: what a command lacks. A later run tells MLflow of them."""
    return make(config, *keys)


@flow(name="build_graph", flow_run_name=name_run, persist_result=False)
@by_one_process
def build_graph(config: RunConfig | Path, accept: bool = False) -> RunSummary:
    """Build graph shards and linked questions; ``accept``: whatever changed since the last build."""
    return make(config, "questions", accept=accept)


@flow(name="encode", flow_run_name=name_run, persist_result=False)
@by_one_process
def encode(config: RunConfig | Path) -> RunSummary:
    """Encode the distinct masked texts and the relations."""
    return make(config, "encodings")


@flow(name="train_explorer", flow_run_name=name_run, persist_result=False)
@by_one_process
def train_explorer(config: RunConfig | Path, counts_for: str | None = None) -> RunSummary:
    """Train one explorer per seed; ``counts_for``: the retraining that calls this, whose caps hold for both."""
    return make(config, *TRAINING, counts_for=counts_for)


@flow(name="evaluate", flow_run_name=name_run, persist_result=False)
@by_one_process
def evaluate(config: RunConfig | Path) -> RunSummary:
    """Score the explorers beside their controls; a run with systems puts those side by side, and tells MLflow."""
    compares = given(config).systems is not None
    return make(config, "comparison" if compares else "evaluation", tracked=compares)


@flow(name="train_reasoner", flow_run_name=name_run, persist_result=False)
@by_one_process
def train_reasoner(config: RunConfig | Path) -> RunSummary:
    """Tune the language model on instructions from the graph, train the planners, score their plans, tell MLflow."""
    pipeline, _ = open_started(given(config))
    run, stages = pipeline.config, {spec.stage for spec in pipeline.specs.values()}
    if run.reasoner is not None and "reasoner" not in stages:
        raise ConfigError(
            f"run {run.name!r} tunes no language model, as nothing would ask it: let it plan (plans.planners: "
            "[generator]), or answer in a section 'systems'"
        )
    if run.plans is None:
        raise ConfigError(
            f"run {run.name!r} tunes no language model and trains no planner: give its configuration the sections "
            "'plans', 'lm' and 'reasoner', or for the dense planner alone 'plans: {planners: [dense]}' and 'dense'"
        )
    return make(config, "reasoner", "plans", tracked=True)


@flow(name="evaluate_all", persist_result=False)
def evaluate_all(configs: list[Path]) -> None:
    """Evaluate many runs, one after another; one that fails holds up no other, and is named at the end."""
    failed = []
    for config in configs:
        try:
            evaluate(config)
        except Exception as problem:  # Prefect shows it in full at that run
            failed.append(f"{config}: {problem}")
    if failed:
        raise KgqaError("\n".join([f"{len(failed)} of {len(configs)} runs were not evaluated:", *failed]))


@flow(name="retrain", flow_run_name=name_run, persist_result=False)
@by_one_process
def retrain(
    config: RunConfig | Path, when_busy: Literal["wait", "cancel"] | None = None, train_on: str | None = None
) -> RunSummary:
    """The whole flow: every stage, a results artifact, and the comparison in MLflow.

    With a gate, what was made takes the champion's place only where it is no worse; a refusal is a normal end.
    ``when_busy``: what to do while another run of the same dataset and home is at work; None: run beside it, as stages
    have locks of their own. ``train_on``: a work pool whose worker, if one is alive, trains the explorers.
    """
    run = given(config)
    with ExitStack() as stack:
        if when_busy:
            try:
                stack.enter_context(dataset_lock(run.runtime.home, run.dataset.name, wait=when_busy == "wait"))
            except KgqaError as problem:
                return Cancelled(message=str(problem))  # type: ignore[return-value]  # Prefect takes it for the end
        return make(config, tracked=True, judged=True, train_on=train_on)


def describe_run(config: RunConfig) -> FlowRun:
    """Return what a tracker shall know of the running flow."""
    started = time.time()
    return FlowRun(
        id=str(flow_run.id),
        name=run_name(config.name, started),
        dataset=config.dataset.name,
        config_name=config.name,
        config_hash=config_hash(config),
        config_text=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
        git_commit=git_commit(PROJECT),
        started_ms=round(started * 1000),
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
    return Serving(config.encoding, config.evaluation, config.runtime.batch_size, gated=config.gate is not None)


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """The outcome of a sweep."""

    name: str
    artifact: Artifact  # tables, plots and the document of the comparison
    built: dict[str, list[str]]  # label of a point -> stages that were made for it
    mlflow: Published | None = None  # where MLflow shows it


@flow(name="sweep", flow_run_name=name_run, persist_result=False)
def sweep(path: Path, overrides: list[str]) -> SweepSummary:
    """Run every point of a sweep file, and compare them; one that fails holds up no other, and is named at the end."""
    from tasks.sweep import compare_runs, read_point  # loads matplotlib

    plan = read_sweep(path, overrides)
    first = plan.points[0].config
    end_killed(plan.home, mark_crashed)
    rows, built, failed = [], {}, list[KgqaError]()
    run = replace(describe_run(first), name=run_name(plan.name, time.time()), config_name=plan.name)
    with noted(plan.home, run, tracked=False) as note:
        for number, point in enumerate(plan.points, start=1):
            _log.info("run %d of %d: %s", number, len(plan.points), point.label)
            try:
                outcomes = run_point(point)
            except KgqaError as problem:  # the other points may do better
                _log.warning("%s", problem)
                failed.append(problem)
                continue
            built[point.label] = [outcome.key for outcome in outcomes if outcome.built]
            rows += read_point(point, outcomes)
        if failed:
            others = (
                f"{len(failed)} of {len(plan.points)} runs failed, as the log says, and nothing is compared. The first:"
            )
            raise type(failed[0])(f"{others}\n{failed[0]}") from failed[0]
        artifact, shown = compare_runs(plan, rows), None
    if first.tracking.enabled:
        told = {"flow_run_id": note.note.run.id, "git_commit": note.note.run.git_commit}
        content = sweep_content(plan, artifact, join_repetitions(rows, plan.file.repeat), **told)
        shown = publish_sweep(plan.home, content)
    return SweepSummary(plan.name, artifact, built, shown)


def run_point(point: SweepPoint) -> tuple[StageOutcome, ...]:
    """Run one point as an ordinary run; an error of ours says which point it was, and advises for that one."""
    try:
        return retrain(point.config).outcomes
    except KgqaError as problem:
        said = re.sub(r"\bCONF\b", lambda _: point.given, str(problem))
        raise type(problem)(f"run {point.label!r} of the sweep: {said}") from problem
