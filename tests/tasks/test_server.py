"""The temporary Prefect server, for real: a flow runs against it, and whatever happens, no server is left behind."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from httpx import ConnectError
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

from kgqa_core.errors import ArtifactError, KgqaError
from tasks import services
from tasks.leftovers import process_started
from tasks.runtime import pipeline_task, quick_imports
from tasks.server import prefect_server
from tests.conftest import PROJECT, Start
from tests.processes import post_json, wait_for

RETRIES = "PREFECT_CLIENT_MAX_RETRIES"
RUN = """
import sys, time
from pathlib import Path
from tasks.server import prefect_server

with prefect_server(Path(sys.argv[1])) as url:
    print(url, flush=True)
    if len(sys.argv) > 2:
        from prefect import flow
        from tasks.runtime import pipeline_task

        @pipeline_task("double")
        def double(number):
            return 2 * number

        @flow
        def doubling():
            return [double(number) for number in range(7)]

        print(sum(doubling()), flush=True)
    else:
        time.sleep(120)
"""


@pytest.fixture(autouse=True)
def no_server_of_the_developers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


@pytest.fixture(scope="module")
def home(prefect_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose database an earlier server made."""
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(prefect_folder, home / "prefect")
    return home


def server_of(home: Path, *, running: bool = True) -> tuple[int, str]:
    """Return process id and start of the one server that is recorded in ``home``."""
    (path,) = (home / "run").glob("process-*.json")
    record = json.loads(path.read_text())
    assert (process_started(record["pid"]) == record["started"]) == running
    return record["pid"], record["started"]


def assert_nothing_left(home: Path, pid: int, started: str) -> None:
    assert process_started(pid) != started
    assert [path.name for path in (home / "run").iterdir()] == ["prefect.lock"]


def ask(url: str, what: str) -> list[dict[str, Any]]:
    """Return what the API at ``url`` lists."""
    return post_json(f"{url}/{what}/filter", {})


@pytest.mark.slow
def test_a_flow_run_is_seen_through_the_api_and_its_server_is_gone_afterwards(home: Path) -> None:
    before = dict(os.environ)
    tries: list[str] = []
    with prefect_server(home) as url:
        pid, started = server_of(home)
        from prefect import flow

        from flows.pipeline import show_results

        @pipeline_task("read shard", io=True)
        def flaky(number: int) -> int:
            tries.append("io")
            if tries.count("io") == 1:
                raise ConnectionError("the network blinked")
            return 2 * number

        @pipeline_task("judge", io=True)
        def wrong() -> None:
            tries.append("wrong")
            raise ValueError("no retry will mend this")

        @flow(name="halve and double")
        def small_flow(number: int) -> int:
            show_results("Demo_1", None, "| system | hits1 |\n| - | - |\n| explorer | 97.0 |")
            with pytest.raises(ValueError, match="no retry"):
                wrong()
            return flaky(number)

        assert small_flow(13) == 26
        assert tries == ["wrong", "io", "io"]
        assert PREFECT_CLIENT_MAX_RETRIES.value() == 3  # a server that was killed does not come back
        (run,) = ask(url, "flow_runs")
        assert run["state_type"] == "COMPLETED"
        wait_for(lambda: len(ask(url, "task_runs")) == 2, "both tasks")
        assert {(task["name"][:5], task["state_type"]) for task in ask(url, "task_runs")} == {
            ("read ", "COMPLETED"),
            ("judge", "FAILED"),
        }
        (artifact,) = ask(url, "artifacts")
        assert artifact["key"] == "results-demo-1"
        assert "| explorer | 97.0 |" in artifact["data"]
    assert_nothing_left(home, pid, started)
    assert dict(os.environ) == before
    assert not (home / "prefect" / "storage").exists()  # neither flow nor task results are kept


def test_a_server_of_the_users_own_is_used_and_none_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_HOME")
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect.example:4200/api")
    monkeypatch.delenv(RETRIES, raising=False)
    with prefect_server(tmp_path / "home") as url:
        assert RETRIES not in os.environ  # it may be starting again
        assert url == "http://prefect.example:4200/api"
        assert os.environ["PREFECT_API_URL"] == url
        assert "PREFECT_HOME" not in os.environ
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]


