"""``kgqa serve``: answers over HTTP by the champion of a run configuration."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli_session import Conf, Settings, read_run, working


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
