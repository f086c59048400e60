"""What the stages recorded, told to MLflow.

experiment = dataset; parent run = run of the flow, with the headline figures; child run = system x seed, with curves,
metrics, predictions and plots. Every run of a flow waits in the outbox of its home until MLflow was told. A system that
an earlier run made stands under the later run with its figures alone. What is there is known by tags (the flow's run,
fingerprints), so what is told a second time is not there twice. Then the explorers that are new are registered
(registry.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from kgqa_core.artifacts import exclusive_lock
from tasks import outbox, run_content
from tasks.mlflow_store import LOCK_SECONDS, artifacts_uri, import_mlflow, mask, run_address, store_folder, tracking_uri
from tasks.plots import draw_hits_by_hops, draw_learning_curves
from tasks.registry import register_explorers
from tasks.run_content import FlowRun, RunContent, Stage, SweepContent, SystemContent
from tasks.traces import delete_traces, log_traces

if TYPE_CHECKING:
    from mlflow import MlflowClient

METRICS_AT_ONCE = 1000  # MLflow refuses more in one call; of parameters and tags 100
PARAMS_AT_ONCE = 100
PARAM_CHARACTERS = 6000
TAG_CHARACTERS = 8000
DIGEST_CHARACTERS = 36  # of a dataset
VIEW = "kgqa"  # the table of runs as MLflow's UI shows it under this key: what its button Share writes, by the same tag
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
MOST_COLUMNS = 20
ROWS_SHOWN = 500  # of a table in MLflow's UI, which loads it whole; the Parquet file beside it has all rows

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """Where MLflow shows a run of a flow, and what of it was new."""

    uri: str  # of the store, without passwords
    parent_run_id: str
    page: str  # of the run, in MLflow's UI
    artifacts: str  # where the files of its experiment go
    table: str  # all runs of its experiment, with their headline figures as columns
    report: str = ""  # the report among its artifacts, in MLflow's UI; empty where it has none
    created: tuple[str, ...] = ()  # fingerprints of the systems that it made
    present: tuple[str, ...] = ()  # fingerprints of those that an earlier run made
    versions: tuple[str, ...] = ()  # of registered models that are new: "kgqa-demo/1"


def publish_sweep(home: Path, sweep: SweepContent) -> Published | None:
    """Tell MLflow about a sweep, unless it knows; return None as ``deliver`` does."""
    tags = sweep.whole.tags
    run = FlowRun(
        id=f"sweep-{sweep.fingerprint}",
        name=sweep.whole.name,
        dataset=sweep.experiment,
        config_name=tags["sweep"],
        config_hash=sweep.fingerprint,
        config_text="",
        git_commit=tags["git_commit"],
        started_ms=sweep.whole.started_ms,
    )
    note = outbox.Note(run, tracked=True, sweep=sweep)
    outbox.write(home, note)
    return deliver(home, note)


def deliver(home: Path, mine: outbox.Note) -> Published | None:
    """Tell MLflow about all runs in the outbox that have ended, in order; return where it shows the run of ``mine``.

    None, after a warning, where it could not be told: then the run waits in the outbox.
    A note leaves the outbox once MLflow has all of it. A run that MLflow refuses holds up no other: what can never be
    told is set aside. Nothing is raised: whatever MLflow or its store throws, no finished run must be lost for it.
    """
    told: dict[str, Published] = {}
    problems: list[Exception] = []
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"its store under {home}"
    try:
        uri = tracking_uri(home)
        with exclusive_lock(store_folder(home) / "publish.lock", timeout=LOCK_SECONDS):
            notes = outbox.waiting(home)
            if mine.run.id not in {note.run.id for note in notes}:  # another process told it, or the disk is full
                notes.append(mine)
            for note in notes:
                if problems:  # raises where MLflow is away: then the others wait, too
                    _client(uri).search_experiments(max_results=1)
                try:
                    told[note.run.id] = _publish_note(home, uri, note)
                except Exception as problem:
                    if outbox.is_refusal(problem):
                        _client(uri).search_experiments(max_results=1)  # raises where a proxy answered in its place
                        outbox.set_aside(home, note, problem)
                    else:
                        problems.append(problem)
                else:
                    outbox.remove(home, note)
    except Exception as problem:
        problems.append(problem)
    if problems:
        _log.warning(
            "MLflow (%s) was not told about this run, or one before it: %s: %s. Its figures are safe in the artifacts; "
            "what waits in %s is delivered by the next run.",
            mask(uri),
            type(problems[0]).__name__,
            mask(str(problems[0]))[: outbox.ERROR_CHARACTERS],
            home / "outbox",
        )
    return told.get(mine.run.id)


def git_commit(folder: Path) -> str:
    """Return the commit that ``folder`` is at, ``-dirty`` added where files differ from it; ``unknown`` without git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _publish_note(home: Path, uri: str, note: outbox.Note) -> Published:
    """Tell MLflow about one run of a flow, or a sweep."""
    if note.sweep:
        client, experiment, publisher = _open(home, uri, note.sweep.experiment)
        return _published(client, uri, experiment, _publish_sweep(client, experiment, note.sweep, publisher))
    run, stages = note.run, run_content.read_stages(note.stages)
    client, experiment, publisher = _open(home, uri, run.dataset)
    ours = {"publisher": publisher, "mlflow.source.name": run.config_name, "mlflow.source.git.commit": run.git_commit}
    parent = _publish_flow(client, experiment, run, stages, ours)
    child = {**ours, "mlflow.parentRunId": parent}
    created, present, shown_by = [], [], {}
    has_report = run_content.NOTE in client.get_run(parent).data.tags
    report = report_page(run, _page(experiment, parent)) if has_report else ""
    shown = [one.artifact.fingerprint for one in note.stages if one.artifact.recipe.stage == "system"]
    systems = run_content.system_contents(run, stages)
    for system in systems:
        tags = system.content.tags
        if report and (own := tags.get("fingerprint.system")) in shown:
            answers = f"#/questions?system={shown.index(own)}"
            tags[run_content.NOTE] = f"Its answers, with paths and prompts: [report]({report}), at `{answers}`"
        found = _find(client, experiment, {**dict([system.identity]), "kind": run_content.SYSTEM_KIND}, "FINISHED")
        run_id = found[0] if found else _publish_system(client, experiment, system, child, max_traces=run.max_traces)
        if found and client.get_run(run_id).data.tags.get("mlflow.parentRunId") != parent:
            present.append(tags["fingerprint"])
            _show_reused(client, experiment, system, child, made_by=run_id)
        else:
            created.append(tags["fingerprint"])
        # A release may be champion however its run ended; and one that was judged is whole.
        is_whole = run.status == "FINISHED" or (run.serving and run.serving.gated and "fingerprint.evaluation" in tags)
        if is_whole and (trained := tags.get("fingerprint.explorer")):
            shown_by[trained] = run_id
    recorded = {name for system in systems for name in system.content.metrics}
    _show_columns(client, experiment, [name for name in run_content.SIDE_BY_SIDE if name in recorded])
    versions = _register(client, run, stages, shown_by, publisher)
    where = _published(client, uri, experiment, parent)
    there = {"report": run_address(uri, report)} if report else {}
    return replace(where, created=tuple(created), present=tuple(present), versions=versions, **there)


