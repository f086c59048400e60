"""``kgqa sweep``: runs what a sweep file asks for and prints the runs side by side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli_output import print_json, print_table
from flows.cli_session import Json, Settings, working
from kgqa_core.errors import counted

if TYPE_CHECKING:
    from flows.pipeline import SweepSummary
    from tasks.sweep_points import Sweep


def sweep(
    conf: Annotated[Path, typer.Argument(metavar="SWEEP", help="A sweep file, e.g. conf/sweeps/training-size.yaml.")],
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Run one configuration with some settings varied, and show the runs side by side: a table, plots, MLflow.

    Every point is an ordinary run: only what is missing or stale is done, and a sweep that was killed goes on.

    \b
    Examples:
      kgqa sweep conf/sweeps/training-size.yaml
      kgqa sweep conf/sweeps/edge-budget.yaml --set explorer.seeds=[0] --json
    """
    from tasks.sweep_points import read_sweep

    plan = read_sweep(conf, settings or ())
    with working(f"kgqa sweep {conf.stem}"):
        from flows.run import run_sweep

        done = run_sweep(plan, settings or ())
        document = sweep_document(plan, done)
    print_json(document) if as_json else print_sweep(plan, document)


def sweep_document(plan: Sweep, done: SweepSummary) -> dict[str, Any]:
    """Return what came out of a sweep as one document."""
    from tasks.mlflow_store import ui_command
    from tasks.sweep import read_document

    found, folder = read_document(done.artifact), done.artifact.folder
    return {
        **found,
        "plots": [str(folder / plot) for plot in found["plots"]],
        "folder": str(folder),
        "built": done.built,
        "mlflow_ui": ui_command(plan.home) if plan.points[0].config.tracking.enabled else None,
        "mlflow": asdict(done.mlflow) if done.mlflow else None,
    }


def print_sweep(plan: Sweep, document: dict[str, Any]) -> None:
    """Print the table of a sweep, and where its tables and plots are."""
    num_dimensions = len(plan.file.compared)
    title = f"Sweep {plan.name}: {counted(len(plan.points), 'run')}"
    if any(point["num_explorers"] > 1 for point in document["points"]):
        title += "; n explorers each, mean ± standard deviation"
    print_table(title, document["header"], document["cells"], figures_from=num_dimensions)
    num_built = sum(bool(keys) for keys in document["built"].values())
    typer.echo(f"{counted(num_built, 'run')} had something to do, {len(plan.points) - num_built} were there.")
    typer.echo(f"Tables and plots:\n  {document['folder']}")
    for plot in document["plots"]:
        typer.echo(f"  {plot}")
    if document["mlflow_ui"]:
        typer.echo(f"To see it in MLflow:\n  {document['mlflow_ui']}")
        if document["mlflow"]:
            typer.echo(f"  this sweep at {document['mlflow']['page']}")
