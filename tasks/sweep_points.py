"""The runs that a sweep asks for, a row for each trained and scored explorer, and their means and spreads.

Everything is read from the artifacts of the runs, so a row is there as soon as its run is, tracker or no tracker.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar

from kgqa_core.config import RunConfig
from kgqa_core.config_file import Setting, configure, machine_paths, packaged, parse_setting, read_yaml, validated
from kgqa_core.errors import ConfigError, with_nearest
from kgqa_core.run.stages.systems import system_key
from kgqa_core.tracking import hop_metric, read_record
from tasks.sweep_config import BASE, COSTS, CURVES, POINT, SCORES, PointSection, SweepFile, label_of, row_of

CONTROL_ROLES = {"template control": "template_control.", "ceiling": "ceiling."}
MAX_NAME = 90  # characters of a run's name; files are named by it
DEFAULT = "default"  # how a setting without a value is shown
WHOLE_FROM = 1000.0  # costs are shown without decimals from here on

Key = TypeVar("Key", str, int)
Place = Mapping[str, Any]  # dimension of a sweep -> value


@dataclass(frozen=True, slots=True)
class SeedRow:
    """One explorer of one point."""

    place: Place
    run: str  # name of its run configuration
    seed: int
    fingerprints: Mapping[str, str]  # stage -> artifact that the figures are from
    figures: Mapping[str, float]  # names as in sweeps.figures
    curves: Mapping[str, Sequence[tuple[int, float]]]  # name -> (training step, value)

    @property
    def judged(self) -> dict[str, str]:
        """Return the artifacts that hold its scores: of the explorer's evaluation, and of each system."""
        return {name: one for name, one in self.fingerprints.items() if name.startswith(("evaluation", "system "))}


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
    """Return the row of one explorer; ArtifactError where a record is missing or damaged.

    ``folders``: of its ``questions``, ``encodings``, ``explorer`` and ``evaluation``, in this order.
    """
    records = {stage: read_record(folder) for stage, folder in folders.items()}
    figures = {name: value for record in records.values() for name, value in record.metrics.items()}
    for row in json.loads((folders["evaluation"] / "scores.json").read_text(encoding="utf-8")):
        prefix = CONTROL_ROLES.get(row["role"], "")
        scores = dict(row["overall"])
        for hops, one in row["by_hops"].items():
            scores |= {hop_metric(name, hops): value for name, value in one.items()}
        figures |= {f"{prefix}{name}": float(value) for name, value in scores.items()}
    curves = {
        name: [(step, value) for step, value, _ in sorted(points)]
        for name, points in records["explorer"].curves.items()
        if name in CURVES
    }
    fingerprints = {stage: record.fingerprint for stage, record in records.items()}
    return SeedRow(place, run, seed, fingerprints, figures, curves)


def with_systems(row: SeedRow, folders: Mapping[str, Path]) -> SeedRow:
    """Return a row with the scores of the run's systems; ``folders``: of their stages, by row of the comparison."""
    figures, fingerprints = dict(row.figures), dict(row.fingerprints)
    for name, folder in folders.items():
        (scores,) = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
        overall = scores["overall"]
        figures |= {f"system.{name}.{score}": float(overall[score]) for score in SCORES if score in overall}
        fingerprints[f"system {name}"] = folder.name
    return replace(row, figures=figures, fingerprints=fingerprints)


def join_repetitions(rows: Iterable[SeedRow], repeated: Sequence[str]) -> list[PointRow]:
    """Return a row for every place, without the ``repeated`` settings, in order of first appearance."""
    places: dict[str, Place] = {}
    groups: dict[str, dict[str, SeedRow]] = {}
    for row in rows:
        place = {name: value for name, value in row.place.items() if name not in repeated}
        key = json.dumps(place, default=str)
        places.setdefault(key, place)
        # Repetitions can be one and the same explorer (any draw of all questions is all questions): it counts once.
        groups.setdefault(key, {})[str(row.judged)] = row
    joined = []
    for key, group in groups.items():
        one, shared = next(iter(group.values())), set.intersection(*(set(row.curves) for row in group.values()))
        points = {name: [dict(row.curves[name]) for row in group.values()] for name in one.curves if name in shared}
        curves = {name: list(_spreads(tables).items()) for name, tables in points.items()}
        joined.append(PointRow(places[key], _spreads([row.figures for row in group.values()]), curves, len(group)))
    return joined


