"""What ``kgqa up`` starts and ``kgqa down`` ends: servers of Prefect and MLflow, workers, and the keeper over them.

``KGQA_HOME/run/services.json`` names every process by its id and its start time. All of them, and whatever they start,
carry the token of that file in their environment: so what is ended is exactly what was started.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import unquote, urlsplit

from kgqa_core.artifacts import exclusive_lock, hash_json, written_whole
from kgqa_core.errors import ConfigError
from tasks.leftovers import end_process, past_proxies, process_started, services_file
from tasks.logs import worker_settings
from tasks.mlflow_store import DATABASES, absolute_places, ensure_store, is_server, store_folder
from tasks.server import LOG_LINES_SHOWN, is_healthy, unusable

TOKEN = "KGQA_SERVICES"  # the environment variable by which every process of ours is known  # noqa: S105
PREFECT, MLFLOW, KEEPER = "prefect", "mlflow", "keeper"
START_SECONDS = 300.0  # two fresh databases and four processes take 25 s where nothing else runs
GRACE_SECONDS = 30.0  # between asking to end and ending; a flow that is stopped tells MLflow first
POLL_SECONDS = 0.1
HEARD_SECONDS = 90.0  # after which Prefect takes a worker that tells nothing for gone
LOCK_SECONDS = 10.0
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # what ends all that runs in the foreground


@dataclass(frozen=True, slots=True)
class Started:
    """One process of ours."""

    pid: int
    started: str  # as process_started(pid) gave it

    @property
    def alive(self) -> bool:
        """Is it that process, and running?"""
        return process_started(self.pid) == self.started


@dataclass(frozen=True, slots=True)
class Services:
    """What is to run, and what does."""

    home: str
    token: str
    host: str  # that the servers listen on
    prefect: str  # address of its API
    mlflow: str
    own: tuple[str, ...]  # which of the two servers are ours; the others the user named
    deployments: str  # the file that names them
    pools: tuple[str, ...]  # work pools with a worker here
    ready: bool = False
    processes: Mapping[str, Started] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Everything that has to run, the keeper last."""
        return [*self.own, *(f"worker-{pool}" for pool in self.pools), KEEPER]

    def log(self, name: str) -> Path:
        """Return the log file of a service."""
        return Path(self.home) / "logs" / f"{name}.log"

    def write(self) -> None:
        """Write the file of the services, for its owner alone: an address may hold a password."""
        services_file(Path(self.home)).parent.mkdir(parents=True, exist_ok=True)
        with written_whole(services_file(Path(self.home))) as partial:
            partial.touch(mode=0o600)
            partial.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def read_services(home: Path) -> Services | None:
    """Return what was started here; None where nothing was, or the file is not to be read."""
    try:
        found = json.loads(services_file(home).read_text(encoding="utf-8"))
        processes = {name: Started(**one) for name, one in found.pop("processes").items()}
        lists = {name: tuple(found.pop(name)) for name in ("own", "pools")}
        return Services(**found, **lists, processes=processes)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def plan_services(
    home: Path, *, host: str, prefect_port: int, mlflow_port: int, deployments: Path, pools: Sequence[str]
) -> Services:
    """Return what is to be started; ConfigError where a port is in use, or what the keeper reads is no setting.

    Servers that the user names are not ours.
    """
    from tasks.poller import poll_seconds

    poll_seconds()
    variables = {PREFECT: "PREFECT_API_URL", MLFLOW: "MLFLOW_TRACKING_URI"}
    given = {name: os.environ.get(variable, "").rstrip("/") for name, variable in variables.items()}
    own = tuple(name for name, address in given.items() if not is_server(address))
    ports = {PREFECT: prefect_port, MLFLOW: mlflow_port}
    for name in own:
        require_free(host, ports[name], f"--{name}-port")
    if MLFLOW in own and not given[MLFLOW] and DATABASES[2] not in os.environ:
        ensure_store(home)
    reached = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host  # noqa: S104 - compared, not bound
    reached = f"[{reached}]" if ":" in reached else reached  # IPv6
    urls = {PREFECT: f"http://{reached}:{prefect_port}/api", MLFLOW: f"http://{reached}:{mlflow_port}"}
    return Services(
        home=str(home),
        token=secrets.token_hex(16),
        host=host,
        prefect=urls[PREFECT] if PREFECT in own else given[PREFECT],
        mlflow=urls[MLFLOW] if MLFLOW in own else given[MLFLOW],
        own=own,
        deployments=str(deployments.resolve()),
        pools=tuple(dict.fromkeys(pools)),
    )