def report_page(run: FlowRun, page: str) -> str:
    """Return where MLflow's UI shows a run's report, which is among the artifacts of its ``page``; empty without one.

    One file opens there; a folder is for downloading.
    """
    folder = Path(run.report)
    name = next((name for name in ("report.html", "report") if run.report and (folder / name).exists()), "")
    return f"{page}/artifacts/{name}" if name else ""


def _published(client: MlflowClient, uri: str, experiment: str, run_id: str) -> Published:
    artifacts = str(client.get_experiment(experiment).artifact_location)
    table = run_address(uri, f"#/experiments/{experiment}/runs?viewStateShareKey={VIEW}")
    return Published(mask(uri), run_id, run_address(uri, _page(experiment, run_id)), mask(artifacts), table)


def _page(experiment: str, run_id: str) -> str:
    return f"#/experiments/{experiment}/runs/{run_id}"


def _publish_sweep(client: MlflowClient, experiment: str, sweep: SweepContent, publisher: str) -> str:
    """Publish a sweep with its points, or return the id of its run where MLflow has it."""
    known = {"fingerprint": sweep.fingerprint}
    if found := _find(client, experiment, {**known, "kind": run_content.SWEEP_KIND}, "FINISHED"):
        return found[0]
    orphans = _find(client, experiment, {**known, "kind": run_content.POINT_KIND}, "FINISHED")
    for orphan in orphans:  # of a publisher killed here
        client.delete_run(orphan)
    tags = sweep.whole.tags
    ours = {"publisher": publisher, "mlflow.source.name": tags["sweep"], "mlflow.source.git.commit": tags["git_commit"]}
    parent = _start(client, experiment, sweep.whole, ours)
    for path in sweep.images.values():
        client.log_artifact(parent, str(path), "plots")
    for point in sweep.points:
        run_id = _start(client, experiment, point, {**ours, "mlflow.parentRunId": parent})
        client.set_terminated(run_id, end_time=point.ended_ms)
    _show_columns(client, experiment, [name for point in sweep.points for name in point.metrics])
    client.set_terminated(parent, end_time=sweep.whole.ended_ms)
    return parent


