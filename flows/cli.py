"""The ``kgqa`` command. Each command reads its arguments and calls; imports are inside, so that help comes at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli_ask import AnsweredBy, ask, open_asked_run, system_settings, untaught_settings
from flows.cli_builds import builds
from flows.cli_compare import compare, confidence
from flows.cli_export import export
from flows.cli_home import gc, status, verify
from flows.cli_init import init
from flows.cli_lint import lint
from flows.cli_lm import lm_info, score_plans
from flows.cli_make import make_questions
from flows.cli_output import (
    print_evaluation,
    print_json,
    print_rejects,
    print_scores,
    print_summary,
    print_table,
    summary_document,
)
from flows.cli_release import history, promote, rollback, serve
from flows.cli_report import report, view
from flows.cli_session import (
    Conf,
    Json,
    Settings,
    as_given,
    prepare_environment,
    read_run,
    run_missing,
    with_exit_code,
    working,
)
from flows.cli_sql import sql
from flows.cli_subgraph import subgraph
from flows.cli_up import down, up
from kgqa_core.errors import ConfigError, counted

if TYPE_CHECKING:
    from flows.pipeline import SweepSummary
    from flows.run import FlowName
    from tasks.sweep_points import Sweep

EXIT_CODES = """Exit codes: 0 done · 1 another error · 2 configuration or usage · 3 input file · 4 no such entity ·
5 artifact missing or damaged, or disk full · 6 the new build moved beyond dataset.drift ·
7 a model server that cannot be used · 130 stopped by Ctrl-C · 143 by SIGTERM.

With --json standard output is one JSON document; logs and progress are on standard error. All figures are in percent.
Artifacts live in KGQA_HOME (default ~/.local/share/kgqa)."""

TRACKED = ("retrain", "train_reasoner")  # flows that tell MLflow; evaluate does where it compares systems

app = typer.Typer(
    name="kgqa",
    help="Question answering over knowledge graphs: build, train, evaluate and ask.\n\n"
    "\b\nExamples:\n"
    "  kgqa run conf/demo.yaml\n"
    "  kgqa run conf/demo.yaml --set explorer.epochs=3\n"
    "  kgqa status conf/demo.yaml\n"
    '  kgqa ask conf/demo.yaml "who directed The Drowned Harbour?"\n'
    "  kgqa score predictions.jsonl --json",
    epilog=EXIT_CODES,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Systems = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Systems, with commas, such as etd,rog,ours. A name that is none shows all that there are.",
    ),
]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a function a command, whose errors become exit codes."""
    app.command()(with_exit_code(function))
    return function


def show_version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        typer.echo(f"kgqa {version('kgqa')}")
        raise typer.Exit


app.add_typer(builds, name="builds")


