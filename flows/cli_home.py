"""``kgqa status``, ``gc``, ``verify``: where a run or a home stands, what nothing needs any more, what is damaged."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli_output import print_json, print_table, say
from flows.cli_session import Json, Settings, as_given, open_run, read_run, with_conf, working
from kgqa_core.artifacts import MANIFEST, Artifact, inspect_artifact
from kgqa_core.errors import ArtifactError, counted

MB, GB = 1e6, 1e9
RELEASES = "releases/"  # in a home; how the names of their artifacts begin


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
    from tasks.outbox import left_names

    pipeline, accepted, lost = open_run(conf, settings), dict[str, Artifact](), ""
    with working("looking"):
        stages = pipeline.status()
        try:
            accepted = pipeline.accepted_instead()
        except ArtifactError as problem:
            lost = with_conf(str(problem), conf, settings)
        runs = left_names(pipeline.home)
    if as_json:
        instead = {key: artifact.fingerprint for key, artifact in accepted.items()}
        found = {"run": pipeline.config.name, "stages": [asdict(stage) for stage in stages], "runs": runs}
        print_json({**found, "accepted_instead": instead, "accepted_lost": lost})
    else:
        rows = [
            (stage.key, stage.state, stage.why, "/".join(stage.folder.parts[-2:]) if stage.folder else "")
            for stage in stages
        ]
        title = f"Stages; artifacts in {pipeline.home / 'artifacts'}"
        print_table(title, ("stage", "state", "why", "artifact"), rows)
        for what, names in runs.items():
            then = "The next run tells Prefect and MLflow about them."
            if what == "refused":
                then = f"MLflow takes none of them; {pipeline.home / 'outbox'} has their notes."
            if names:
                say(f"Runs {what} ({len(names)}): {', '.join(names)}. {then}")
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


def gc(
    conf: Annotated[Path | None, typer.Argument(metavar="CONF", help="Only what this run configuration made.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="What all runs made, and what killed ones left.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it; else it is only shown.")] = False,
    last: Annotated[
        int, typer.Option(metavar="N", min=1, help="Keep the last N runs and builds of each configuration.")
    ] = 3,
    days: Annotated[float, typer.Option(metavar="DAYS", min=0, help="Keep what is younger.")] = 1.0,
    pin: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Keep this for good: a fingerprint, a release (or how it begins), a configuration's name.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what no run, release or accepted build needs any more, and with --delete delete it.

    Kept are the last runs and accepted builds, the champion, the one before it, the release that was refused last, what
    MLflow's aliases name, what is pinned, and whatever any of these was made of. Calls of language models, encodings,
    and what MLflow and Prefect have are never touched. Nothing is deleted while a run is at work.

    \b
    Examples:
      kgqa gc --all
      kgqa gc conf/nightly.yaml --last 7 --delete
      kgqa gc --pin nightly
    """
    from kgqa_core.config_file import home_here
    from tasks import garbage

    config = read_run(conf) if conf else None
    home = config.runtime.home if config else home_here()
    if pin is not None:
        garbage.pin(home, pin)
    elif (conf is None) != everything:
        raise typer.BadParameter("give a run configuration, or --all")
    if pin is not None and conf is None and not everything:
        pins = garbage.read_pins(home)
        if as_json:
            print_json({"home": str(home), "pinned": pins})
        else:
            typer.echo(f"pinned, in {home / garbage.PINS}: {', '.join(pins)}")
        return
    with working("looking"):
        found = garbage.find_garbage(home, last=last, days=days, run=config.name if config else None)
        freed = garbage.collect(home, found) if delete else 0
    counts, sizes = Counter[str](), Counter[str]()
    for one in found:
        counts[one.kind] += 1
        sizes[one.kind] += one.bytes
    if as_json:
        paths = [{"path": str(one.path), "kind": one.kind, "bytes": one.bytes} for one in found]
        print_json({"home": str(home), "garbage": paths, "deleted": delete, "freed_bytes": freed})
        return
    rows = [(kind, f"{counts[kind]:,}", f"{sizes[kind] / MB:,.1f}") for kind in sorted(counts)]
    total = sum(sizes.values()) / MB
    print_table(f"Nothing needs this in {home}", ("what", "number", "MB"), rows, figures_from=1)
    if rows:
        typer.echo(f"Deleted: {total:,.1f} MB." if delete else f"{total:,.1f} MB. To delete it: --delete")


def verify(
    conf: Annotated[
        Path | None, typer.Argument(metavar="CONF", help="Only what this run configuration used last.")
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove damaged artifacts: the next run makes them again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read every byte of the artifacts of this home, and compare it with the hashes taken when it was written.

    Without CONF also what releases hold and the artifacts do not: damaged files of theirs stay.

    \b
    Examples:
      kgqa verify
      kgqa verify conf/demo.yaml --remove
    """
    from kgqa_core.config_file import home_here
    from kgqa_core.run.pipeline import PROGRESS

    pipeline = None if conf is None else open_run(conf, None)
    root = pipeline.store.root if pipeline else home_here() / "artifacts"
    used = pipeline.used() if pipeline else None
    folders = sorted(path.parent for path in root.glob(f"*/*/{MANIFEST}") if not path.parent.suffix)
    folders = [folder for folder in folders if used is None or folder.name in used]
    if used is None:  # most files of releases are links to these
        kept = root.parent.glob(f"{RELEASES}[!.]*/[!.]*/artifacts/*/*/{MANIFEST}")
        folders += [one.parent for one in sorted(kept) if not _is_one_file(one, root / Path(*one.parts[-3:]))]
    damaged: dict[str, list[str]] = {}
    num_files = num_bytes = 0
    with working("verifying"):
        for number, folder in enumerate(folders, 1):
            artifact, faults = inspect_artifact(folder, whole=True)
            if artifact:
                num_files += len(artifact.files)
                num_bytes += sum(entry.bytes for entry in artifact.files)
            if faults:
                is_stored = folder.is_relative_to(root)
                damaged[str(folder.relative_to(root if is_stored else root.parent))] = faults
                if remove and is_stored:
                    shutil.rmtree(folder)
            if told := PROGRESS.get():
                told("verifying artifacts", number, len(folders))
    lost = {name: faults for name, faults in damaged.items() if not remove or name.startswith(RELEASES)}
    if as_json:
        print_json({"artifacts": len(folders), "files": num_files, "bytes": num_bytes, "damaged": damaged})
    else:
        read = f"{counted(len(folders), 'artifact')} of {root.parent}, {counted(num_files, 'file')}, "
        read += f"{num_bytes / MB:,.1f} MB read"
        removed = f", {len(damaged) - len(lost)} removed" if remove and damaged else ""
        typer.echo(f"{read}: {len(damaged) or 'none'} damaged{removed}")
    if lost:
        first, files = next(iter(lost.items()))
        more = f", and {counted(len(lost) - 1, 'more artifact')} (--json lists them)" if len(lost) > 1 else ""
        again = "Removed (--remove), they are made again by the next run, unless their source has changed since"
        if first.startswith(RELEASES):
            again = (
                "The next run puts back what it makes again. Else take another release: kgqa promote CONF --to RELEASE"
            )
        raise ArtifactError(f"damaged: {first}: {', '.join(files[:3])}{more}. {again}")


def _is_one_file(first: Path, second: Path) -> bool:
    return second.exists() and first.samefile(second)
