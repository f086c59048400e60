"""The one Prefect server that a run has: started with it, ended with it, none left behind.

Importing this module does not import Prefect.
"""

from __future__ import annotations

import http.client
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from kgqa_core.artifacts import DISK_CURE, exclusive_lock
from kgqa_core.errors import ArtifactError, KgqaError
from tasks.leftovers import end_leftovers, forget_process, past_proxies, running_server, write_process_record
from tasks.mlflow_store import absolute_places

START_SECONDS = 300.0  # a fresh database takes about 8 CPU seconds, on a busy machine far longer on the clock
STOP_SECONDS = 10.0
DRAIN_SECONDS = 30.0  # moments, but on a busy machine
POLL_SECONDS = 0.05
LOG_LINES_SHOWN = 15
DISK_BYTES = 8 * 2**20  # a fresh database takes 5 MB: with less the disk is full
RETRIES = "PREFECT_CLIENT_MAX_RETRIES"  # of each request
# What Prefect says of a server that cannot be used.
NO_SERVER = re.compile("Failed to reach API|Found incompatible versions|Client error '401|Server error '5")

# For the flow's process. Console output below WARNING would bury the CLI's own; Prefect's UI still gets it.
CLIENT_SETTINGS = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    "DO_NOT_TRACK": "1",
}

# For the server's process. Off is what a server that lives for one run has no use for: analytics, the block catalogue
# (3 CPU seconds on a fresh database), automations, and the event table, whose writes lock out a second server on the
# same file. Task runs are still recorded: that is another service.
SERVER_SETTINGS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    "PREFECT_SERVER_UI_ENABLED": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PYTHONSAFEPATH": "1",  # a tasks.py in the current folder must not win over an installed package
}

# A user's own settings for another server, which would send this run's calls there or be sent to ours.
FOREIGN_SETTINGS = ("PREFECT_PROFILE", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING")


@contextmanager
def prefect_server(home: Path, *, timeout: float = START_SECONDS) -> Iterator[str]:
    """Give this process a Prefect server for as long as the context lasts, and yield the URL of its API.

    Where the user set ``PREFECT_API_URL``, that is the server; else the one that ``kgqa up`` runs. Otherwise one is
    started on a free port, with its database in ``home/prefect``, and ended with the context: also on Ctrl-C and
    SIGTERM, and on kill -9 within a second. Servers of earlier runs that are still there are ended first. With any
    server SIGTERM unwinds the context, so that a run which is stopped says so.

    Meanwhile the current folder is ``home/prefect``: Prefect reads its settings from there whenever it likes, and some
    of them run code (``prefect.toml``, ``pyproject.toml`` and ``.env`` of somebody else's folder must not).

    Raises ``KgqaError`` where the server is not healthy within ``timeout`` seconds, showing the end of its log, and
    where a flow cannot use the server.
    """
    home = home.resolve()  # the server runs in another folder
    try:
        for folder in (home / "run", home / "prefect"):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ArtifactError(
            f"Cannot write to the home folder {str(home)!r}: {problem}. Set KGQA_HOME to one."
        ) from problem
    quiet = {name: os.environ.get(name, value) for name, value in CLIENT_SETTINGS.items()}
    quiet |= absolute_places()
    ours = None if os.environ.get("PREFECT_API_URL") else running_server(home, "prefect")
    if given := ours or os.environ.get("PREFECT_API_URL"):
        reached = {"PREFECT_API_URL": given} | (past_proxies(given) if ours else {})
        with chdir(home / "prefect"), _sigterm_unwinds(), _environment({**quiet, **reached}):
            cure = "See that it runs and that PREFECT_API_URL is its address, with /api, or unset that"
            with _named(given, f"{cure}: then a run starts a server of its own"):
                yield given
        return
    with chdir(home / "prefect"), _sigterm_unwinds(), _server_process(home, timeout) as url:
        local = {"PREFECT_API_URL": url, "PREFECT_HOME": str(home / "prefect"), **past_proxies(url)}
        local[RETRIES] = os.environ.get(RETRIES, "3")  # 14 s; Prefect's own 62 s are for a server that comes back
        with _environment({**quiet, **local, **dict.fromkeys(FOREIGN_SETTINGS)}):
            cure = (
                f"Is there disk space left in {home}? Finished stages are kept, and the same command goes on from there"
            )
            try:
                with _named(url, cure, home):
                    yield url
            finally:
                _send_what_is_queued()


@contextmanager
def _named(server: str, cure: str, home: Path | None = None) -> Iterator[None]:
    """Raise KgqaError where Prefect raises that its server cannot be used: one that is away, or whose disk is full.

    ``home`` holds the server's database, where it is ours.
    """
    try:
        yield
    except Exception as problem:
        said = str(problem).partition(" - ")[0]
        away = type(problem).__module__ == "httpx" or NO_SERVER.match(said)
        if isinstance(problem, KgqaError) or not away:
            raise
        raise unusable(
            f"the Prefect server {server} cannot be used: {said or type(problem).__name__}. ", cure, home
        ) from None


def unusable(said: str, cure: str, home: Path | None) -> KgqaError:
    """Return the error for servers that cannot be used: a full disk has an exit code of its own."""
    if home and (free := shutil.disk_usage(home).free) < DISK_BYTES:
        return ArtifactError(f"{said}{DISK_CURE.format(free=free // 2**20)}, then run again: finished stages are kept")
    return KgqaError(f"{said}{cure}")


@contextmanager
def _server_process(home: Path, timeout: float) -> Iterator[str]:
    run = home / "run"
    process, record = None, None
    try:
        # Two runs at once: the second waits here until the first's server has made or migrated the shared database.
        with exclusive_lock(run / "prefect.lock", timeout=timeout), socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))  # the server inherits it, so nobody can take the port in between
            end_leftovers(run)
            port = bound.getsockname()[1]
            log = run / f"prefect-{os.getpid()}-{port}.log"
            process = _start_server(home, bound, log)
            started = write_process_record(run, process.pid, log)
            _wait_until_healthy(process, port, log, timeout)
            record = started  # from here on its log is of no more use; the next start clears what is left before
        yield f"http://127.0.0.1:{port}/api"
    finally:
        if process is not None:
            _stop(process)
        if record is not None:
            forget_process(run, record)


