"""What commands print: tables for people, one JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from flows.cli_session import make_console

if TYPE_CHECKING:
    from pathlib import Path

    from flows.summary import RunSummary
    from kgqa_core.run.ask import Answer, SystemReply
    from kgqa_core.run.pipeline import StageStatus
    from kgqa_core.types import Reject

STATE_STYLES = {"done": "green", "stale": "yellow", "missing": "red", "better": "green", "worse": "red"}
PERCENT = "all figures in percent"
NUM_REJECTS = 5  # shown
NUM_CANDIDATES = 10  # shown
MAX_ROWS = 15  # of results


def print_json(value: object) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, figures_from: int = 99) -> None:
    """Print a table; columns from ``figures_from`` on are figures, to the right. Cells are text, never markup."""
    from rich.table import Table
    from rich.text import Text

    console = make_console()
    table = Table()
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number >= figures_from else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=STATE_STYLES.get(cell, "")) for cell in row))
    console.print(Text(title if table.rows else f"{title}: none", style="bold"))
    if table.rows:
        console.print(table)


def print_scores(figures: Mapping[str, Any]) -> None:
    """Print what ``score_file`` found: strict metrics beside the published evaluator's."""
    from kgqa_core.evaluation.tables import show_figure

    strict, published = figures["strict"], figures["rog"]
    names = [name for name in dict.fromkeys([*strict, *published]) if "." not in name]  # bounds stand beside theirs
    rows = [(name, show_figure(strict, name) if name in strict else "", _figure(published.get(name))) for name in names]
    title = f"{figures['n']} questions, {PERCENT}, [95 % interval]"
    print_table(title, ("metric", "strict", "published RoG"), rows, figures_from=1)


def print_status(stages: Sequence[StageStatus], home: Path) -> None:
    """Print where every stage stands."""
    rows = [(stage.key, stage.state, stage.why, _shown_folder(stage.folder)) for stage in stages]
    print_table(f"Stages; artifacts in {home / 'artifacts'}", ("stage", "state", "why", "artifact"), rows)


def print_summary(summary: RunSummary, conf: Path, mlflow_ui: str | None) -> None:
    """Print the main results of a run, or what it made of the data, and up to three lines of what to do next.

    Everything else is in the report and in MLflow.
    """
    from flows.summary import RESULTS

    if summary.changes:
        from flows.cli_changes import print_changes

        print_changes(summary.changes)
    if results := summary.results:
        more = "" if len(results) <= MAX_ROWS else f"; the first {MAX_ROWS} of {len(results)} rows"
        title = f"Results of {summary.name}, {PERCENT}, [95 % interval]{more}"
        print_table(title, RESULTS, results[:MAX_ROWS], figures_from=2)
    elif summary.planners:
        from kgqa_core.planners.evaluate import HEADER, planner_cells

        print_table(f"Planners of {summary.name}, {PERCENT}", HEADER, planner_cells(summary.planners), figures_from=2)
    else:
        print_table("What there is", ("of", "what"), summary.facts)
    for line in _next_steps(summary, conf, mlflow_ui):
        typer.echo(line)


def _next_steps(summary: RunSummary, conf: Path, mlflow_ui: str | None) -> list[str]:
    """Return where more is to be seen, and what a user may do now."""
    shown = [f"All tables:  {summary.report}"] if summary.report else []
    shown += [f"In MLflow:   {mlflow_ui}"] if mlflow_ui else []
    shown += [f'Ask it:      kgqa ask {conf} "QUESTION"'] if summary.results else []
    return [*shown, f"Stages:      kgqa status {conf}"][:3]


def print_comparison(comparison: Mapping[str, Any]) -> None:
    """Print systems side by side: the main table with what it says of the models, then the others."""
    first, *others = comparison["tables"]
    print_table(first["title"], first["header"], first["rows"], figures_from=first["figures_from"])
    for sentence in comparison["sentences"]:
        typer.echo(f"! {sentence}")
    for table in others:
        print_table(table["title"], table["header"], table["rows"], figures_from=table["figures_from"])