def _client(uri: str) -> MlflowClient:
    import_mlflow()
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _open(home: Path, uri: str, experiment: str) -> tuple[MlflowClient, str, str]:
    """Return a client, the id of the experiment, cleared of what a killed publisher left, and the publisher's name."""
    client = _client(uri)
    experiment_id = _experiment(client, experiment, artifacts_uri(home, uri))
    publisher = hashlib.sha256(f"{platform.node()}:{home.resolve()}".encode()).hexdigest()[:16]
    _delete_unfinished(client, experiment_id, publisher)
    return client, experiment_id, publisher


def _register(
    client: MlflowClient, run: FlowRun, stages: Sequence[Stage], shown_by: Mapping[str, str], publisher: str
) -> tuple[str, ...]:
    """Register the explorers that the registry lacks; a failure is a warning of its own: the runs are published."""
    if run.serving is None or (run.status != "FINISHED" and not shown_by):
        return ()
    try:
        return register_explorers(client, run, stages, shown_by, publisher)
    except Exception as problem:  # as in deliver
        _log.warning(
            "no explorer of this run was registered in MLflow: %s: %s. The next run tries again.",
            type(problem).__name__,
            mask(str(problem))[: outbox.ERROR_CHARACTERS],
        )
        return ()


def _experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    """Return the id of the experiment ``name``, made or restored where needed."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except MlflowException:  # made by the run of another home since we asked
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _find(client: MlflowClient, experiment: str, tags: Mapping[str, str], status: str) -> list[str]:
    conditions = [f"tags.`{name}` = '{value}'" for name, value in tags.items()]
    found = client.search_runs([experiment], " and ".join([*conditions, f"attributes.status = '{status}'"]))
    return [run.info.run_id for run in found]


def _delete_unfinished(client: MlflowClient, experiment: str, publisher: str) -> None:
    """Delete what a publisher killed on this home left behind; the lock says that it is not one at work."""
    for run_id in _find(client, experiment, {"publisher": publisher}, "RUNNING"):
        delete_traces(client, experiment, run_id)
        client.delete_run(run_id)


def _publish_flow(
    client: MlflowClient, experiment: str, run: FlowRun, stages: Sequence[Stage], ours: Mapping[str, str]
) -> str:
    """Publish the run of the flow and return its id. It is finished before its children begin: a kill loses less."""
    if again := _find(client, experiment, {"flow_run_id": run.id, "kind": run_content.FLOW_KIND}, run.status):
        return again[0]  # this publication is tried a second time
    content = run_content.flow_content(run, stages)
    run_id = _start(client, experiment, content, ours)
    if report := report_page(run, _page(experiment, run_id)):
        try:
            client.log_artifacts(run_id, run.report)
            client.set_tag(run_id, run_content.NOTE, f"[Report]({report}): systems side by side, and each question")
        except Exception as problem:  # a limit on bodies, or a store that is away: the figures come all the same
            _log.warning("MLflow has no report of run %s: %s", run.name, mask(str(problem))[: outbox.ERROR_CHARACTERS])
    client.set_terminated(run_id, status=run.status, end_time=run.ended_ms)
    _show_columns(client, experiment, content.metrics)
    return run_id


def _show_columns(client: MlflowClient, experiment: str, figures: Iterable[str]) -> None:
    """Add figures to the columns of the view that is shared; the latest run's come first, where there are many."""
    before = json.loads(client.get_experiment(experiment).tags.get(VIEW_TAG, "{}")).get("selectedColumns", [])
    columns = list(dict.fromkeys([*(f"metrics.`{name}`" for name in figures), *before]))[:MOST_COLUMNS]
    if columns and columns != before:
        client.set_experiment_tag(experiment, VIEW_TAG, json.dumps({"selectedColumns": columns}))