def _start_server(home: Path, bound: socket.socket, log: Path) -> subprocess.Popen[bytes]:
    """Start the server's process: its own session, so that Ctrl-C in a terminal reaches the flow before the server."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    ours |= SERVER_SETTINGS | {
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home / 'prefect' / 'prefect.db'}",
    }
    program = Path(__file__).with_name("server_process.py")
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(program), str(bound.fileno()), str(os.getpid())],
            env=ours,
            cwd=home / "prefect",  # Prefect also reads settings from files in the current folder
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[bound.fileno()],
            start_new_session=True,
        )


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path, timeout: float) -> None:
    until = time.monotonic() + timeout
    while time.monotonic() < until and process.poll() is None:
        if is_healthy(f"http://127.0.0.1:{port}/api"):
            return
        time.sleep(POLL_SECONDS)
    ended = process.poll() is not None
    what = f"ended with code {process.returncode}" if ended else f"did not answer within {timeout:.0f} s"
    tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:])
    cure, home = "Is there disk space left?", log.parents[1]
    if re.search("not a database|malformed|disk image", tail):
        file = home / "prefect" / "prefect.db"
        cure = f"Prefect's database {str(file)!r} is damaged. Move it away: only the list of past runs is lost."
    said = f"The temporary Prefect server {what}. The end of its log, {str(log)!r}:\n{tail or '(empty)'}\n"
    raise unusable(said, f"{cure} A server of your own is used where PREFECT_API_URL is set.", home)


def is_healthy(address: str, timeout: float = 5.0) -> bool:
    """Say whether a server, of Prefect or MLflow, answers within ``timeout`` seconds."""
    url = urlsplit(address)  # http.client, as a proxy from the environment is not asked for a local port
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.netloc.rpartition("@")[2], timeout=timeout)
    try:
        connection.request("GET", f"{url.path}/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End ``process`` and wait for it, however impatient the user: a second Ctrl-C here ends it the hard way."""
    try:
        process.terminate()
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass  # ended below
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, through every ``finally``, unless someone else handles it."""

    def unwind(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _send_what_is_queued() -> None:
    """Send logs and events that Prefect still holds back: after the server's end they would only make it complain."""
    if "prefect.main" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (EventsWorker, APILogWorker):
        logging.getLogger(worker.__name__).setLevel(logging.ERROR)  # it warns of every item that waits its turn
        worker.drain_all(timeout=DRAIN_SECONDS)


@contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables (None: remove them) and put them back; a Prefect already imported follows."""
    before = {name: os.environ.get(name) for name in changes}
    _set_environment(changes)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "prefect.context" in sys.modules:
        from prefect.context import refresh_global_settings_context
        from prefect.logging.configuration import setup_logging

        refresh_global_settings_context()
        setup_logging()
