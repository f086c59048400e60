"""``kgqa up`` and ``kgqa down``: the servers and workers that scheduled runs need, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from flows.cli_output import print_json, print_table
from flows.cli_session import Json, working
from kgqa_core.errors import ConfigError

if TYPE_CHECKING:
    from tasks.services import Services

PROJECT = Path(__file__).resolve().parents[1]
FILE = "prefect.yaml"
NOT_LOCAL = "Whoever reaches this machine can use these servers: they have no password. Put one in front of them."


def up(
    status: Annotated[
        bool, typer.Option("--status", help="Only say what runs; exit code 1 where not all does.")
    ] = False,
    prefect_port: Annotated[
        int | None, typer.Option(min=1, max=65535, metavar="PORT", envvar="KGQA_PREFECT_PORT", show_default="4200")
    ] = None,
    mlflow_port: Annotated[
        int | None, typer.Option(min=1, max=65535, metavar="PORT", envvar="KGQA_MLFLOW_PORT", show_default="5000")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", envvar="KGQA_HOST", help="Where the servers listen.", show_default="127.0.0.1"),
    ] = None,
    worker: Annotated[
        list[str] | None,
        typer.Option(metavar="POOL", help="A work pool that gets a worker here; repeatable. Default: kgqa-cpu."),
    ] = None,
    deployments: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What is deployed. Default: prefect.yaml of this folder.")
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, and end everything with this command: for containers.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start a Prefect server, an MLflow server and a worker, and deploy what prefect.yaml names.

    They go on until `kgqa down`, and what ends by itself is started again. Databases are files in KGQA_HOME, or what
    PREFECT_API_DATABASE_CONNECTION_URL and MLFLOW_BACKEND_STORE_URI name, such as PostgreSQL. A server of your own, in
    PREFECT_API_URL or MLFLOW_TRACKING_URI, is used and not started.

    \b
    Examples:
      kgqa up
      kgqa up --status
      kgqa up --prefect-port 4300 --mlflow-port 5300 --worker kgqa-cpu --worker kgqa-gpu
    """
    from kgqa_core.config_file import home_here
    from tasks import services as of

    home, fresh = home_here(), False
    if status:
        services = of.read_services(home)
    else:
        wanted: dict[str, Any] = {
            "host": host or "127.0.0.1",
            "prefect_port": prefect_port or 4200,
            "mlflow_port": mlflow_port or 5000,
            "deployments": deployments_file(deployments),
            "pools": worker or ["kgqa-cpu"],
        }
        with working("starting"):
            if foreground:
                of.run_here(home, **wanted)
                return
            services, fresh = of.up(home, **wanted)
        if not fresh:
            require_as_asked(services, worker, deployments, {"prefect": prefect_port, "mlflow": mlflow_port}, host)
    if not print_services(services, fresh=fresh, as_json=as_json) and status:
        raise typer.Exit(1)


def down(as_json: Json = False) -> None:
    """End what `kgqa up` started, with what that started: workers and their runs first, then the servers.

    \b
    Example:
      kgqa down
    """
    from kgqa_core.config_file import home_here
    from tasks import services as of

    with working("ending"):
        ended = of.down(home_here())
    if as_json:
        print_json({"ended": ended})
    else:
        typer.echo(f"ended: {', '.join(ended)}" if ended else "nothing was running")


def deployments_file(given: Path | None) -> Path:
    """Return the file of deployments: the one given, of this folder, or that comes with kgqa; ConfigError without."""
    tried = [given] if given else [Path.cwd() / FILE, PROJECT / FILE]
    if found := next((file for file in tried if file.is_file()), None):
        return found
    raise ConfigError(f"there is no file {tried[0]}; name one by --deployments")


def require_as_asked(
    services: Services,
    pools: list[str] | None,
    deployments: Path | None,
    ports: dict[str, int | None],
    host: str | None,
) -> None:
    """Raise ConfigError where what runs already has not the workers, deployments, ports or address asked for."""
    lacking = [f"a worker of {pool}" for pool in pools or () if pool not in services.pools]
    if deployments is not None and str(deployments.resolve()) != services.deployments:
        lacking.append(f"the deployments of {deployments}")
    for name, port in ports.items():
        if port is not None and name in services.own and urlsplit(getattr(services, name)).port != port:
            lacking.append(f"{name} at port {port}")
    if host and services.own and host != services.host:
        lacking.append(f"servers at {host}")
    if lacking:
        raise ConfigError(f"it runs already, without {' and '.join(lacking)}: `kgqa down`, then this again")


def print_services(services: Services | None, *, fresh: bool, as_json: bool) -> bool:
    """Print what runs, and say whether everything does."""
    from tasks.leftovers import LOOPBACK
    from tasks.mlflow_store import mask
    from tasks.services import MLFLOW, PREFECT, healthy, is_alive

    if services is None:
        if as_json:
            print_json({"up": False, "started_now": fresh, "services": {}})
        else:
            typer.echo("Nothing runs: kgqa up starts it.")
        return False
    states = {name: healthy(services, name) for name in dict.fromkeys((PREFECT, MLFLOW, *services.names))}
    everything = all(states.values())
    addresses = {PREFECT: mask(services.prefect.removesuffix("/api")), MLFLOW: mask(services.mlflow)}
    if as_json:
        found = {name: {"up": up, "address": addresses.get(name)} for name, up in states.items()}
        print_json({"up": everything, "started_now": fresh, "services": found})
        return everything
    rows = []
    for name, is_up in states.items():
        process = services.processes.get(name)
        where = addresses.get(name, ""), str(services.log(name)) if process else ""
        rows.append(
            (
                name,
                "up" if is_up else "not answering" if is_alive(services, name) else "down",
                str(process.pid) if process else "" if name in services.names else "not ours",
                *where,
            )
        )
    title = "Started" if fresh else "Runs already" if everything else "Not everything runs"
    print_table(title, ("service", "state", "process", "address", "log"), rows)
    if services.own:
        typer.echo(f"Our servers listen on {services.host}. {'' if services.host in LOOPBACK else NOT_LOCAL}".rstrip())
    if fresh:
        typer.echo(
            "Run one now:  prefect deployment run retrain/nightly, or another of prefect deployment ls   "
            f"(with PREFECT_API_URL={mask(services.prefect)})"
        )
        typer.echo("End it all:   kgqa down")
    return everything