def _show_reused(
    client: MlflowClient, experiment: str, system: SystemContent, ours: Mapping[str, str], *, made_by: str
) -> None:
    """Show a system that an earlier run made under one more run of the flow, unless it is shown there."""
    content = run_content.reused_content(system, made_by, _page(experiment, made_by))
    here = {name: content.tags[name] for name in ("kind", "fingerprint")}
    if _find(client, experiment, {**here, "mlflow.parentRunId": ours["mlflow.parentRunId"]}, "FINISHED"):
        return  # this publication is tried a second time
    run_id = _start(client, experiment, content, ours)
    client.set_terminated(run_id, end_time=content.ended_ms)


def _publish_system(
    client: MlflowClient, experiment: str, system: SystemContent, ours: Mapping[str, str], *, max_traces: int
) -> str:
    """Publish one system and seed, in the place of runs that hold only the first of its stages; return its id."""
    content = system.content
    run_id = _start(client, experiment, content, ours)
    figures = {row["figure"]: row["value"] for row in content.rows[run_content.FIGURES]}
    if plot := draw_learning_curves(content.curves, content.name):
        client.log_figure(run_id, plot, "plots/learning_curves.png")
    if plot := draw_hits_by_hops(figures, content.name):
        client.log_figure(run_id, plot, "plots/hits_by_hops.png")
    if {"predictions", "calls"} <= content.tables.keys():
        predictions, calls = content.tables["predictions"], content.tables["calls"]
        log_traces(client, experiment, run_id, predictions, calls, limit=max_traces)
    client.set_terminated(run_id, end_time=content.ended_ms)
    for fingerprint in system.partial:
        known = {"fingerprint": fingerprint, "kind": run_content.SYSTEM_KIND}
        for partial in _find(client, experiment, known, "FINISHED"):
            client.delete_run(partial)
    return run_id


def _start(client: MlflowClient, experiment: str, content: RunContent, ours: Mapping[str, str]) -> str:
    """Make a run that holds ``content``, and return its id; it is still to be finished."""
    import pandas as pd

    tags = {name: mask(value)[:TAG_CHARACTERS] for name, value in {**content.tags, **ours}.items()}
    run_id = str(client.create_run(experiment, content.started_ms, tags, content.name).info.run_id)
    _log_figures(client, run_id, content)
    for name, path in content.tables.items():
        _log_table(client, run_id, name, path)
    for name, text in content.texts.items():
        client.log_text(run_id, mask(text), name)
    for name, rows in content.rows.items():
        if rows:
            client.log_table(run_id, pd.DataFrame(rows, dtype=object), f"{name}.json")
    return run_id


def _log_figures(client: MlflowClient, run_id: str, content: RunContent) -> None:
    """Log metrics with the times at which they were measured, parameters, and the data that was read by its hashes."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param

    curves = {**content.curves, **{name: [point] for name, point in content.metrics.items()}}
    metrics = [Metric(name, value, when, step) for name, points in curves.items() for step, value, when in points]
    for start in range(0, len(metrics), METRICS_AT_ONCE):
        client.log_batch(run_id, metrics=metrics[start : start + METRICS_AT_ONCE])
    params = [Param(name, mask(str(value))[:PARAM_CHARACTERS]) for name, value in content.params.items()]
    for start in range(0, len(params), PARAMS_AT_ONCE):
        client.log_batch(run_id, params=params[start : start + PARAMS_AT_ONCE])
    inputs = []
    for name, digest in content.data.items():
        source = json.dumps({"content": digest})
        read = Dataset(f"{content.tags['dataset']}/{name}", digest[:DIGEST_CHARACTERS], "local", source)
        inputs.append(DatasetInput(read, [InputTag("mlflow.data.context", name)]))
    if inputs:
        client.log_inputs(run_id, inputs)


def _log_table(client: MlflowClient, run_id: str, name: str, path: Path) -> None:
    """Log a Parquet table as it is, and its first rows in the form that MLflow's UI shows."""
    import pandas as pd

    client.log_artifact(run_id, str(path), "tables")
    batch = next(pq.ParquetFile(path).iter_batches(batch_size=ROWS_SHOWN), None)
    if batch is not None:
        rows = [  # a list is one line of text
            {key: " | ".join(map(str, value)) if isinstance(value, list) else value for key, value in row.items()}
            for row in batch.to_pylist()
        ]
        client.log_table(run_id, pd.DataFrame(rows, columns=batch.schema.names, dtype=object), f"{name}.json")
