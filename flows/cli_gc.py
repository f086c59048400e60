"""``kgqa gc``: what nothing needs any more, and deleting it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from flows.cli_output import print_json, print_table
from flows.cli_session import Json, read_run, working

MB = 1e6


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
