"""``kgqa compare``: finds the runs that a user names, and shows which differences between them are more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli_session import with_exit_code, working
from kgqa_core.errors import ConfigError, InputError, nearest, shorten

if TYPE_CHECKING:
    from kgqa_core.evaluation.compare import Difference, PairRow
    from kgqa_core.evaluation.runs import EvaluatedRun

PREDICTIONS = "predictions.parquet"
SMALLEST_P = 0.001  # shown as such
HEADER = ("questions", "n", "metric", "{0}", "{1}", "{0} - {1}", "95 % interval", "p", "{0} is")


@with_exit_code
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN [RUN...]",
            help="Evaluated runs: a run configuration (its first seed, or CONF@SEED), the folder of an evaluation, "
            "or a predictions.parquet.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compare runs on the same questions: is one better, or is the difference within noise?

    Paired tests of Hits@1, F1 and EM, over all questions and by hops and number of answers, with the 95 % bootstrap
    interval of each difference. More than two runs are compared pair by pair, p corrected by Holm's method. Refused
    where questions or graphs differ.

    \b
    Examples:
      kgqa compare conf/demo.yaml@0 conf/demo.yaml@1
      kgqa compare conf/metaqa-joint.yaml old/predictions.parquet --json
    """
    from flows.cli_output import print_json

    if len(runs) < 2 or len(set(runs)) < len(runs):
        raise ConfigError(f"give two runs or more, each once; given: {', '.join(runs)}")
    with working("comparing"):
        from kgqa_core.evaluation.compare import compare_runs
        from kgqa_core.evaluation.runs import read_run

        found = [read_run(path, name) for name, path in map(find_predictions, runs)]
        rows = compare_runs(found)
    print_json(comparison_document(found, rows)) if as_json else print_comparison(found, rows)


def find_predictions(run: str) -> tuple[str, Path]:
    """Return what to call a run that a user named, and its predictions table.

    Raises:
        ConfigError: a configuration that cannot be read, or has no such seed.
        ArtifactError: a configuration whose evaluation is not done.
        InputError: no such file or folder.
    """
    path = Path(run)
    if path.is_dir():
        return run, path / PREDICTIONS
    if path.is_file() and not _is_configuration(path):
        return run, path
    base, at, seed = run.rpartition("@")
    if at and not path.exists() and _is_configuration(Path(base)):
        return _evaluation(Path(base), seed)
    if _is_configuration(path):
        return _evaluation(path, None)
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, beside)
    hint = f" (did you mean {path.with_name(near[0])}?)" if near else ""
    raise InputError(
        f"there is no run {shorten(run)}{hint}. A run is a configuration (conf/demo.yaml or conf/demo.yaml@1), the "
        "folder of an evaluation, or a predictions.parquet"
    )


def _is_configuration(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml")


def _evaluation(conf: Path, seed: str | None) -> tuple[str, Path]:
    """Return the name and the predictions of one seed of a configuration, the first where none is named."""
    from kgqa_core.config_file import read_config
    from kgqa_core.pipeline import Pipeline

    config = read_config(conf)
    seeds = [str(number) for number in config.exploration.seeds]
    chosen = seeds[0] if seed is None else seed
    if chosen not in seeds:
        raise ConfigError(f"{conf} has no seed {shorten(chosen)}; its explorer.seeds are {', '.join(seeds)}")
    return f"{conf}@{chosen}", Pipeline(config).artifact(f"evaluation-seed{chosen}").folder / PREDICTIONS


def comparison_document(runs: Sequence[EvaluatedRun], rows: Sequence[PairRow]) -> dict[str, Any]:
    """Return the comparison as one document."""
    from kgqa_core.evaluation.compare import ALPHA
    from kgqa_core.evaluation.intervals import CONFIDENCE
    from kgqa_core.evaluation.report import make_figures

    return {
        "n": len(runs[0].asked),
        "graph": runs[0].source.graph,
        "confidence": CONFIDENCE,
        "alpha": ALPHA,
        "runs": [
            {
                "run": run.name,
                "system": run.source.system,
                "predictions": str(run.path),
                "figures": make_figures(run.scores),
            }
            for run in runs
        ],
        "comparisons": [asdict(row) for row in rows],
    }


def print_comparison(runs: Sequence[EvaluatedRun], rows: Sequence[PairRow]) -> None:
    """Print the runs with their figures, then a table per pair, then what it comes to."""
    from flows.cli_output import PERCENT, print_table
    from kgqa_core.evaluation.report import COLUMNS, make_figures, show_figure

    letters = {run.name: letter_of(place) for place, run in enumerate(runs)}
    figures = [make_figures(run.scores) for run in runs]
    shown = [
        (
            letters[run.name],
            run.name,
            run.source.system,
            *(show_figure(own, metric) for metric in ("hits1", "f1", "em")),
        )
        for run, own in zip(runs, figures, strict=True)
    ]
    title = f"{len(runs[0].asked)} questions, {PERCENT}, [95 % interval]"
    print_table(title, ("", "run", "system", "Hits@1", "F1", "EM"), shown, figures_from=3)
    pairs = dict.fromkeys((row.first, row.second) for row in rows)
    for pair in pairs:
        own = [row for row in rows if (row.first, row.second) == pair]
        first, second = (letters[name] for name in pair)
        lines = [
            (scope_name(row) if not place else "", f"{row.n}" if not place else "", COLUMNS[metric], *cells_of(found))
            for row in own
            for place, (metric, found) in enumerate(row.metrics.items())
        ]
        print_table(f"{first} against {second}", [name.format(first, second) for name in HEADER], lines, figures_from=3)
    for row in rows:
        if row.by == "all":
            typer.echo(verdict_sentence(row, letters[row.first], letters[row.second]))


def letter_of(place: int) -> str:
    """Return A, B ... Z, then run 27, run 28 ..."""
    return ascii_uppercase[place] if place < len(ascii_uppercase) else f"run {place + 1}"


def scope_name(row: PairRow) -> str:
    """Return words for the questions of a row."""
    if row.by == "all":
        return "all"
    unit = row.by[:-1] if row.bucket == "1" else row.by
    return f"{row.bucket} {unit}" if row.bucket != "unknown" else "hops unknown"


def cells_of(found: Difference) -> tuple[str, ...]:
    """Return the cells of one metric, from the figures of both runs on."""
    p = f"< {SMALLEST_P}" if found.p_holm < SMALLEST_P else f"{found.p_holm:.3f}"
    interval = f"[{found.low:+.2f}, {found.high:+.2f}]"
    return f"{found.first:.2f}", f"{found.second:.2f}", f"{found.difference:+.2f}", interval, p, found.verdict


def verdict_sentence(row: PairRow, first: str, second: str) -> str:
    """Return what the comparison of two runs comes to: ``A against B: Hits@1 better, F1 tie, EM tie``."""
    from kgqa_core.evaluation.report import COLUMNS

    found = ", ".join(f"{COLUMNS[metric]} {one.verdict}" for metric, one in row.metrics.items())
    return f"{first} against {second}: {found}"
