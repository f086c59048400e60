"""``kgqa compare``: finds the runs that a user names, and shows which differences between them are more than noise."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli_output import PERCENT, print_json, print_table
from flows.cli_output import print_comparison as print_systems
from flows.cli_session import Json, Settings, advising_for, as_given, open_run, working
from kgqa_core.errors import ArtifactError, ConfigError, InputError, counted, nearest_beside, shorten, with_nearest

if TYPE_CHECKING:
    from kgqa_core.evaluation.compare import Difference, PairRow
    from kgqa_core.evaluation.figures import Figures
    from kgqa_core.evaluation.runs import EvaluatedRun
    from kgqa_core.run.pipeline import Pipeline

PREDICTIONS = "predictions.parquet"
DEV = ("evaluation.split=dev",)
CHAMPION, CHALLENGER, RELEASE = "champion", "challenger", "release:"  # names of releases, behind CONF@
SMALLEST_P = 0.001  # shown as such
HEADER = ("questions", "n", "metric", "{0}", "{1}", "{0} - {1}", "95 % interval", "p", "{0} is")


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Evaluated runs: a run configuration (its first seed, or CONF@SEED; all its systems, or CONF@SYSTEM), "
            "the folder of an evaluation, or a predictions.parquet.",
        ),
    ],
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Compare runs on the same questions: is one better, or is the difference within noise?

    Paired tests of Hits@1, F1 and EM, over all questions and by hops and number of answers, with the 95 % bootstrap
    interval of each difference. More than two runs are compared pair by pair, p corrected by Holm's method. Refused
    where questions or graphs differ: for releases of before and after a change of data there are CONF@champion,
    CONF@challenger and CONF@release:ID, which answer the gate's questions of the present graph.

    Runs of systems also get a table with accuracy, cost and evidence side by side, whether their language model adds
    anything, and their answers joined with those of direct.

    \b
    Examples:
      kgqa compare conf/demo.yaml@0 conf/demo.yaml@1
      kgqa compare conf/a.yaml@rog conf/b.yaml@rog
      kgqa compare conf/demo.yaml --set systems.answered_by=\\[oracle]
      kgqa compare conf/nightly.yaml@champion conf/nightly.yaml@challenger
      kgqa compare conf/metaqa-joint.yaml old/predictions.parquet --json
    """
    found = {run: find_predictions(run, settings or ()) for run in runs}
    names = [name for run in runs for name, _ in found[run]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"give two runs or more, each once; {twice} is given twice: {', '.join(runs)}")
    with working("comparing"):
        from kgqa_core.evaluation.compare import compare_runs
        from kgqa_core.evaluation.runs import read_system_run

        named = {run: [read_system_run(path, name) for name, path in own] for run, own in found.items()}
        systems = side_by_side_of(named)
        if systems is None and len(names) < 2:
            raise ConfigError(
                f"{runs[0]} is one run and compares no systems, so there is nothing to compare it with: give two runs, "
                "such as two configurations or two seeds (CONF@0 CONF@1)"
            )
        judged = judged_of(named)
        pairs = len(judged) == len(runs)  # of many systems, pairs are no help
        rows = compare_runs([own for own, _ in judged]) if pairs else []
    if as_json:
        document = comparison_document(judged, rows)
        print_json(document if systems is None else document | {"systems": systems})
        return
    if systems is not None:
        print_systems(systems)
    if rows:
        print_comparison(judged, rows)