def test_a_run_on_a_server_that_is_there_unwinds_when_it_is_stopped(tmp_path: Path, start: Start) -> None:
    work = """
        try:
            print("at work", flush=True)  # only now is there something to unwind
            time.sleep(120)
        finally:
            print("told", flush=True)
"""
    run = start(
        RUN.replace("        time.sleep(120)\n", work), tmp_path, env={"PREFECT_API_URL": "http://127.0.0.1:9/api"}
    )
    assert run.stdout is not None
    assert [run.stdout.readline() for _ in range(2)][1] == "at work\n"
    run.send_signal(signal.SIGTERM)
    assert run.communicate(timeout=30)[0] == "told\n"
    assert run.returncode == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_server_of_the_users_own_that_is_not_there_is_named(tmp_path: Path, start: Start) -> None:
    environment = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_CLIENT_MAX_RETRIES": "0"}
    _, said = start(RUN, tmp_path, "work", env=environment).communicate(timeout=60)
    assert "KgqaError: the Prefect server http://127.0.0.1:9/api cannot be used: Failed to reach API" in said
    assert "or unset that" in said


@pytest.mark.slow
def test_a_server_that_is_gone_or_whose_disk_is_full_is_named(home: Path) -> None:
    said = "Server error '500 Internal Server Error' for url 'http://x/set_state' - Response: {} - For more"
    named = r"^the Prefect server .*'http://x/set_state'. Is there disk space left in .*"
    with pytest.raises(KgqaError, match=named), prefect_server(home):
        raise PrefectHTTPStatusError(said, request=None, response=None)
    gone = r"^the Prefect server .* cannot be used: \[Errno 111\] Connection refused. Is there"
    with pytest.raises(KgqaError, match=gone), prefect_server(home):  # somebody killed it
        raise ConnectError("[Errno 111] Connection refused")


def test_a_server_that_cannot_start_on_a_full_disk_is_the_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    full = r"(?s)temporary Prefect server.*The disk is full \(1 MiB free now\)"
    with pytest.raises(ArtifactError, match=full), prefect_server(tmp_path, timeout=0.3):
        pytest.fail("no server is that fast")


def test_a_keeper_that_ends_without_a_word_on_a_full_disk_is_the_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()

    def start(*_: object) -> subprocess.Popen[bytes]:
        (tmp_path / "logs" / "keeper.log").touch()  # which takes nothing
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])

    monkeypatch.setattr(services, "start", start)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    known = {name: "x" for name in ("token", "host", "prefect", "mlflow", "deployments")}
    full = r"(?s)^not everything started.*the keeper ended with code 3.*The disk is full \(1 MiB free now\)"
    with pytest.raises(ArtifactError, match=full):
        services.start_all(services.Services(home=str(tmp_path), own=(), pools=(), **known))


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(ArtifactError, match="Set KGQA_HOME"), prefect_server(tmp_path / "home"):
        pytest.fail("there is no home")


@pytest.mark.slow
def test_a_server_that_takes_too_long_is_ended_and_one_that_cannot_start_shows_the_end_of_its_log(
    tmp_path: Path,
) -> None:
    with pytest.raises(KgqaError, match=r"did not answer within 0 s.*log"), prefect_server(tmp_path, timeout=0.3):
        pytest.fail("no server is that fast")
    server_of(tmp_path, running=False)
    (tmp_path / "prefect").mkdir(exist_ok=True)
    (tmp_path / "prefect" / "prefect.db").write_text("this is no database" * 1000)
    with (
        pytest.raises(KgqaError, match=r"(?s)file is not a database.*prefect.db. is damaged. Move it"),
        prefect_server(tmp_path),
    ):
        pytest.fail("there is no database")


@pytest.mark.slow
def test_an_error_inside_ends_the_server_and_the_next_one_knows_the_earlier_runs(home: Path, start: Start) -> None:
    def flows() -> int:
        database = home / "prefect" / "prefect.db"
        with sqlite3.connect(database) as connection:
            return connection.execute("select count(*) from flow_run").fetchone()[0]

    run = start(RUN, home, "work")
    _, stderr = run.communicate(timeout=120)
    assert (run.returncode, stderr) == (0, "")
    known = flows()
    with pytest.raises(ZeroDivisionError), prefect_server(home) as url:
        pid, started = server_of(home)
        assert len(ask(url, "flow_runs")) == known >= 1
        raise ZeroDivisionError
    assert_nothing_left(home, pid, started)


