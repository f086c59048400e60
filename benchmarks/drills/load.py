"""Load on ``kgqa serve``: many clients for minutes, a champion that changes, and a restart in the middle."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.measure import PROJECT, memory_bytes
from tests.processes import free_port, is_up

CLIENTS = 32
MOVE_SECONDS = 20.0  # between two changes of the champion
MARK_SECONDS = 60.0  # between two looks at the server's memory
MOST_GROWTH = 1.1  # from a process's first mark to its last
NUM_QUESTIONS = 53
RUN = """\
dataset: {name: load, source: embedded, seed: 0}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, width: WIDTH, edge_budget: 5, epochs: 1, batch_size: 257}
tracking: {enabled: false}
"""
Answers = dict[str, dict[str, Any]]  # release -> question -> what it answers


@dataclass
class Served:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)  # of each request that was answered
    answered: Counter[str] = field(default_factory=Counter)  # release -> replies
    wrong: list[str] = field(default_factory=list)
    failed: list[tuple[float, float, str]] = field(default_factory=list)  # from, to, and what was said


def make_releases(folder: Path) -> tuple[Any, list[str], Answers]:
    """Build two releases of one run; return where they are, their ids, and what each answers, asked in this process."""
    from kgqa_core.config_file import read_config
    from kgqa_core.questions.build import read_questions
    from kgqa_core.run.ensure import ensure
    from kgqa_core.run.pipeline import Pipeline
    from tasks.release import Releases
    from tasks.serving import Row, open_release

    found, ids, expected = Releases(folder / "home", "kgqa-load"), list[str](), Answers()
    for width in ("5", "7"):
        (folder / "load.yaml").write_text(RUN.replace("WIDTH", width), encoding="utf-8")
        run = Pipeline(read_config(folder / "load.yaml", [f"runtime.home={folder / 'home'}"]))
        ensure(run, ["explorer-seed0"])
        ids.append(found.make(run.config, run, None, "load").id)
        texts = [one.text for one in read_questions(run.artifact("questions").folder, "test")][:NUM_QUESTIONS]
        answers = open_release(found, ids[-1]).answer([Row(question=text) for text in texts])
        expected[ids[-1]] = json.loads(json.dumps(dict(zip(texts, answers, strict=True))))
    found.move("promoted", ids[0], "load")
    return found, ids, expected


def ask(port: int, question: str) -> tuple[str, Any]:
    """Return which release answered, and what."""
    body = json.dumps({"inputs": [{"question": question}]}).encode()
    address, kind = f"http://127.0.0.1:{port}/invocations", {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, body, kind), timeout=120) as response:
        return response.headers["X-Kgqa-Release"], json.load(response)["predictions"][0]


def keep_asking(port: int, expected: Answers, stop: threading.Event, seen: Served, first: int) -> None:
    """Ask one question after another until the end."""
    texts = list(next(iter(expected.values())))
    for number in count(first):
        if stop.is_set():
            return
        text, began = texts[number % len(texts)], time.monotonic()
        try:
            release, answer = ask(port, text)
        except (OSError, ValueError) as problem:
            seen.failed.append((began, time.monotonic(), repr(problem)))
            stop.wait(0.2)
            continue
        seen.seconds.append(time.monotonic() - began)
        seen.answered[release] += 1
        if answer != expected[release][text]:
            seen.wrong.append(f"{release}, {text!r}: {answer}")


@contextmanager
def server(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``kgqa serve`` until the context ends, and fail where it does not end well."""
    command = [sys.executable, "-m", "flows.cli", "serve", str(folder / "load.yaml"), "--port", str(port)]
    environment = {**os.environ, "KGQA_HOME": str(folder / "home"), "PYTHONPATH": str(PROJECT)}
    with (folder / "serve.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        if (code := process.wait(120)) not in (-signal.SIGTERM, 128 + signal.SIGTERM):
            raise RuntimeError(
                f"the server ended with code {code}: {(folder / 'serve.log').read_text('utf-8')[-3000:]}"
            )
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_until(true: Callable[[], bool], seconds: float = 300.0) -> None:
    """Return once something is true; RuntimeError where that takes too long."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            raise RuntimeError(f"not within {seconds:g} s")
        time.sleep(0.1)


def watch(process: subprocess.Popen[bytes], releases: Any, ids: list[str], seconds: float) -> list[int]:
    """Change the champion now and then for a while; return the server's memory at its marks, in MB."""
    began, marks, moves = time.monotonic(), list[int](), 0
    while (passed := time.monotonic() - began) < seconds:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with code {process.returncode}")
        if passed > (moves + 1) * min(MOVE_SECONDS, seconds / 2):
            moves += 1
            releases.move("promoted", ids[moves % 2], "load")
        if passed > (len(marks) + 1) * min(MARK_SECONDS, seconds / 3):
            marks.append(memory_bytes("VmRSS", process.pid) // 2**20)
        time.sleep(0.1)
    return marks


def load(folder: Path, prefect: str, points: int) -> dict[str, Any]:
    """32 clients for ``points`` seconds and one restart: no wrong answer, none lost but in the restart, flat memory."""
    releases, ids, expected = make_releases(folder)
    port, stop, seen, marks = free_port(), threading.Event(), Served(), list[list[int]]()
    restart = [0.0, 0.0]  # from its begin to when the new server answers
    asking: list[Future[None]] = []
    with ThreadPoolExecutor(CLIENTS) as clients:
        try:
            for is_last in (False, True):
                with server(folder, port) as process:
                    wait_until(lambda: is_up(port))
                    restart[1] = time.monotonic()
                    for number in range(0 if is_last else CLIENTS):
                        asking.append(clients.submit(keep_asking, port, expected, stop, seen, 7 * number))
                    marks.append(watch(process, releases, ids, points / 2))
                    if is_last:
                        stop.set()
                        clients.shutdown()  # which waits for the last replies
                    else:
                        restart[0] = time.monotonic()
        finally:
            stop.set()
    for one in asking:
        one.result()
    lost = [said for begun, ended, said in seen.failed if ended < restart[0] or begun > restart[1]]
    grown = [own for own in marks if own[-1] > MOST_GROWTH * own[0]]
    found = {
        "requests": len(seen.seconds),
        "by_release": dict(seen.answered),
        "wrong": len(seen.wrong),
        "lost": len(lost),
        "in_flight_at_the_restart": sum(begun < restart[0] <= ended for begun, ended, _ in seen.failed),
        "restart_seconds": round(restart[1] - restart[0], 1),
        "p50_ms": round(1000 * statistics.median(seen.seconds)),
        "p99_ms": round(1000 * statistics.quantiles(seen.seconds, n=100)[98]),
        "memory_mb": marks,
    }
    if seen.wrong or lost or grown or len(seen.answered) < 2:
        raise RuntimeError(f"{found}: {seen.wrong[:3]} {lost[:3]}")
    return found
