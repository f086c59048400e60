"""``kgqa promote``, ``rollback``, ``history`` and ``serve``: which release answers, who changed that, and answering."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from flows.cli_output import print_json, print_table
from flows.cli_session import Conf, Json, Settings, read_run, working

To = Annotated[str | None, typer.Option("--to", metavar="RELEASE", help="Which one: its id, or how that begins.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, for kgqa history.")]


def promote(conf: Conf, to: To = None, why: Why = "by hand", settings: Settings = None, as_json: Json = False) -> None:
    """Make a release the champion by hand, whatever the gate said of it: the last challenger, or --to another.

    What is champion already stays so, however often it is promoted.

    \b
    Examples:
      kgqa promote conf/nightly.yaml --why "the drop on 3 hops is wanted"
      kgqa promote conf/nightly.yaml --to 41bc4e40
    """
    move_and_print(conf, settings, to, why, as_json, back=False)


def rollback(conf: Conf, to: To = None, why: Why = "by hand", settings: Settings = None, as_json: Json = False) -> None:
    """Return to the champion before this one, or --to another release; each release holds all that it needs.

    \b
    Examples:
      kgqa rollback conf/nightly.yaml --why "answers without paths since Tuesday"
      kgqa rollback conf/nightly.yaml --to 41bc4e40
    """
    move_and_print(conf, settings, to, why, as_json, back=True)


def history(conf: Conf, settings: Settings = None, as_json: Json = False) -> None:
    """Show every decision about the champion: when, why, from which release, to which; and all releases.

    \b
    Example:
      kgqa history conf/nightly.yaml
    """
    with working("reading"):
        from tasks.release import champion_of, releases_of

        releases = releases_of(read_run(conf, settings))
        moves = releases.moves()
        champion, ids = champion_of(moves), releases.ids()
    if as_json:
        print_json({"champion": champion, "moves": [asdict(move) for move in moves], "releases": ids})
        return
    rows = [(move.when, move.kind, move.from_release or "–", move.to_release, move.why) for move in moves]
    title = f"Champion of {releases.model}: {champion or 'none'}"
    if rows:
        print_table(title, ("when", "what", "from", "to", "why"), rows)
    else:
        typer.echo(title)
    typer.echo(f"Releases, the oldest first: {', '.join(ids) or 'none'}")


def move_and_print(conf: Conf, settings: Settings, to: str | None, why: str, as_json: bool, *, back: bool) -> None:
    """Move the champion and say what came of it."""
    config = read_run(conf, settings)
    with working("rolling back" if back else "promoting"):
        from flows.gated import move_champion
        from tasks.release import releases_of

        move = move_champion(config, to, why, back=back)
        champion = releases_of(config).champion()
    assert champion is not None
    if as_json:
        print_json({"champion": champion.id, "moved": move is not None, "move": move and asdict(move)})
    elif move is None:
        typer.echo(f"{champion.id} is the champion already: nothing moved")
    else:
        typer.echo(f"{move.kind}: {move.from_release or 'none'} -> {champion.id} ({why})")


def serve(
    conf: Conf,
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="PORT", envvar="KGQA_SERVE_PORT")] = 8000,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where it listens; it has no password.")] = "127.0.0.1",
    settings: Settings = None,
) -> None:
    """Answer questions over HTTP by the champion, whoever that is; a new one takes over without a request lost.

    \b
    Example:
      kgqa serve conf/nightly.yaml --port 8000
    """
    from tasks.release import releases_of
    from tasks.services import require_free

    config = read_run(conf, settings)
    require_free(host, port, "--port")
    with working("serving"):
        from tasks.serving import serve as serve_champion

        serve_champion(releases_of(config), host=host, port=port)