def _spreads(tables: Sequence[Mapping[Key, float]]) -> dict[Key, Spread]:
    shared = {key: [table[key] for table in tables] for key in tables[0] if all(key in table for table in tables)}
    count = len(tables)
    return {key: Spread(fmean(one), stdev(one) if count > 1 else 0.0, count) for key, one in shared.items()}


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One run of a sweep."""

    label: str  # "metaqa-3hop, train_size=100"
    place: Place
    config: RunConfig
    given: str  # configuration and settings, as a command line has them


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep file and all that it asks for."""

    name: str
    path: Path
    file: SweepFile
    points: tuple[SweepPoint, ...]

    @property
    def home(self) -> Path:
        """Where all of its runs keep their artifacts."""
        return self.points[0].config.runtime.home


def read_sweep(path: Path, overrides: Iterable[str] = ()) -> Sweep:
    """Read a sweep file and every run configuration that it asks for.

    ``overrides``: ``section.key=value`` settings for all runs; those that the sweep varies cannot be set. Paths in the
    file and in them resolve against the file. Raises ConfigError, naming every problem, where either is not usable.
    """
    path = packaged(path)
    file = validated(SweepFile, read_yaml(path), path, machine_paths(path.parent))
    given = [parse_setting(override, path.parent) for override in overrides]
    own = (*file.vary, *(key for point in file.points for key in point.set))
    for setting in given:
        for key in own:
            if f"{setting.key}.".startswith(f"{key}."):
                raise ConfigError(f"{setting.source}: the sweep itself sets {key}; change it in the sweep's file")
    points = tuple(_points(path, file, given))
    homes = {str(point.config.runtime.home): point.label for point in points}
    if len(homes) > 1:
        raise ConfigError(f"{path}: its runs have several homes, {' and '.join(homes)}; set KGQA_HOME")
    rows = list(dict.fromkeys(row for point in points for row in _rows(point.config)))
    for name in (*file.table, *(name for plot in file.plots for name in (plot.x or "", *plot.y))):
        if (row := row_of(name)) and row not in rows:
            raise ConfigError(f"{path}: {name}: no run has a row {row!r}; rows: {with_nearest(row, rows) or 'none'}")
    return Sweep(path.stem, path, file, points)


def _rows(config: RunConfig) -> Iterator[str]:
    """Yield what the figures of a run's systems go by: its rows, each with whoever else answers for the model."""
    for row, (_, answerers) in config.systems.rows().items() if config.systems else ():
        for who in answerers:
            yield system_key(row, who, 0).removeprefix("system-").removesuffix("-seed0")


