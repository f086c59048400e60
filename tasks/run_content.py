"""What a tracker shall show of the run of a flow or a sweep, made from what its stages recorded; knows no tracker.

One ``RunContent`` for the whole run, and one below it for each system and seed, or for each point of a sweep.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from kgqa_core.artifacts import Artifact
from kgqa_core.config import EncoderSection, EvaluationSection
from kgqa_core.errors import ArtifactError
from kgqa_core.run.pipeline import StageOutcome
from kgqa_core.run.stages.explorer import EXPLORER
from kgqa_core.run.stages.systems import COMPARISON
from kgqa_core.tracking import Param, Point, TrackingRecord, read_record
from tasks.sweep_config import PlotSection, SweepFile
from tasks.sweep_points import PointRow, Sweep, show_value

_log = logging.getLogger(__name__)

DATA_STAGES = ("graph", "questions", "encodings")  # what systems are compared on: shown with their content hashes
REPORTS = {COMPARISON: "comparison.md", "gate": "gate.md"}  # stage -> what it tells people
FLOW_KIND = "flow"  # kinds of run, in the tag "kind"
SYSTEM_KIND = "system"
REUSED_KIND = "reused"  # a system that an earlier run made: its figures, under a later run that has it too
RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]  # MLflow's own words
HEADLINES = ("hits1", "f1", "hit_at_1")  # of a system, on the run of the flow
SIDE_BY_SIDE = (*HEADLINES, "em", "coverage", "supported_answers",
            *(f"{cost}_per_question" for cost in ("calls", "tokens", "seconds", "money")))  # fmt: skip
"""Figures of a system that its own run has as metrics, by which runs are sorted and put side by side. MLflow draws a
chart with one bar for each metric, and a system has dozens of figures: all of them stand in a table, ``FIGURES``."""
FIGURES = "figures"
NO_NAME = re.compile(r"[^\w\-. /]")  # what no name in MLflow holds: a dump's stage is called by its file
NOTE = "mlflow.note.content"  # what MLflow's UI shows as the description of a run, Markdown


@dataclass(frozen=True, slots=True)
class Serving:
    """What a served explorer needs of its run's configuration."""

    encoder: EncoderSection
    evaluation: EvaluationSection
    batch_size: int  # questions that are explored at once
    gated: bool = False  # a gate moves the alias champion, and registering does not


