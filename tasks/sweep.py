"""The comparison of a sweep's runs: its rows as tables, and its plots."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.artifacts import Artifact, ArtifactStore, Recipe, write_json
from kgqa_core.run.pipeline import StageOutcome
from kgqa_core.tracking import Recorder, write_record
from tasks import sweep_points as rowing
from tasks.plots import draw_sweep
from tasks.runtime import pipeline_task
from tasks.sweep_config import SweepFile
from tasks.sweep_points import PointRow, SeedRow, Sweep, SweepPoint, show_value

STAGE = "sweep"
VERSION = 1  # raised whenever the same runs would give other tables or plots
ROWS, SUMMARY, CURVES, DOCUMENT, PLOTS = "rows.parquet", "summary.parquet", "curves.parquet", "sweep.json", "plots"
READ = ("questions", "encodings", "explorer", "evaluation")  # stages whose figures a row has


def read_point(point: SweepPoint, outcomes: Sequence[StageOutcome]) -> list[SeedRow]:
    """Return a row for each explorer of a finished run; raises ``ArtifactError`` where a record is damaged."""
    folders = {outcome.key: outcome.artifact.folder for outcome in outcomes}
    rows = []
    for seed in point.config.exploration.seeds:
        own = {name: folders[name if name in folders else f"{name}-seed{seed}"] for name in READ}
        row = rowing.read_row(point.place, point.config.name, seed, own)
        found = {key: re.fullmatch(rf"system-(.+)-seed{seed}", key) for key in folders}
        rows.append(rowing.with_systems(row, {name[1]: folders[key] for key, name in found.items() if name}))
    return rows


@pipeline_task("compare the runs of a sweep")
def compare_runs(sweep: Sweep, rows: Sequence[SeedRow]) -> Artifact:
    """Write the tables and plots of finished runs as one artifact, unless they are there."""
    file = sweep.file
    section = file.model_dump(mode="json", include={"repeat", "table", "plots"})
    places = [{name: show_value(value) for name, value in row.place.items()} for row in rows]
    recipe = Recipe(
        STAGE,
        VERSION,
        {"name": sweep.name, "dimensions": file.dimensions, "places": places, **section},
        {
            f"{number} {row.run}, seed {row.seed}{'' if name == 'evaluation' else f', {name}'}": fingerprint
            for number, row in enumerate(rows)
            for name, fingerprint in row.judged.items()
        },
    )

    def write(folder: Path) -> None:
        recorder = Recorder(STAGE)
        recorder.param("sweep", sweep.name)
        recorder.metric("num_explorers", len(rows))
        write_comparison(folder, sweep.name, file, rows)
        for table in (ROWS, SUMMARY, CURVES):
            recorder.table(Path(table).stem, table)
        write_record(folder, recorder.record(recipe.fingerprint))

    artifact, _ = ArtifactStore(sweep.home / "artifacts").build(recipe, write)
    return artifact


def write_comparison(folder: Path, name: str, file: SweepFile, rows: Sequence[SeedRow]) -> None:
    """Write tables, plots and a document with both into an empty ``folder``, from a row per explorer of the sweep."""
    joined = rowing.join_repetitions(rows, file.repeat)
    lines, steps = [], []
    for row in rows:
        own = {**_place(row), "run": row.run, "seed": row.seed}
        lines.append({**own, **{f"fingerprint.{name}": row.fingerprints[name] for name in READ}, **row.figures})
        points = [(curve, *point) for curve, points in row.curves.items() for point in points]
        steps += [{**own, "curve": curve, "step": step, "value": value} for curve, step, value in points]
    _write_table(folder / ROWS, lines)
    _write_table(folder / SUMMARY, list(map(_summary_line, joined)))
    _write_table(folder / CURVES, steps)
    plots = []
    for number, plot in enumerate(file.plots, start=1):
        if figure := draw_sweep(plot, joined, name):
            (folder / PLOTS).mkdir(exist_ok=True)
            title = re.sub(r"[^a-z0-9]+", "-", (plot.title or "-".join(plot.y)).lower()).strip("-")[:60]
            plots.append(f"{PLOTS}/{number}-{title}.png")
            figure.savefig(folder / plots[-1], metadata={"Software": None})  # the same bytes from the same figures
    document = {
        "sweep": name,
        "dimensions": file.compared,
        "repeated": [*file.repeat, "explorer.seeds"],
        "points": [
            {"place": dict(row.place), "num_explorers": row.count, "figures": figures}
            for row in joined
            for figures in [{name: asdict(found) for name, found in row.figures.items()}]
        ],
        "header": rowing.header(file.compared, file.table),
        "cells": rowing.cells(joined, file.compared, file.table),
        "plots": plots,
    }
    write_json(folder / DOCUMENT, document)


def read_document(artifact: Artifact) -> dict[str, Any]:
    """Return what ``write_comparison`` wrote as the document of a sweep."""
    document: dict[str, Any] = json.loads((artifact.folder / DOCUMENT).read_text(encoding="utf-8"))
    return document


def _place(row: SeedRow | PointRow) -> dict[str, Any]:
    return {f"at.{name}": value for name, value in row.place.items()}


def _summary_line(row: PointRow) -> dict[str, Any]:
    means = {name: found.mean for name, found in row.figures.items()}
    deviations = {f"{name}.deviation": found.deviation for name, found in row.figures.items() if found.count > 1}
    return {**_place(row), "num_explorers": row.count, **means, **deviations}


def _write_table(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write lines as Parquet; a column that some lines do not have is null there, one of mixed types becomes text."""
    columns: dict[str, list[Any]] = {name: [] for line in lines for name in line}
    for name, values in columns.items():
        values.extend(line.get(name) for line in lines)
        kinds = {type(value) for value in values if value is not None}
        if name.startswith("at.") and not (kinds <= {int, float} or kinds == {str}):
            values[:] = map(show_value, values)
    pq.write_table(pa.table(columns), path, compression="zstd")