def _points(path: Path, file: SweepFile, given: Sequence[Setting]) -> Iterator[SweepPoint]:
    sweeps = f"the sweep {path}"

    def settings(values: Mapping[str, Any], source: str) -> list[Setting]:
        return [Setting(key, value, f"{source}: {key}", path.parent) for key, value in values.items()]

    names = short_names(file.vary)
    # Of many points' explorers none is one to serve; --set tracking.register_models=true registers them all the same.
    fixed = [Setting("tracking.register_models", False, sweeps), *settings(file.set, sweeps), *given]
    several: tuple[PointSection | None, ...] = file.points or (None,)
    seen: set[str] = set()
    for base, point, *values in itertools.product(file.base, several, *file.vary.values()):
        varied = dict(zip(file.vary, values, strict=True))
        everywhere = {BASE: base.stem, POINT: point.label if point else None} | varied
        place = {name: everywhere[name] for name in file.dimensions}
        label = ", ".join(
            f"{names[name]}={show_value(value)}" if name in names else str(value) for name, value in place.items()
        )
        if label in seen:
            raise ConfigError(f"{path}: two runs are both called {label!r}; say what they are in 'points', with labels")
        seen.add(label)
        here = f"{sweeps}, run {label!r}"
        own = settings({**(point.set if point else {}), **varied}, here)
        named = Setting("name", _run_name(f"{path.stem} {label or base.stem}"), here)
        base, every = Path(os.path.normpath(base)), [*fixed, *own, named]
        config = configure(base, every, source=f"{base}, with what {here} sets,")
        values = [_with_whole_paths(one.value, _at(config, one.key)) for one in every]
        texts = [json.dumps(value, ensure_ascii=False, default=str) for value in values]
        told = [f"--set={one.key}={text}" for one, text in zip(every, texts, strict=True)]
        yield SweepPoint(label or base.stem, place, config, shlex.join([str(base), *told]))


def _at(config: Any, key: str) -> Any:
    """Return what a configuration, or a part of it, has at a dotted key."""
    for name in key.split("."):
        config = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    return config


def _with_whole_paths(value: Any, found: Any) -> Any:
    """Return a setting's value with its paths as they were ``found``: a command line has another folder to start in."""
    if isinstance(value, dict):
        return {name: _with_whole_paths(one, _at(found, name)) for name, one in value.items()}
    if isinstance(value, list) and isinstance(found, tuple) and len(found) == len(value):
        return [_with_whole_paths(*pair) for pair in zip(value, found, strict=True)]
    return str(found) if isinstance(found, Path) and found.is_absolute() else value


def _run_name(text: str) -> str:
    """Return a run's name: legal as a file's name, and short; two texts never share one."""
    name = re.sub(r"[/\\\x00-\x1f]", "_", text).strip()
    if name == text and len(name) <= MAX_NAME:
        return name
    return f"{name[:MAX_NAME]} {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return each setting's last part, or as many as tell it from the others."""
    keys, short = list(keys), {}
    for key in keys:
        parts = key.split(".")
        tails = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        short[key] = next(tail for tail in tails if sum(f".{other}".endswith(f".{tail}") for other in keys) == 1)
    return short


def show_value(value: Any) -> str:
    """Return a setting's value in words: of a section its values, of a path its last part."""
    if value is None:
        return DEFAULT
    if isinstance(value, Mapping):
        return " ".join(show_value(item) for item in value.values())
    if isinstance(value, list | tuple):
        return "+".join(map(show_value, value))
    if isinstance(value, str) and "/" in value:
        return Path(value).stem
    return f"{value:g}" if isinstance(value, float) else str(value)


def header(dimensions: Sequence[str], figures: Sequence[str]) -> list[str]:
    """Return the columns' names: the dimensions, how many explorers, the figures."""
    short = {BASE: "run", POINT: "point"} | short_names(name for name in dimensions if name not in (BASE, POINT))
    return [*(short[name] for name in dimensions), "n", *(label_of(name).replace(", percent", "") for name in figures)]


def cells(rows: Sequence[PointRow], dimensions: Sequence[str], figures: Sequence[str]) -> list[list[str]]:
    """Return the rows' cells under ``header``; a figure that a row does not have is an empty cell."""
    return [
        [
            *(show_value(row.place[name]) for name in dimensions),
            str(row.count),
            *(show_spread(name, row.figures[name]) if name in row.figures else "" for name in figures),
        ]
        for row in rows
    ]


def show_spread(name: str, found: Spread) -> str:
    """Return a figure as text, ``96.65 ± 0.12`` where there are repetitions."""
    decimals = 0 if name.startswith("num_") or (name in COSTS and abs(found.mean) >= WHOLE_FROM) else 2
    shown = f"{found.mean:,.{decimals}f}"
    return f"{shown} ± {found.deviation:,.{decimals}f}" if found.count > 1 and found.deviation else shown
