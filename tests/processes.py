"""What is left of a run that was killed: its processes, and what it had begun to make."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from kgqa_core.artifacts import MANIFEST, NOT_CONTENT, read_artifact

# What a test's own Dask cluster gets: a dashboard, once started in a process, is served by the clusters after it too.
NO_DASHBOARD = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
TIMEOUT = 240  # seconds; a run takes ten of them where nothing else runs


def processes_of(home: Path) -> dict[int, str]:
    """Return the processes, by id, that know this home, or one inside it, from their environment."""
    found, homes = {}, re.compile(re.escape(os.fsencode(home)) + rb"(?:/|\0|$)")
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if homes.search((entry / "environ").read_bytes()):
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # it ended just now, or is somebody else's
    return found


def assert_nothing_runs(home: Path) -> None:
    """Fail where a process of that home is still there after a while: a server takes a moment to end itself."""
    if not Path("/proc/self/environ").exists():
        return
    until = time.monotonic() + 30
    while (left := processes_of(home)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true answer of a condition; fail where there is none for minutes."""
    until = time.monotonic() + TIMEOUT
    while not (answer := condition()):
        assert time.monotonic() < until, what
        time.sleep(0.05)
    return answer


def wait_for_stage(run: subprocess.Popen[str], home: Path, stage: str = "*") -> None:
    """Return once the run has begun to make an artifact of ``stage`` (or of any): it is named in the lock file."""
    until = time.monotonic() + TIMEOUT
    while not any(f'"pid": {run.pid},' in lock.read_text() for lock in (home / "artifacts").glob(f"{stage}/*.lock")):
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < until
        time.sleep(0.001)


def rubble(home: Path) -> list[Path]:
    """Return the artifacts that somebody began and did not finish."""
    return list((home / "artifacts").glob("*/*.work"))


def visible_files(home: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of every artifact that a reader may open, by its place in the store.

    Fails where one of them is not as its manifest says.
    """
    found = {}
    for folder in (home / "artifacts").glob("*/*"):
        if not folder.is_dir() or folder.suffix:
            continue
        artifact = read_artifact(folder)
        assert artifact is not None, f"{folder} can be seen and is not whole"
        names = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
        assert names - {MANIFEST} == {entry.name for entry in artifact.files}
        for entry in artifact.files:
            digest = hashlib.sha256((folder / entry.name).read_bytes()).hexdigest()
            assert digest == entry.sha256
            if entry.name not in NOT_CONTENT:
                found[f"{folder.relative_to(home)}/{entry.name}"] = digest
    return found


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def answering(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Let a handler of this process answer requests until the end of the context; yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


@dataclass
class Replies:
    """What a server of this process replies to each POST, and what it was asked: path, headers and body."""

    body: bytes = b"[]"
    status: int = 200
    seconds: float = 0.0
    asked: list[tuple[str, Message, bytes]] = field(default_factory=list)

    @contextmanager
    def served(self) -> Iterator[str]:
        """Reply until the end of the context; yield the server's address."""
        replies = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"] or 0))
                replies.asked.append((self.path, self.headers, content))
                time.sleep(replies.seconds)
                self.send_response(replies.status)
                self.end_headers()
                with suppress(ConnectionError):  # whoever asked may have given up
                    self.wfile.write(replies.body)

            def log_message(self, *given: object) -> None:
                """Say nothing."""

        with answering(Handler) as address:
            yield address


@contextmanager
def serving(command: list[str], port: int, log: Path, **options: Any) -> Iterator[None]:
    """Run a server, its own group of processes, from when ``/health`` answers to the end of the context."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, **options)
    try:
        until = time.monotonic() + TIMEOUT
        while not is_up(port):
            assert process.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, 15)
        process.wait(timeout=30)


def is_up(port: int) -> bool:
    """Say whether a server answers ``/health``."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except OSError:
        return False


def post_json(url: str, body: dict[str, Any]) -> Any:
    """POST a JSON document and return the one that comes back."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)