def require_free(host: str, port: int, option: str) -> None:
    """Raise ConfigError where somebody listens on a port, or it cannot be had."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(address[0]) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address[4])
    except OSError as problem:
        raise ConfigError(
            f"port {port} of {host} cannot be had: {problem.strerror}. Choose another: {option}"
        ) from None


# ------ The processes.


def command_of(services: Services, name: str) -> tuple[list[str], dict[str, str]]:
    """Return the command of a service and its environment; passwords of databases are in the latter alone."""
    home = Path(services.home)
    environment = {key: value for key, value in os.environ.items() if key != "PREFECT_PROFILE"}
    environment |= absolute_places()
    environment |= {TOKEN: services.token, "KGQA_HOME": services.home, "PYTHONSAFEPATH": "1", "DO_NOT_TRACK": "1"}
    environment.setdefault("PREFECT_HOME", str(home / "prefect"))
    programs = Path(sys.executable).parent
    where = {} if name not in services.own else urlsplit(getattr(services, name))
    listens = ["--host", services.host, "--port", str(where.port)] if where else []
    if name == PREFECT:
        environment.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
        if not environment.keys() & {*DATABASES[:2]}:
            environment[DATABASES[0]] = f"sqlite+aiosqlite:///{home / 'prefect' / 'prefect.db'}"
        return [sys.executable, "-m", "tasks.collecting", "--no-prompt", "server", "start", *listens], environment
    if name == MLFLOW:
        environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # another process, for what nobody here asks for
        database = environment.pop("MLFLOW_TRACKING_URI", "")  # a database: it is the server's
        environment[DATABASES[2]] = environment.get(DATABASES[2]) or database or f"sqlite:///{home}/mlflow/mlflow.db"
        if "MLFLOW_ARTIFACTS_DESTINATION" not in environment:  # clients on this machine write them by themselves
            environment.setdefault("MLFLOW_DEFAULT_ARTIFACT_ROOT", (store_folder(home) / "artifacts").as_uri())
            environment.setdefault("MLFLOW_SERVE_ARTIFACTS", "false")
        return [str(programs / "mlflow"), "server", *listens, "--workers", "1"], environment
    environment |= {"PREFECT_API_URL": services.prefect, "MLFLOW_TRACKING_URI": services.mlflow}
    if name == KEEPER:  # it starts the others again
        return [sys.executable, "-m", "tasks.keeper", services.home], {
            **os.environ,
            **absolute_places(),
            TOKEN: services.token,
        }
    for secret in DATABASES:  # a flow asks the servers
        environment.pop(secret, None)
    environment = {"PREFECT_WORKER_QUERY_SECONDS": "5", **environment, **worker_settings()}
    pool = name.removeprefix("worker-")
    worker = ["worker", "start", "--pool", pool, "--type", "process", "--name", worker_name(services, pool)]
    return [str(programs / "prefect"), "--no-prompt", *worker], environment


def worker_name(services: Services, pool: str) -> str:
    """Return the name of this home's worker of a pool, which no other has."""
    return f"{pool}-{socket.gethostname()}-{hash_json(services.home)[:8]}"


def is_ours(services: Services, pid: int) -> bool:
    """Say whether a process is one of ours; without a /proc, whether there is one."""
    try:
        return f"{TOKEN}={services.token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return not Path("/proc/self/environ").exists() and process_started(pid) is not None