@dataclass(frozen=True, slots=True)
class FlowRun:
    """The run of a flow, as a tracker shall know it."""

    id: str
    name: str
    dataset: str
    config_name: str
    config_hash: str
    config_text: str  # the resolved configuration, YAML
    git_commit: str
    started_ms: int
    status: RunStatus = "FINISHED"
    ended_ms: int | None = None  # None: when the tracker is told
    error: str = ""  # why it failed
    serving: Serving | None = None  # None: its explorers are not registered
    max_traces: int = 0  # questions per system whose calls are shown
    report: str = ""  # a folder with its report, as kgqa report writes it: report.html, or report/


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a flow's run: the artifact that it ended with, and what it recorded when that was made."""

    outcome: StageOutcome
    record: TrackingRecord

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the artifact."""
        return self.outcome.artifact.fingerprint


@dataclass(slots=True)
class RunContent:
    """Everything that one run of a tracker holds."""

    name: str
    started_ms: int
    ended_ms: int
    tags: dict[str, str]
    params: dict[str, Param] = field(default_factory=dict)
    metrics: dict[str, Point] = field(default_factory=dict)
    curves: dict[str, list[Point]] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)  # name -> content hash
    tables: dict[str, Path] = field(default_factory=dict)  # name -> Parquet file
    texts: dict[str, str] = field(default_factory=dict)  # file name -> text
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # name -> a small table

    def add_metrics(self, figures: Mapping[str, float], measured_ms: int) -> None:
        """Add final figures: curves of one point."""
        self.metrics |= {name: (0, value, measured_ms) for name, value in figures.items()}


@dataclass(frozen=True, slots=True)
class SystemContent:
    """One system and seed: its content, and how to tell whether a tracker has it."""

    content: RunContent
    identity: tuple[str, str]  # the tag, and its value, that only runs with all of these stages have
    partial: tuple[str, ...]  # fingerprints that runs with only the first of these stages have


def read_stages(outcomes: Iterable[StageOutcome]) -> list[Stage]:
    """Return the stages with what they recorded; one whose record is gone or damaged is left out, with a warning."""
    stages = []
    for outcome in outcomes:
        try:
            stages.append(Stage(outcome, read_record(outcome.artifact.folder)))
        except ArtifactError as problem:
            _log.warning("stage %s is not shown in MLflow: %s", outcome.key, problem)
    return stages


def flow_content(run: FlowRun, stages: Sequence[Stage]) -> RunContent:
    """Return what the run of the flow shows: the headline figures of its systems, and its stages as tables."""
    content = RunContent(
        name=run.name,
        started_ms=run.started_ms,
        ended_ms=max((stage.record.ended_ms for stage in stages), default=run.started_ms),
        tags={**_shared_tags(run, stages), "kind": FLOW_KIND, "config_name": run.config_name},
        params={"config_name": run.config_name, "config_hash": run.config_hash},
        data=_data(stages),
        texts={"config.yaml": run.config_text},
    )
    if run.error:
        content.tags["error"] = run.error
    for stage in stages:
        key, record = stage.outcome.key, stage.record
        state, seconds = "built" if stage.outcome.built else "skipped", (record.ended_ms - record.started_ms) / 1000
        named = NO_NAME.sub("_", key)
        content.tags |= {f"stage.{named}": state, f"fingerprint.{named}": stage.fingerprint}
        row = {"stage": key, "state": state, "seconds": seconds, "fingerprint": stage.fingerprint}
        content.rows.setdefault("stages", []).append(row)
        figures = [{"stage": key, "figure": name, "value": value} for name, value in record.metrics.items()]
        content.rows.setdefault("stage_figures", []).extend(figures)
        if record.system is None:
            content.curves |= {f"{named}.{name}": points for name, points in record.curves.items()}
            content.params |= {f"{named}.{name}": value for name, value in record.params.items()}
        if record.stage in REPORTS:
            report = stage.outcome.artifact.folder / REPORTS[record.stage]
            content.texts[report.name] = report.read_text(encoding="utf-8")
    groups: dict[tuple[str, str], list[TrackingRecord]] = {}
    for record in (stage.record for stage in stages):
        if record.system is not None:
            groups.setdefault((record.system, record.stage), []).append(record)
    for (system, _), group in groups.items():  # means over the seeds; the explorer's go by the names that it has itself
        means = mean_metrics(group)
        prefix = "" if system == EXPLORER else f"{system}."
        found = {f"{prefix}{name}": means[name] for name in HEADLINES if name in means}
        content.add_metrics(found, max(record.ended_ms for record in group))
    return content


def mean_metrics(records: Iterable[TrackingRecord]) -> dict[str, float]:
    """Return the mean over ``records`` (the seeds of one system) of each metric that all of them have."""
    tables = [record.metrics for record in records]
    shared = set(tables[0]).intersection(*tables[1:]) if tables else set()
    return {name: math.fsum(table[name] for table in tables) / len(tables) for name in sorted(shared)}


def reused_content(system: SystemContent, made_by: str, page: str) -> RunContent:
    """Return what stands under a run for a system that run ``made_by`` of the tracker made: its metrics alone."""
    own = system.content
    tags = {**own.tags, "kind": REUSED_KIND, "made_by": made_by}
    note = f"An earlier run made it, and has its curves, tables and plots: [{made_by}]({page})"
    tags[NOTE] = "\n\n".join(filter(None, (own.tags.get(NOTE), note)))
    return replace(own, tags=tags, curves={}, tables={}, texts={}, rows={})


def system_contents(run: FlowRun, stages: Sequence[Stage]) -> list[SystemContent]:
    """Return what each system and seed shows: all that its stages recorded, the same names everywhere."""
    groups: dict[tuple[str, int | None], list[Stage]] = {}
    for stage in stages:
        if stage.record.system is not None:
            groups.setdefault((stage.record.system, stage.record.seed), []).append(stage)
    shared = _shared_tags(run, stages)
    return [_system_content(system, seed, group, shared, _data(stages)) for (system, seed), group in groups.items()]


def _system_content(
    system: str, seed: int | None, stages: Sequence[Stage], shared: Mapping[str, str], data: dict[str, str]
) -> SystemContent:
    records = [stage.record for stage in stages]
    last = stages[-1]  # its fingerprint follows from those before it
    content = RunContent(
        name=system if seed is None else f"{system} seed {seed}",
        started_ms=min(record.started_ms for record in records),
        ended_ms=max(record.ended_ms for record in records),
        tags={**shared, "kind": SYSTEM_KIND, "system": system, "fingerprint": last.fingerprint},
        params={"system": system, "seed": seed},
        data=data,
    )
    if seed is not None:
        content.tags["seed"] = str(seed)
    for stage, record in zip(stages, records, strict=True):
        content.tags |= {**record.tags, f"fingerprint.{record.stage}": stage.fingerprint}
        content.params |= record.params
        content.add_metrics(
            {name: record.metrics[name] for name in SIDE_BY_SIDE if name in record.metrics}, record.ended_ms
        )
        figures = [{"figure": name, "value": value} for name, value in record.metrics.items()]
        content.rows.setdefault(FIGURES, []).extend(figures)
        content.curves |= record.curves
        content.tables |= {name: stage.outcome.artifact.folder / file for name, file in record.tables.items()}
    identity = (f"fingerprint.{last.record.stage}", last.fingerprint)
    return SystemContent(content, identity, tuple(stage.fingerprint for stage in stages[:-1]))


def _shared_tags(run: FlowRun, stages: Sequence[Stage]) -> dict[str, str]:
    return {
        "flow_run_id": run.id,
        "dataset": run.dataset,
        "git_commit": run.git_commit,
        "config_hash": run.config_hash,
        **{f"data.{name}": content for name, content in _data(stages).items()},
    }


def _data(stages: Sequence[Stage]) -> dict[str, str]:
    return {stage.outcome.key: stage.outcome.artifact.content for stage in stages if stage.outcome.key in DATA_STAGES}


SWEEP_KIND = "sweep"  # in the tag "kind", as those of run_content
POINT_KIND = "sweep point"


@dataclass(frozen=True, slots=True)
class SweepContent:
    """A sweep: its own content, and that of its points."""

    experiment: str  # the dataset where all points have one, else the sweep's name
    fingerprint: str  # of the artifact with tables and plots
    whole: RunContent
    points: tuple[RunContent, ...]
    images: dict[str, Path] = field(default_factory=dict)  # folder/name in the tracker -> file


def sweep_content(
    sweep: Sweep, artifact: Artifact, rows: Sequence[PointRow], *, flow_run_id: str, git_commit: str
) -> SweepContent:
    """Return what a tracker shall show of a finished sweep; raises ``ArtifactError`` where its record is damaged."""
    record = read_record(artifact.folder)
    tags = {"sweep": sweep.name, "fingerprint": artifact.fingerprint}
    tags |= {"flow_run_id": flow_run_id, "git_commit": git_commit}
    varied = {key: ", ".join(map(show_value, values)) for key, values in sweep.file.vary.items()}
    datasets = sorted({point.config.dataset.name for point in sweep.points})
    whole = RunContent(
        name=f"sweep {sweep.name}",
        started_ms=record.started_ms,
        ended_ms=record.ended_ms,
        tags={**tags, "kind": SWEEP_KIND},
        params={"sweep": sweep.name, "base": ", ".join(base.stem for base in sweep.file.base), **varied},
        tables={Path(file).stem: artifact.folder / file for file in record.tables.values()},
        texts={"sweep.yaml": sweep.path.read_text(encoding="utf-8")},
    )
    whole.add_metrics({"num_points": len(rows), **record.metrics}, record.ended_ms)
    points = tuple(_point_content(sweep.file, row, tags, record.ended_ms) for row in rows)
    images = {path.name: path for path in sorted((artifact.folder / "plots").glob("*.png"))}
    return SweepContent(datasets[0] if len(datasets) == 1 else sweep.name, artifact.fingerprint, whole, points, images)


def _point_content(file: SweepFile, row: PointRow, tags: Mapping[str, str], measured_ms: int) -> RunContent:
    """Return the run of one point: its settings, and the figures that the sweep shows, as means over repetitions."""
    place = {name: show_value(value) for name, value in row.place.items()}
    content = RunContent(
        name=" ".join(place.values()) or file.base[0].stem,
        started_ms=measured_ms,
        ended_ms=measured_ms,
        tags={**tags, "kind": POINT_KIND},
        params={**place, "num_explorers": row.count},
    )
    for plot in file.plots:
        for name in plot.y if plot.kind == "curves" else ():
            if name in row.curves:
                content.curves[name] = [(step, found.mean, measured_ms) for step, found in row.curves[name]]
    for names in (file.table, *map(_figures, file.plots)):
        found = {one: row.figures[one] for one in names if one in row.figures}
        content.add_metrics({one: spread.mean for one, spread in found.items()}, measured_ms)
        several = {f"{one}.deviation": spread.deviation for one, spread in found.items() if spread.count > 1}
        content.add_metrics(several, measured_ms)
    return content


def _figures(plot: PlotSection) -> list[str]:
    """Return the figures that a plot shows, but for its curves."""
    if plot.kind == "curves":
        return []
    shown = [*plot.y, *(f"{control}.{name}" for control in plot.beside for name in plot.y)]
    return shown if plot.x is None else [plot.x, *shown]