def confidence(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A system's run, as kgqa compare names them: CONF@SYSTEM, or a file.")
    ],
    dev: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Its answers to dev questions. Default: of CONF with evaluation.split=dev."),
    ] = None,
    risk: Annotated[float, typer.Option(min=0, max=100, help="Percent of wrong answers that may be given.")] = 10.0,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Choose on dev below which confidence a system should abstain, and show what that does on other questions.

    An answer's confidence is the mean probability of its tokens, or of the option chosen. The threshold goes into
    systems.abstain_below of a configuration.

    \b
    Examples:
      kgqa evaluate conf/demo.yaml --set evaluation.split=dev
      kgqa confidence conf/demo.yaml@rog --risk 5
      kgqa confidence test.parquet --dev dev.parquet --json
    """
    from kgqa_core.evaluation.runs import read_system_run

    given, asked = settings or (), (*(settings or ()), *DEV)
    base, _, part = ("", "", run) if Path(run).exists() else run.rpartition("@")
    with working("reading"):
        of_test = [read_system_run(path, name) for name, path in find_predictions(run, given)]
    if any(one.record is None for one in of_test):
        named = base or run if _is_configuration(Path(base or run)) else "CONF"
        with_row = as_given(f"{named}@explorer", (*given, "systems.run=[explorer]"))
        raise InputError(
            f"{run} is an explorer beside its controls, which says of no answer how sure it is; as a system it does: "
            f"kgqa evaluate {as_given(named, given)} --systems explorer, then kgqa confidence {with_row}"
        )
    if not (dev or _is_configuration(Path(base or run))):
        raise ConfigError(f"{run} does not say where its answers to dev questions are: give --dev RUN")
    from kgqa_core.config_systems import SYSTEMS

    try:
        of_dev = find_predictions(dev, given) if dev else _evaluations(Path(base or run), part if base else None, asked)
    except ArtifactError as problem:
        if dev:
            raise
        name = part.partition("-")[0]  # the other systems need not answer dev questions
        only = ["--systems", name] if name in SYSTEMS else []
        command = shlex.join(["kgqa", "evaluate", base or run, *only, *(f"--set={one}" for one in asked)])
        raise ArtifactError(f"its answers to dev questions are not made yet: {command}") from problem
    with working("reading"):
        from flows.trust import trust_document

        document = trust_document([read_system_run(path, name) for name, path in of_dev], of_test, risk=risk)
    if as_json:
        print_json(document)
        return
    rows = [(f"{one['threshold']:.3f}", f"{one['coverage']:.1f}", f"{one['risk']:.1f}") for one in document["curve"]]
    title = f"{counted(document['num_questions'], 'question')}, {PERCENT}"
    print_table(title, ("confidence, at least", "answered", "wrong of these"), rows, figures_from=0)
    held, whole, fit = document["test"], document["without"], document["calibration"]
    said = (  # the threshold as it is: rounded, it would keep back others
        f"below {document['threshold']} (chosen on dev for a risk of {risk:g}) it should abstain: "
        f"{held['coverage']:.1f} answered, {held['risk']:.1f} of these wrong; else {whole['coverage']:.1f} and "
        f"{whole['risk']:.1f}"
    )
    if document["threshold"] is None:
        least = document["dev"]["least_risk"]
        said = f"no threshold has a risk of at most {risk:g} on dev, {least:.1f} at least: ask for a higher --risk"
    typer.echo(f"{said}. Calibration error {fit['error']:.1f}, fitted on dev {fit['error_fitted']:.1f}")


def side_by_side_of(named: Mapping[str, Sequence[EvaluatedRun]]) -> dict[str, Any] | None:
    """Return the comparison of systems as a document, from the runs of each of the user's words; None without systems.

    Where there are several words, rows have letters: runs of two configurations are never seeds of one row.
    """
    from kgqa_core.evaluation.compare import side_by_side
    from kgqa_core.evaluation.runs import group_runs
    from kgqa_core.evaluation.tables import side_by_side_document

    if not any(run.about for runs in named.values() for run in runs):
        return None
    groups: dict[str, list[EvaluatedRun]] = {}
    for place, runs in enumerate(named.values()):
        letter = f"{letter_of(place)} " if len(named) > 1 else ""
        groups |= {f"{letter}{name}": own for name, own in group_runs(runs).items()}
    return side_by_side_document(side_by_side(groups))


def judged_of(named: Mapping[str, Sequence[EvaluatedRun]]) -> list[tuple[EvaluatedRun, Figures]]:
    """Return the runs that are compared, with their figures; the mean of its seeds where each word names one row."""
    from kgqa_core.evaluation.figures import make_figures
    from kgqa_core.evaluation.runs import group_runs, mean_run

    if len(named) < 2 or any(len(group_runs(own)) > 1 for own in named.values()):
        return [(run, make_figures(run.scores)) for own in named.values() for run in own]
    judged: list[tuple[EvaluatedRun, Figures]] = []
    for word, own in named.items():
        each, mean = [make_figures(run.scores) for run in own], own[0]
        if len(own) > 1 and mean.about:
            source = replace(mean.source, system=f"{mean.about.row}, mean of {len(own)} seeds")
            mean = replace(mean_run(word, own), source=source)
        judged.append((mean, {name: sum(one[name] for one in each) / len(each) for name in each[0]}))
    return judged


def comparison_document(judged: Sequence[tuple[EvaluatedRun, Figures]], rows: Sequence[PairRow]) -> dict[str, Any]:
    """Return the comparison as one document."""
    from kgqa_core.evaluation.compare import ALPHA
    from kgqa_core.evaluation.metrics import CONFIDENCE

    return {
        "n": len(judged[0][0].asked),
        "graph": judged[0][0].source.graph,
        "confidence": CONFIDENCE,
        "alpha": ALPHA,
        "runs": [
            dict(run=run.name, system=run.source.system, predictions=str(run.path), figures=figures)
            for run, figures in judged
        ],
        "comparisons": [asdict(row) for row in rows],
    }


def print_comparison(judged: Sequence[tuple[EvaluatedRun, Figures]], rows: Sequence[PairRow]) -> None:
    """Print the runs with their figures, then a table per pair, then what it comes to."""
    from flows.summary import COLUMNS
    from kgqa_core.evaluation.tables import show_figure

    letters = {run.name: letter_of(place) for place, (run, _) in enumerate(judged)}
    shown = []
    for run, figures in judged:
        cells = (show_figure(figures, metric) for metric in ("hits1", "f1", "em"))
        shown.append((letters[run.name], run.name, run.source.system, *cells))
    title = f"{counted(len(judged[0][0].asked), 'question')}, {PERCENT}, [95 % interval]"
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
    for row in rows:  # what it comes to: A against B: Hits@1 better, F1 tie, EM tie
        if row.by == "all":
            verdicts = ", ".join(f"{COLUMNS[metric]} {one.verdict}" for metric, one in row.metrics.items())
            typer.echo(f"{letters[row.first]} against {letters[row.second]}: {verdicts}")


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
    from kgqa_core.evaluation.tables import UNKNOWN

    p = f"< {SMALLEST_P}" if found.p_holm < SMALLEST_P else f"{found.p_holm:.3f}"
    interval = f"[{found.low:+.2f}, {found.high:+.2f}]" if found.low != found.high else UNKNOWN  # as of a figure
    return f"{found.first:.2f}", f"{found.second:.2f}", f"{found.difference:+.2f}", interval, p, found.verdict


# ------ The runs that a user names.


def find_predictions(run: str, settings: Sequence[str] = ()) -> list[tuple[str, Path]]:
    """Return what to call the runs that a user named, and their predictions tables.

    One run is named by the folder of an evaluation, by a predictions table, or as CONF@SEED (of the explorer). A
    configuration that compares systems stands for all of them, CONF@SYSTEM for the seeds of one; any other for its
    explorer of the first seed. Raises ConfigError, ArtifactError or InputError where there is no such run.
    """
    path = Path(run)
    if path.is_dir():
        return [(run, path / PREDICTIONS)]
    if path.is_file() and not _is_configuration(path):
        return [(run, path)]
    base, at, part = run.rpartition("@")
    if at and not path.exists() and _is_configuration(Path(base)):
        with advising_for(base, settings):
            return _evaluations(Path(base), part, settings)
    if _is_configuration(path):
        with advising_for(path, settings):
            return _evaluations(path, None, settings)
    raise InputError(
        f"there is no run {shorten(run)}{nearest_beside(path)}. A run is a configuration (conf/demo.yaml, "
        "conf/demo.yaml@1 or conf/demo.yaml@etd), the folder of an evaluation, or a predictions.parquet"
    )


def _is_configuration(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml")


def _evaluations(conf: Path, part: str | None, settings: Sequence[str] = ()) -> list[tuple[str, Path]]:
    """Return the names and the predictions of a configuration's runs, or of the ``part`` of them that is named."""
    pipeline = open_run(conf, settings)
    # A user writes a stage's key without its kind, with or without the seed: etd-oracle-seed0, etd-oracle.
    systems = [key.removeprefix("system-") for key, spec in pipeline.specs.items() if spec.stage == "system"]
    if chosen := [name for name in systems if part in (None, name, name.rpartition("-seed")[0])]:
        missing = [name for name in chosen if part is None and not pipeline.find(f"system-{name}")]
        rows, lost = ({name.rpartition("-seed")[0]: None for name in own} for own in (chosen, missing))
        if lost and (done := [f"{conf}@{row}" for row in rows if row not in lost]):
            raise ArtifactError(  # kgqa evaluate --systems leaves nothing in the run file
                f"of the systems of {conf}, {', '.join(lost)} have not answered. "
                f"kgqa evaluate {as_given(conf, settings)} asks them; or name those that have: {' '.join(done)}"
            )
        return [(f"{conf}@{name}", pipeline.artifact(f"system-{name}").folder / PREDICTIONS) for name in chosen]
    if part in (CHAMPION, CHALLENGER) or (part and part.startswith(RELEASE)):
        return [(f"{conf}@{part}", release_answers(pipeline, part))]
    seeds = [str(number) for number in pipeline.config.exploration.seeds]
    seed = seeds[0] if part is None else part
    if seed not in seeds:
        known = list(dict.fromkeys(name.rpartition("-seed")[0] for name in systems))
        more = f", and its systems are {with_nearest(seed, known)}" if known else ""
        if not known and not seed.isdigit():  # kgqa evaluate --systems leaves nothing in the run file
            more = f", and it compares no systems: name them again, as --set systems.run=[{seed}], with every --set "
            more += "that kgqa evaluate printed"
        raise ConfigError(f"{conf} has no seed {shorten(seed)}; its explorer.seeds are {', '.join(seeds)}{more}")
    return [(f"{conf}@{seed}", pipeline.artifact(f"evaluation-seed{seed}").folder / PREDICTIONS)]


def release_answers(pipeline: Pipeline, name: str) -> Path:
    """Return what a release answers to the gate's questions of the run's present graph, asked now if it never was."""
    from tasks.gate import answer_gate
    from tasks.release import champion_of, releases_of

    releases = releases_of(pipeline.config)
    if name == CHAMPION:
        wanted = champion_of(releases.moves())
        if wanted is None:
            raise InputError(f"{releases.model} has no champion; kgqa history says more")
    else:
        wanted = releases.last_challenger() if name == CHALLENGER else name.removeprefix(RELEASE)
    with working(f"asking the {name}"):
        return answer_gate(pipeline, releases.read(wanted)).folder / PREDICTIONS
