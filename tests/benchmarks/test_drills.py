"""What the drills call passed: a run that fails, a server that ends badly, or a process that is left is none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from benchmarks.drills import __main__ as drills
from benchmarks.drills import load, scheduled
from benchmarks.drills.runs import Home

Starts = Callable[[Sequence[str]], None]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    """Let runs be these programs, one after another, which make nothing."""

    def let(programs: Sequence[str]) -> None:
        waiting = iter(programs)

        def start(home: Home, *settings: str) -> subprocess.Popen[str]:
            home.folder.mkdir(parents=True, exist_ok=True)
            (home.folder / "drill.log").touch()
            command = [sys.executable, "-S", "-E", "-c", next(waiting)]
            return subprocess.Popen(command, env=home.environment, text=True, start_new_session=True)

        monkeypatch.setattr(Home, "start", start)
        monkeypatch.setattr(Home, "alias", lambda home: "one")
        moves = [SimpleNamespace(kind="promoted")]
        monkeypatch.setattr(drills, "Releases", lambda folder, model: SimpleNamespace(moves=lambda: moves))

    return let


def test_of_two_runs_at_once_both_have_to_end_well(tmp_path: Path, starts: Starts) -> None:
    starts(["", "", ""])
    assert drills.two_at_once(tmp_path / "well", "", 0)["codes"] == [0, 0]
    starts(["", "", "raise SystemExit(1)"])
    with pytest.raises(RuntimeError, match=r"codes \[0, 1\]"):
        drills.two_at_once(tmp_path / "badly", "", 0)


@pytest.mark.slow
def test_a_run_that_fails_before_its_kill_is_no_quick_run(tmp_path: Path, starts: Starts) -> None:
    run = "import time; time.sleep(1)"
    starts([run, "raise SystemExit(1)", *[run] * 4])
    with pytest.raises(RuntimeError, match="the run ended with code 1"):
        drills.kills(tmp_path, "", points=1)


def test_a_server_that_ends_with_an_error_is_no_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntrap 'exit 3' TERM\ntouch {tmp_path}/up\nwhile :; do sleep 0.05; done\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(RuntimeError, match="code 3"), load.server(tmp_path, 1):
        load.wait_until((tmp_path / "up").exists, 30)


def test_a_run_that_ends_before_its_servers_are_killed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def running(folder: Path, deployments: Path) -> Iterator[tuple[Home, Callable[..., Any]]]:
        yield Home(folder), lambda what, **body: {"id": "one", "state": {"type": "FAILED"}}

    monkeypatch.setattr(drills, "running", running)
    with pytest.raises(RuntimeError, match="the run is FAILED"):
        drills.server_killed(tmp_path, "", 0)


def test_a_drill_that_fails_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = list[subprocess.Popen[bytes]]()

    def fails(folder: Path, server: str, points: int) -> dict[str, Any]:
        environment = {**os.environ, "KGQA_HOME": str(folder / "home")}
        command = [sys.executable, "-S", "-E", "-c", "import time; time.sleep(60)"]
        started.append(subprocess.Popen(command, env=environment, start_new_session=True))
        time.sleep(0.2)
        raise RuntimeError("lost")

    monkeypatch.setattr(drills, "DRILLS", {"fails": fails})
    monkeypatch.setattr(drills, "prefect_server", nullcontext)
    monkeypatch.setattr(sys, "argv", ["drills", "fails"])
    with pytest.raises(RuntimeError, match="lost"):
        drills.main()
    try:
        assert started[0].wait(10) < 0
    finally:
        started[0].kill()


def test_scheduled_runs_go_on_until_one_has_killed_itself() -> None:
    lives, dies = (str(UUID(int=number)) for number in (1, scheduled.DEADLY))
    assert not scheduled.are_enough({lives: "COMPLETED"}, 1)
    assert scheduled.are_enough({lives: "COMPLETED", dies: "CRASHED"}, 2)
    assert not scheduled.are_enough({lives: "COMPLETED", dies: "CRASHED"}, 3)