def started_run(start: Start, home: Path) -> tuple[subprocess.Popen[str], int, str]:
    """Return a run whose server answers, with the server's process id and start."""
    run = start(RUN, home)
    assert run.stdout is not None
    run.stdout.readline()
    return run, *server_of(home)


@pytest.mark.slow
def test_a_server_ends_with_its_run_or_is_ended_by_the_next(home: Path, start: Start) -> None:
    run, pid, started = started_run(start, home)
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=30) == 128 + signal.SIGTERM
    assert_nothing_left(home, pid, started)
    run, pid, started = started_run(start, home)
    os.kill(pid, signal.SIGSTOP)  # it does not even see that its owner is gone
    run.kill()
    run.wait()
    time.sleep(1)
    assert process_started(pid) == started
    with prefect_server(home):
        assert process_started(pid) != started
        second, its_start = server_of(home)
    assert_nothing_left(home, second, its_start)


@pytest.mark.slow
def test_two_runs_at_once_on_a_fresh_home_have_a_server_each(tmp_path: Path, start: Start) -> None:
    runs = [start(RUN, tmp_path, "work"), start(RUN, tmp_path, "work")]
    outputs = [run.communicate(timeout=240) for run in runs]
    assert [(run.returncode, stderr) for run, (_, stderr) in zip(runs, outputs, strict=True)] == [(0, ""), (0, "")]
    urls, sums = zip(*[stdout.split() for stdout, _ in outputs], strict=True)
    assert len(set(urls)) == 2
    assert sums == ("42", "42")
    with sqlite3.connect(tmp_path / "prefect" / "prefect.db") as database:
        for table, count in (("flow_run", 2), ("task_run", 14)):
            states = database.execute(f"select state_type, count(*) from {table} group by state_type").fetchall()
            assert states == [("COMPLETED", count)]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["prefect.lock"]


# Quick imports


def test_the_rooms_around_a_run_are_entered_without_loading_what_is_heavy() -> None:
    program = (
        "import sys, kgqa_core.run.cluster, tasks.runtime, tasks.server, tasks.tracking, tasks.registry\n"
        "print([name for name in ('prefect', 'mlflow', 'dask', 'distributed', 'torch', 'matplotlib', 'pandas') "
        "if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("was_on", [True, False])
def test_garbage_collection_pauses_while_importing_and_is_as_it_was_afterwards(was_on: bool) -> None:
    (gc.enable if was_on else gc.disable)()
    try:
        with pytest.raises(ImportError), quick_imports():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == was_on
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("given", ["http://127.0.0.1:9/api", pytest.param("", marks=pytest.mark.slow)])
def test_settings_in_the_current_folder_run_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, start: Start, given: str
) -> None:
    """With a server of the user's own, whom nobody asks here, and with one that is started.

    Prefect reads three files of the current folder, one of which may say what to call when logging is set up.
    """
    used_home = tmp_path / "home" if given else request.getfixturevalue("used_home")
    hostile, ran = tmp_path / "hostile", tmp_path / "ran"
    hostile.mkdir()
    logging = {"version": 1, "formatters": {"x": {"()": "subprocess.Popen", "args": ["touch", str(ran)]}}}
    (hostile / "logging.yml").write_text(json.dumps(logging))
    path = hostile / "logging.yml"
    (hostile / "prefect.toml").write_text(f"[logging]\nconfig_path = '{path}'\n")
    (hostile / "pyproject.toml").write_text(f"[tool.prefect.logging]\nconfig_path = '{path}'\n")
    (hostile / ".env").write_text(f"PREFECT_LOGGING_CONFIG_PATH={path}\n")
    code = """
import os, sys
from pathlib import Path
from tasks.server import prefect_server
with prefect_server(Path(sys.argv[1])):
    import prefect
    from prefect.logging import get_logger
    print(os.environ["MLFLOW_TRACKING_URI"])
print(Path.cwd())
"""
    environment = {"MLFLOW_TRACKING_URI": "sqlite:///own.db"} | ({"PREFECT_API_URL": given} if given else {})
    child = start(code, used_home, cwd=hostile, env=environment)
    said, problem = child.communicate(timeout=240)
    assert child.returncode == 0, problem
    assert not ran.exists()
    assert said.split() == [f"sqlite:///{hostile}/own.db", str(hostile)]
