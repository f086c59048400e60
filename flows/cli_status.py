"""``kgqa status``: where the stages of a run stand or, without one, the whole home at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli_output import print_json, print_status, print_table, say
from flows.cli_session import Json, Settings, as_given, open_run, with_conf, working
from kgqa_core.artifacts import Artifact
from kgqa_core.errors import ArtifactError

MB, GB = 1e6, 1e9


def status(
    conf: Annotated[
        Path | None, typer.Argument(metavar="CONF", help="A run configuration; default: all of them.")
    ] = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Say which stages are done, stale or missing, and why; and which runs were killed, or wait for MLflow.

    Without CONF: services, the last runs, champions, what changed in the data, and disk space.

    \b
    Examples:
      kgqa status
      kgqa status conf/demo.yaml
    """
    if conf is None:
        show_home(as_json)
        return
    from tasks.outbox import killed, refused, waiting

    pipeline, accepted, lost = open_run(conf, settings), dict[str, Artifact](), ""
    with working("looking"):
        stages = pipeline.status()
        try:
            accepted = pipeline.accepted_instead()
        except ArtifactError as problem:
            lost = with_conf(str(problem), conf, settings)
        left = {"killed": killed(pipeline.home), "waiting": waiting(pipeline.home)}
        left["refused"] = refused(pipeline.home)
    runs = {what: [note.run.name for note in notes] for what, notes in left.items()}
    if as_json:
        instead = {key: artifact.fingerprint for key, artifact in accepted.items()}
        found = {"run": pipeline.config.name, "stages": [asdict(stage) for stage in stages], "runs": runs}
        print_json({**found, "accepted_instead": instead, "accepted_lost": lost})
    else:
        print_status(stages, pipeline.home, runs)
        for key, artifact in accepted.items():
            taken, again = "/".join(artifact.folder.parts[-2:]), as_given(conf, settings)
            say(f"{key} is not the accepted one: that is {taken} (kgqa build {again} --accept)")
        if lost:
            say(lost)


def show_home(as_json: bool) -> None:
    """Print the home at a glance."""
    from kgqa_core.config_file import home_here

    with working("looking"):
        from tasks.overview import local_time, overview

        found = overview(home_here())
    if as_json:
        print_json(found)
        return
    typer.echo(f"Home:      {found['home']}")
    states = [f"{name} {'up' if is_up else 'NOT UP'}" for name, is_up in found["services"].items()]
    typer.echo(f"Services:  {', '.join(states) or 'none: kgqa up starts them'}")
    for what, names in found["runs"].items():
        if what != "last" and names:
            typer.echo(f"Runs {what.replace('_', ' ')}: {', '.join(names)}")
    ended = [
        (run["name"], run["status"], local_time(run["ended_ms"]), f"{run['seconds']:,.0f}", run["error"])
        for run in reversed(found["runs"]["last"])
    ]
    print_table("Last runs", ("run", "ended", "when", "seconds", "error"), ended)
    print_table(
        "Champions", ("model", "champion", "since", "last decision"), [_decision(one) for one in found["champions"]]
    )
    moved = [
        (one["run"], *(_count(one[name]) for name in ("triples", "entities", "questions"))) for one in found["drift"]
    ]
    print_table("Changes of the last build", ("run", "triples", "entities", "questions"), moved)
    sizes = [f"{name} {_size(size)}" for name, size in found["disk"].items() if size >= MB / 10 and name != "free"]
    for problem in found["problems"]:
        say(f"Problem:   {problem}")
    typer.echo(f"Disk:      {', '.join(sizes) or 'less than 0.1 MB'}; free {_size(found['disk']['free'])}")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GB:,.2f} GB" if num_bytes >= GB else f"{num_bytes / MB:.1f} MB"


def _decision(one: Mapping[str, Any]) -> tuple[str, ...]:
    last = one["last"]
    to = " to" * (last is not None and last["kind"] == "rolled back")
    said = f"{last['kind']}{to} {last['release']} on {last['when']}: {last['why']}" if last else ""
    return one["model"], one["champion"] or "none", one["since"] or "", said


def _count(change: Mapping[str, int]) -> str:
    return f"{change['after']:,} (+{change['came']:,} -{change['gone']:,})"
