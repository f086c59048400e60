"""``kgqa report`` and ``kgqa view``: runs side by side as pages, in a folder or served on this machine."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli_compare import find_predictions, letter_of, side_by_side_of
from flows.cli_session import Settings, open_run, working
from kgqa_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgqa_core.run.pipeline import Pipeline

Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="Evaluated runs, named as for kgqa compare: CONF, CONF@SYSTEM, or files."),
]


def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(metavar="PATH", help="Folder, or file with --single.")] = None,
    single: Annotated[bool, typer.Option("--single", help="Write one HTML file, of up to 200 questions.")] = False,
    settings: Settings = None,
) -> None:
    """Write pages that show runs side by side, and each question with answers, paths, prompts and verdicts.

    The folder opens from disk and from any file server, without a network. The same runs give the same bytes.

    \b
    Examples:
      kgqa report conf/demo.yaml --out report
      kgqa report conf/a.yaml@rog conf/b.yaml@rog --out report
      kgqa report conf/demo.yaml --single --out demo.html
    """
    out = out or Path("report.html" if single else "report")
    typer.echo(f"open {build_report(runs, out, single=single, settings=settings or ())}")


def view(
    runs: Runs,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on localhost; 0: any that is free.")] = 8700,
    settings: Settings = None,
) -> None:
    """Serve the pages of kgqa report on localhost until Ctrl-C. Those of one configuration follow its run.

    \b
    Examples:
      kgqa view conf/demo.yaml
      kgqa view conf/demo.yaml --set systems.num_questions=20
      kgqa view conf/demo.yaml@etd conf/demo.yaml@rog --port 0
    """
    from http.server import ThreadingHTTPServer

    from flows.live import LiveHandler, LivePages
    from kgqa_core.config_file import home_here
    from kgqa_core.run.stages.systems import COMPARISON

    pipeline, pages = opened(runs[0], settings) if len(runs) == 1 and "@" not in runs[0] else None, None
    is_live = pipeline is not None and COMPARISON in pipeline.specs  # another folder than that of a report
    name = hashlib.sha256("\0".join([str(Path.cwd()), *runs, *(settings or ())]).encode()).hexdigest()[:16]
    folder = home_here() / "reports" / "seen" / f"{name}{'-live' * is_live}"
    if pipeline is not None and is_live:
        folder.mkdir(parents=True, exist_ok=True)
        pages = LivePages(pipeline, folder)
        with working("writing the report"):
            pages.state()
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        build_report(runs, folder, settings=settings or ())
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(LiveHandler, folder=folder, pages=pages))
    except OSError as error:
        raise ConfigError(f"port {port} cannot be had ({error.strerror}); give another: --port 0") from None
    with server:
        typer.echo(f"open http://127.0.0.1:{server.server_address[1]}/")
        server.serve_forever()


def build_report(runs: Sequence[str], out: Path, *, single: bool = False, settings: Sequence[str] = ()) -> Path:
    """Write the report of the runs that a user named, configurations with ``settings``; return the page to open."""
    found = {run: find_predictions(run, settings) for run in runs}
    with working("writing the report"):
        from flows.report import Beside, build
        from flows.report_about import beside_of, overview_of, stored_comparison

        pipeline = next(filter(None, (opened(run, settings) for run in runs)), None)
        systems = stored_comparison(pipeline) if pipeline and len(runs) == 1 and "@" not in runs[0] else None
        if systems is None:
            from kgqa_core.evaluation.runs import read_system_run

            judged = {run: [read_system_run(path, name) for name, path in own] for run, own in found.items()}
            systems = side_by_side_of(judged)
        letters = {run: f"{letter_of(place)} " if len(found) > 1 else "" for place, run in enumerate(found)}  # of rows
        named = [(letters[run] + name, path) for run, own in found.items() for name, path in own]
        title = ", ".join(Path(run.partition("@")[0]).stem for run in dict.fromkeys(runs))
        scored = [(letters[run], path) for run, own in found.items() for _, path in own]
        beside = beside_of(pipeline, systems, scored) if pipeline else Beside(overview_of(systems, scored))
        return build(named, out, title=title, beside=beside, single=single)


def opened(run: str, settings: Sequence[str] | None) -> Pipeline | None:
    """Return the pipeline of the configuration that a run is named by; None for a file of predictions."""
    base, at, _ = run.rpartition("@")
    conf = Path(base if at and not Path(run).exists() else run)
    return open_run(conf, settings) if conf.suffix in (".yaml", ".yml") else None