@app.callback()
def prepare(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Prepare what all commands share."""
    prepare_environment()


@command
def run(
    conf: Conf,
    settings: Settings = None,
    oracle: Annotated[
        bool,
        typer.Option("--oracle", help="Rows of an oracle, too, which knows the answers: the ceiling of each system."),
    ] = False,
    small: Annotated[
        bool,
        typer.Option("--small", help="On a miniature of its data and models, which is made here: do all stages run?"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the whole flow: build, encode, train, evaluate, and show it in MLflow.

    Only what is missing or stale is done; a run that was killed goes on.

    \b
    Examples:
      kgqa run conf/demo.yaml
      kgqa run conf/demo.yaml --oracle
      kgqa run conf/metaqa-3hop.yaml --set explorer.epochs=3 --set explorer.seeds=[0,1,2]
      kgqa run conf/papers/rog-webqsp.yaml --small
    """
    if small:
        from tasks.miniature import enter_miniature

        settings = [*enter_miniature(conf, settings or ()), *(settings or ())]
    run_and_print("retrain", conf, [*(settings or []), *(with_oracle(conf, settings) if oracle else [])], as_json)
    if small:
        places = " ".join(f"{name}={os.environ[name]}" for name in ("KGQA_HOME", "KGQA_DATA"))
        typer.echo(
            "A miniature: models of random weights on an invented graph. No figure of it says anything.", err=True
        )
        typer.echo(f"Other commands find it after: export {places}", err=True)


@command
def build(
    conf: Conf,
    settings: Settings = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Take the new build over, however much changed since the last one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build the graph and link the questions, and show what changed since the last build.

    A change beyond the limits of dataset.drift stops this and every other command that needs the build.

    \b
    Examples:
      kgqa build conf/demo.yaml
      kgqa build conf/metaqa-1hop.yaml --accept
    """
    run_and_print("build_graph", conf, settings, as_json, accept=accept)


@command
def encode(conf: Conf, settings: Settings = None, as_json: Json = False) -> None:
    """Encode the texts of questions and relations, and build what that needs.

    \b
    Example:
      kgqa encode conf/demo.yaml --set encoder.kind=hash
    """
    run_and_print("encode", conf, settings, as_json)


@command
def train_explorer(conf: Conf, settings: Settings = None, as_json: Json = False) -> None:
    """Train one explorer per seed, and make what that needs.

    \b
    Example:
      kgqa train-explorer conf/demo.yaml --set explorer.seeds=[0,1]
    """
    run_and_print("train_explorer", conf, settings, as_json)


@command
def train_reasoner(conf: Conf, settings: Settings = None, as_json: Json = False) -> None:
    """Tune the language model on instructions that the graph gives, train the planners and score their plans.

    Needs the sections plans and, for anything with a language model, lm. Adapters are in peft's own format.

    \b
    Examples:
      kgqa train-reasoner conf/metaqa-smollm2.yaml
      kgqa train-reasoner conf/metaqa-smollm2.yaml --set 'lm={kind: local, path: models/Llama-2-7b}'
    """
    run_and_print("train_reasoner", conf, settings, as_json)


@command
def evaluate(
    conf: Conf,
    settings: Settings = None,
    questions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Score on this file, in the format of the dataset's questions.")
    ] = None,
    systems: Systems = None,
    answered_by: AnsweredBy = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --questions: write the answers, .jsonl or .parquet.")
    ] = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="With --questions: score the controls beside, which takes longer.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put systems side by side over the same questions, and make what that needs.

    A run without a section `systems` scores its explorers beside their controls, unless --systems names some. What a
    killed evaluation finished is kept, question by question; calls of a language model are never paid twice.

    With --questions, the explorer of the first seed, or the one system that --systems names, is scored on a file of
    your own of any size. Only the stages that it needs are made.

    \b
    Examples:
      kgqa evaluate conf/demo.yaml
      kgqa evaluate conf/demo.yaml --systems etd,rog,fiske,direct --answered-by lm,oracle
      kgqa evaluate conf/demo.yaml --questions new_questions.jsonl --out answers.jsonl
    """
    if questions is None:
        if out is not None or controls:
            raise typer.BadParameter("--out and --controls go with --questions")
        given = [*untaught_settings(conf, settings or (), systems, answered_by), *(settings or ())]
        run_and_print("evaluate", conf, [*given, *system_settings(systems, answered_by)], as_json)
        return
    if answered_by and not systems:
        raise typer.BadParameter("--questions are answered by the explorer alone; --answered-by needs --systems NAME")
    pipeline = open_asked_run(conf, settings or [], systems, answered_by)
    with working("evaluating"):
        from flows.question_file import evaluate_file, needed_stages, require_places

        require_places(questions, out)
        run_missing(pipeline, *needed_stages(pipeline, systems, controls=controls))
        figures, rejected = evaluate_file(pipeline, questions, row=systems, out=out, controls=controls)
    print_rejects(rejected.first, rejected.num, rejected.file)
    print_json(figures) if as_json else print_evaluation(figures, systems or "explorer")


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


def score(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Our predictions.parquet, or JSON lines.")],
    as_json: Json = False,
) -> None:
    """Score a predictions file.

    Ours, or JSON lines with `prediction` (text with one answer per line, or a list) and `ground_truth` (a list).
    Prints strict metrics, and beside them those of the published RoG evaluator, which counts substrings.

    \b
    Examples:
      kgqa score predictions.jsonl
      kgqa score predictions.parquet --json
    """
    from flows.score import score_file

    with working("scoring"):
        figures = score_file(file)
    print_json(figures) if as_json else print_scores(figures)


studied = (ask, score, init, make_questions, lint, compare, report, view, confidence, lm_info, score_plans)
operated = (sql, export, subgraph, sweep, status, promote, rollback, history, up, down, gc, serve, verify)
for other in (*studied, *operated):
    command(other)


def run_and_print(flow: FlowName, conf: Path, settings: list[str] | None, as_json: bool, **options: bool) -> None:
    """Run a flow of a configuration, with what options it has, and print what came out."""
    config = read_run(conf, settings)
    with working(f"kgqa {conf.stem}"):
        from flows.run import run_flow
        from tasks.mlflow_store import ui_command

        summary = run_flow(flow, config, **options)
        tracked = config.tracking.enabled and (flow in TRACKED or (flow == "evaluate" and config.systems is not None))
        mlflow_ui = ui_command(config.runtime.home) if tracked else None
    if as_json:
        print_json(summary_document(summary, mlflow_ui))
    else:
        print_summary(summary, as_given(conf, settings), mlflow_ui)


def with_oracle(conf: Path, settings: list[str] | None) -> list[str]:
    """Return the override by which an oracle answers, too, beside whoever does; ConfigError without systems."""
    systems = read_run(conf, settings).systems
    if systems is None:
        raise ConfigError(f"--oracle: {conf} compares no systems; give it a section 'systems'")
    return [f"systems.answered_by=[{', '.join(dict.fromkeys((*systems.answered_by, 'oracle')))}]"]


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


if __name__ == "__main__":
    app()
