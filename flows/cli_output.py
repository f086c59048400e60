"""What commands print: tables for people, one JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flows.cli_session import make_console

if TYPE_CHECKING:
    from flows.inference import Answer
    from flows.summary import RunSummary
    from kgqa_core.evaluation.report import ReportRow
    from kgqa_core.pipeline import StageStatus

STATE_STYLES = {"done": "green", "stale": "yellow", "missing": "red"}
PERCENT = "all figures in percent"


def print_json(value: object) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, figures_from: int = 99) -> None:
    """Print a table; columns from ``figures_from`` on are figures, to the right. Cells are text, never markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", title_style="bold")
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number >= figures_from else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=STATE_STYLES.get(cell, "")) for cell in row))
    make_console().print(table)


def print_scores(figures: Mapping[str, Any]) -> None:
    """Print what ``score_file`` found: strict metrics beside the published evaluator's."""
    names = list(dict.fromkeys([*figures["strict"], *figures["rog"]]))
    rows = [(name, *(_figure(figures[kind].get(name)) for kind in ("strict", "rog"))) for name in names]
    print_table(f"{figures['n']} questions, {PERCENT}", ("metric", "strict", "published RoG"), rows, figures_from=1)


def print_status(stages: Sequence[StageStatus]) -> None:
    """Print where every stage stands."""
    rows = [(stage.key, stage.state, stage.why, str(stage.folder or "")) for stage in stages]
    print_table("Stages", ("stage", "state", "why", "artifact"), rows)


def print_summary(summary: RunSummary, mlflow_ui: str | None) -> None:
    """Print the results of a run, what it made, and how to see more of it."""
    from kgqa_core.evaluation.report import HEADER, render_remarks, report_cells

    if summary.rows:
        cells = [(*row[:2], *row[2:-1], row[-1]) for row in report_cells(summary.rows)]
        print_table(f"Results of {summary.name}, {PERCENT}", HEADER, cells)
        for remark in render_remarks(summary.rows):
            typer.echo(f"! {remark}")
    made = [
        (outcome.key, "built" if outcome.built else "was there", str(outcome.artifact.folder))
        for outcome in summary.outcomes
    ]
    print_table("Artifacts", ("stage", "", "folder"), made)
    if mlflow_ui:
        typer.echo(f"See it in MLflow:\n  {mlflow_ui}")