def summary_document(summary: RunSummary, mlflow_ui: str | None) -> dict[str, Any]:
    """Return what ``print_summary`` prints as one document."""
    stages = [
        {
            "key": outcome.key,
            "built": outcome.built,
            "fingerprint": outcome.artifact.fingerprint,
            "folder": str(outcome.artifact.folder),
        }
        for outcome in summary.outcomes
    ]
    return {
        "run": summary.name,
        "results": [asdict(row) for row in summary.rows],
        "planners": list(summary.planners),
        "systems": summary.comparison["rows"] if summary.comparison else [],
        "facts": dict(summary.facts),
        "changes": summary.changes,
        "stages": stages,
        "report": str(summary.report) if summary.report else None,
        "mlflow_ui": mlflow_ui,
    }


def print_answer(answer: Answer) -> None:
    """Print the ranked candidates of one question with the evidence they rest on."""
    topics = ", ".join(answer.topics)
    if not answer.candidates:
        typer.echo(f"Nothing was found from {topics}.")
        return
    rows = [
        ("*" if candidate.is_answer else "", candidate.name, f"{candidate.score:.2f}", candidate.path)
        for candidate in answer.candidates[:NUM_CANDIDATES]
    ]
    print_table(f"From {topics} (* an answer; scores in percent)", ("", "candidate", "score", "evidence"), rows)


def print_reply(reply: SystemReply, trace: bool) -> None:
    """Print what one system answered and on what evidence; with ``trace``, every prompt and text before it."""
    if trace:
        for number, call in enumerate(reply.calls, start=1):
            typer.echo(f"--- call {number} (round {call.round}): {call.instruction}")
            for part in (call.system_prompt, call.prompt):
                if part:
                    typer.echo(part)
            for text in call.texts:
                typer.echo(f">>> {text}")
            if call.problem:
                typer.echo(f"!!! {call.problem}")
        typer.echo("---")
    topics = ", ".join(reply.topics) or "no topic"
    spent = f"{len(reply.calls)} calls, {reply.tokens:,} tokens, {reply.seconds:.2f} s"
    title = f"{reply.system} from {topics}: {reply.status}; {spent} (* an answer)"
    rows = [
        ("*" if one.is_answer else "", one.name, f"{one.score:.3f}", one.path)
        for one in reply.candidates[:NUM_CANDIDATES]
    ]
    print_table(title, ("", "candidate", "score", "evidence"), rows)
    if reply.verdict is not None:
        typer.echo(f"verdict: {'true' if reply.verdict else 'false'}")
    if reply.unmatched:
        typer.echo(f"answered, and not in the graph: {', '.join(reply.unmatched)}")
    if reply.error:
        typer.echo(reply.error)


def print_evaluation(figures: Mapping[str, Any]) -> None:
    """Print an explorer's figures on a file of questions beside its controls'."""
    from kgqa_core.evaluation.tables import COLUMNS, figure_cells

    systems = {"explorer": figures, **figures["controls"]}
    rows = [(system, *figure_cells(values)) for system, values in systems.items()]
    title = f"{figures['n']} questions in {figures['seconds']:.1f} s, {PERCENT}, [95 % interval]"
    print_table(title, ("system", *COLUMNS.values()), rows, figures_from=1)


def print_rejects(rejects: Sequence[Reject]) -> None:
    """Say on standard error which lines of a file were not used."""
    for reject in rejects[:NUM_REJECTS]:
        typer.echo(f"not used: {reject.file}, line {reject.line}: {reject.reason}", err=True)
    if len(rejects) > NUM_REJECTS:
        typer.echo(f"not used: {len(rejects)} lines in all", err=True)


def _shown_folder(folder: Path | None) -> str:
    """Return an artifact's folder under the store's root."""
    return "" if folder is None else f"{folder.parent.name}/{folder.name}"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