def start(services: Services, name: str) -> subprocess.Popen[bytes]:
    """Start a service, detached from this process; its log grows."""
    command, environment = command_of(services, name)
    log = services.log(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(services.home) / PREFECT  # Prefect and MLflow read settings, and make files, in the current folder
    folder.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def healthy(services: Services, name: str, timeout: float = 5.0) -> bool:
    """Say whether a service runs and, of a server, whether it answers; of a worker, whether Prefect hears of it."""
    if name in services.names and not is_alive(services, name):
        return False
    if name in (PREFECT, MLFLOW):
        return is_healthy(getattr(services, name), timeout)
    return name == KEEPER or is_heard(services, name.removeprefix("worker-"), timeout)


def is_alive(services: Services, name: str) -> bool:
    """Say whether the process of a service of ours runs, whatever it does."""
    return name in services.processes and services.processes[name].alive


def is_heard(services: Services, pool: str, timeout: float) -> bool:
    """Say whether Prefect still hears of our worker of a pool; yes where Prefect is silent, or all began just now."""
    with suppress(OSError, http.client.HTTPException, ValueError):
        if time.time() - services_file(Path(services.home)).stat().st_mtime > HEARD_SECONDS:
            os.environ |= past_proxies(services.prefect)
            workers = ask_prefect(services, f"work_pools/{pool}/workers/filter", {}, timeout)
            return (worker_name(services, pool), "OFFLINE") not in [(one["name"], one["status"]) for one in workers]
    return True


def ask_prefect(services: Services, what: str, body: Any, timeout: float) -> Any:
    """POST to Prefect's API, with the user and password that its clients would send."""
    url, headers = urlsplit(services.prefect), {"Content-Type": "application/json"}
    user, _, place = url.netloc.rpartition("@")  # urllib takes the two for a part of the machine's name
    if user := os.environ.get("PREFECT_API_AUTH_STRING") or unquote(user):
        headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    address = url._replace(netloc=place).geturl()
    request = urllib.request.Request(f"{address}/{what}", json.dumps(body).encode(), headers)  # noqa: S310 - our own
    with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310 - our own
        return json.loads(response.read() or "null")


# ------ All of them.


def start_all(services: Services) -> Services:
    """Let the keeper start everything, and return once it is ready; where that fails nothing is left: KgqaError."""
    home, log = Path(services.home), services.log(KEEPER)
    services.write()
    log.unlink(missing_ok=True)  # what it says at its end is shown
    try:
        keeper = start(services, KEEPER)
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and keeper.poll() is None:
            found = read_services(home)
            if found is not None and found.ready:
                return found
            time.sleep(POLL_SECONDS)
        said = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        slow = f"after {START_SECONDS:.0f} s; is the machine busy?"
        why = slow if keeper.poll() is None else f"the keeper ended with code {keeper.returncode} and without a word"
        told = ["not everything started, and nothing is left running:", *(said or [why]), ""]
        raise unusable("\n".join(told), f"How far it came is in {log.parent}", home)
    finally:
        if not getattr(read_services(home), "ready", False):
            stop_all(home)


def stop_all(home: Path) -> list[str]:
    """End what was started here, its children too, and return their names: workers first, servers last."""
    services = read_services(home)
    if services is None:
        return []
    ended = []
    for name in [KEEPER, *reversed(services.names[:-1])]:
        services = read_services(home) or services  # the keeper may have started one again before it ended
        process = services.processes.get(name)
        if name.startswith("worker-"):  # it would kill its flows, who have something to tell MLflow and Prefect
            end_others(services, leaders=True)
        if process is not None and process.alive and process.pid != os.getpid():
            end_process(process.pid, process.started, grace=GRACE_SECONDS)
            ended.append(name)
    end_others(services)
    services_file(home).unlink(missing_ok=True)
    return ended


def end_others(services: Services, *, leaders: bool = False, of: int | None = None) -> None:
    """End processes of ours that are no service, politely first, all at once; does nothing without a /proc.

    ``leaders``: only those that began a session, which are flows, and not what these have started. ``of``: only those
    of one session, such as what a server started that was killed itself.
    """
    known, left = {one.pid for one in services.processes.values()}, []
    for pid in (int(entry.name) for entry in Path("/proc").glob("[0-9]*")):
        with suppress(ProcessLookupError):  # it ended just now
            if pid != os.getpid() and is_ours(services, pid):
                session = os.getsid(pid)
                if of in (None, session) and (not leaders or (session == pid and session not in known)):
                    left.append(Started(pid, process_started(pid) or ""))
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for one in left:
            with suppress(ProcessLookupError):
                if one.alive:
                    os.kill(one.pid, sent)
        until = time.monotonic() + GRACE_SECONDS
        while any(one.alive for one in left) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)


def up(home: Path, **wanted: Any) -> tuple[Services, bool]:
    """Let everything run, and say whether it was started now. ``wanted``: as ``plan_services``."""
    (home / "run").mkdir(parents=True, exist_ok=True)
    with exclusive_lock(home / "run" / "services.lock", timeout=LOCK_SECONDS):
        services = read_services(home)
        if services is not None and services.ready and services.processes[KEEPER].alive:
            return services, False
        stop_all(home)  # what a killed keeper left
        return start_all(plan_services(home, **wanted)), True


def down(home: Path) -> list[str]:
    """End everything that runs here."""
    (home / "run").mkdir(parents=True, exist_ok=True)
    with exclusive_lock(home / "run" / "services.lock", timeout=START_SECONDS):
        return stop_all(home)


def run_here(home: Path, **wanted: Any) -> None:
    """Start everything and stay; SIGTERM, Ctrl-C and a terminal that closes end it all. ``wanted``: ``plan_services``.

    Raises ConfigError where a keeper of this home is at work: its runs would end with it.
    """
    from tasks.keeper import main

    (home / "run").mkdir(parents=True, exist_ok=True)
    with exclusive_lock(home / "run" / "services.lock", timeout=LOCK_SECONDS):
        found = read_services(home)
        if found is not None and KEEPER in found.processes and found.processes[KEEPER].alive:
            raise ConfigError(f"{home} has its servers already: `kgqa up --status` shows them, `kgqa down` ends them")
        stop_all(home)  # what a killed keeper left
        services = plan_services(home, **wanted)
        services.write()
    os.environ[TOKEN] = services.token

    def unwind(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    for sent in ENDS:
        if signal.getsignal(sent) is signal.SIG_DFL:  # nohup's SIGHUP is none, and Ctrl-C raises already
            signal.signal(sent, unwind)
    main(home, foreground=True)
