"""The figures of a sweep: one row per trained and scored explorer, and their means and spreads over repetitions.

Everything is read from the artifacts of the runs, so a row is there as soon as its run is, tracker or no tracker.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgqa_core.sweeps.figures import CURVES
from kgqa_core.tracking import hop_metric, read_record

CONTROL_ROLES = {"template control": "template_control.", "ceiling": "ceiling."}

Place = Mapping[str, Any]
"""Dimension of a sweep -> value."""


@dataclass(frozen=True, slots=True)
class SeedRow:
    """One explorer of one point."""

    place: Place
    run: str  # name of its run configuration
    seed: int
    fingerprints: Mapping[str, str]  # stage -> artifact that the figures are from
    figures: Mapping[str, float]  # names as in sweeps.figures
    curves: Mapping[str, Sequence[tuple[int, float]]]  # name -> (training step, value)


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean of repetitions, and how far they lie apart."""

    mean: float
    deviation: float  # sample standard deviation; 0 where there is one value
    count: int


@dataclass(frozen=True, slots=True)
class PointRow:
    """The explorers that differ in seed and repeated settings only."""

    place: Place  # without the repeated settings
    figures: Mapping[str, Spread]
    curves: Mapping[str, Sequence[tuple[int, Spread]]] = field(default_factory=dict)
    count: int = 1  # explorers


def read_row(place: Place, run: str, seed: int, folders: Mapping[str, Path]) -> SeedRow:
    """Return the row of one explorer.

    Args:
        place: where in the sweep it stands.
        run: name of its run.
        seed: its seed.
        folders: artifact folders of its ``questions``, ``encodings``, ``explorer`` and ``evaluation``.

    Raises:
        ArtifactError: a record is missing or damaged.
    """
    records = {stage: read_record(folder) for stage, folder in folders.items()}
    figures: dict[str, float] = {}
    for stage in ("questions", "encodings", "explorer", "evaluation"):
        figures |= records[stage].metrics
    scores = json.loads((folders["evaluation"] / "scores.json").read_text(encoding="utf-8"))
    for row in scores:
        figures |= _score_figures(row)
    curves = {
        name: [(step, value) for step, value, _ in sorted(points)]
        for name, points in records["explorer"].curves.items()
        if name in CURVES
    }
    fingerprints = {stage: record.fingerprint for stage, record in records.items()}
    return SeedRow(place, run, seed, fingerprints, figures, curves)


def _score_figures(row: Mapping[str, Any]) -> dict[str, float]:
    prefix = CONTROL_ROLES.get(row["role"], "")
    by_hops = {hop_metric(name, hops): value for hops, one in row["by_hops"].items() for name, value in one.items()}
    return {f"{prefix}{name}": float(value) for name, value in {**row["overall"], **by_hops}.items()}


def join_repetitions(rows: Iterable[SeedRow], repeated: Sequence[str]) -> list[PointRow]:
    """Return a row for every place, without the ``repeated`` settings, in order of first appearance."""
    groups: dict[str, list[SeedRow]] = {}
    for row in rows:
        kept = {name: value for name, value in row.place.items() if name not in repeated}
        groups.setdefault(json.dumps(kept, default=str), []).append(row)
    return [_join(group, repeated) for group in groups.values()]


def _join(group: Sequence[SeedRow], repeated: Sequence[str]) -> PointRow:
    # Repetitions can be one and the same explorer (any draw of all questions is all questions): it counts once.
    group = list({row.fingerprints["evaluation"]: row for row in group}.values())
    place = {name: value for name, value in group[0].place.items() if name not in repeated}
    figures = dict(_spreads([row.figures for row in group]))
    curves = {
        name: list(_curve_spreads([dict(row.curves[name]) for row in group]))
        for name in group[0].curves
        if all(name in row.curves for row in group)
    }
    return PointRow(place, figures, curves, len(group))


def _spreads(tables: Sequence[Mapping[str, float]]) -> Iterator[tuple[str, Spread]]:
    """Yield the figures that all tables have."""
    for name in tables[0]:
        if all(name in table for table in tables):
            yield name, spread([table[name] for table in tables])


def _curve_spreads(curves: Sequence[Mapping[int, float]]) -> Iterator[tuple[int, Spread]]:
    """Yield the steps that all curves have."""
    for step in curves[0]:
        if all(step in curve for curve in curves):
            yield step, spread([curve[step] for curve in curves])


def spread(values: Sequence[float]) -> Spread:
    """Return mean and sample standard deviation of ``values``."""
    count = len(values)
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1) if count > 1 else 0.0
    return Spread(mean, math.sqrt(variance), count)
