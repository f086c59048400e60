"""What a tracker shall show of a sweep: one run with its table and plots, and below it one for each point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgqa_core.artifacts import Artifact
from kgqa_core.sweeps.config import PlotSection, SweepFile
from kgqa_core.sweeps.points import PointRow, Spread, Sweep, show_value
from kgqa_core.tracking import Point, read_record
from tasks.run_content import RunContent

SWEEP_KIND = "sweep"  # in the tag "kind", as those of run_content
POINT_KIND = "sweep point"


@dataclass(frozen=True, slots=True)
class SweepRun:
    """The run of a sweep, as a tracker shall know it."""

    id: str  # of the flow's run
    git_commit: str


@dataclass(frozen=True, slots=True)
class SweepContent:
    """A sweep: its own content, and that of its points."""

    experiment: str  # the dataset where all points have one, else the sweep's name
    fingerprint: str  # of the artifact with tables and plots
    whole: RunContent
    points: tuple[RunContent, ...]
    images: dict[str, Path] = field(default_factory=dict)  # folder/name in the tracker -> file


def sweep_content(sweep: Sweep, run: SweepRun, artifact: Artifact, rows: Sequence[PointRow]) -> SweepContent:
    """Return what a tracker shall show of a finished sweep; raises ``ArtifactError`` where its record is damaged."""
    record = read_record(artifact.folder)
    tags = {
        "sweep": sweep.name,
        "fingerprint": artifact.fingerprint,
        "flow_run_id": run.id,
        "git_commit": run.git_commit,
    }
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
        curves={
            name: _curve(row.curves[name], measured_ms) for name in _shown(file, curves=True) if name in row.curves
        },
    )
    figures: dict[str, Any] = {name: row.figures[name] for name in _shown(file, curves=False) if name in row.figures}
    content.add_metrics({name: found.mean for name, found in figures.items()}, measured_ms)
    content.add_metrics(
        {f"{name}.deviation": found.deviation for name, found in figures.items() if found.count > 1}, measured_ms
    )
    return content


def _shown(file: SweepFile, *, curves: bool) -> list[str]:
    """Return the figures, or the curves, that the sweep's table and plots show."""
    names = [name for plot in file.plots if (plot.kind == "curves") == curves for name in _plotted(plot)]
    return list(dict.fromkeys(names if curves else [*file.table, *names]))


def _plotted(plot: PlotSection) -> list[str]:
    figures = [*plot.y, *(f"{control}.{name}" for control in plot.beside for name in plot.y)]
    return figures if plot.x is None else [plot.x, *figures]


def _curve(points: Sequence[tuple[int, Spread]], measured_ms: int) -> list[Point]:
    return [(step, found.mean, measured_ms) for step, found in points]
