"""The ``kgqa`` command. Each command reads its arguments and calls; imports are inside, so that help comes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli_session import protect_children, with_exit_code, working

EXIT_CODES = """Exit codes: 0 done · 1 another error · 2 configuration or usage · 3 input file · 4 no such entity ·
5 artifact missing or damaged, or disk full · 130 stopped by Ctrl-C.

With --json standard output is one JSON document; logs and progress are on standard error. All figures are in percent.
Artifacts live in KGQA_HOME (default ~/.local/share/kgqa)."""

app = typer.Typer(
    name="kgqa",
    help="Question answering over knowledge graphs: build, train, evaluate and ask.\n\n"
    "\b\nExamples:\n"
    "  kgqa run conf/demo.yaml\n"
    "  kgqa run conf/demo.yaml --set explorer.epochs=3\n"
    "  kgqa status conf/demo.yaml\n"
    '  kgqa ask conf/demo.yaml "who directed Blue Harbour?"\n'
    "  kgqa score predictions.jsonl --json",
    epilog=EXIT_CODES,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Conf = Annotated[Path, typer.Argument(metavar="CONF", help="A run configuration, e.g. conf/demo.yaml.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting, e.g. explorer.epochs=3; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def show_version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        from importlib.metadata import version

        typer.echo(f"kgqa {version('kgqa')}")
        raise typer.Exit


@app.callback()
def prepare(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Prepare what all commands share."""
    protect_children()


@app.command()
@with_exit_code
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
    from flows.cli_output import print_json, print_scores
    from kgqa_core.evaluation.score import score_file

    with working("scoring"):
        figures = score_file(file)
    print_json(figures) if as_json else print_scores(figures)


if __name__ == "__main__":
    app()
