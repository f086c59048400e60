"""What `kgqa down` ends, and what it leaves alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.cli_up import print_services
from kgqa_core.config_file import read_config
from kgqa_core.errors import ConfigError
from tasks.leftovers import process_started, running_server, services_file
from tasks.mlflow_store import absolute_places, tracking_uri
from tasks.server import prefect_server
from tasks.services import (
    TOKEN,
    Services,
    Started,
    command_of,
    down,
    end_others,
    plan_services,
    read_services,
    run_here,
    up,
    worker_name,
)
from tests.conftest import Start, kgqa
from tests.processes import Replies, wait_for

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def made(home: Path, **processes: Started) -> Services:
    services = Services(
        home=str(home), token="t0ken", host="127.0.0.1", prefect="http://127.0.0.1:7/api", mlflow="http://127.0.0.1:9",
        own=("prefect", "mlflow"), deployments="prefect.yaml", pools=("kgqa-cpu",), ready=True, processes=processes,
    )  # fmt: skip
    services.write()
    return services


def plan(home: Path, **asked: Any) -> Services:
    """Plan services, at ports that nobody has unless others are asked for."""
    where = {"host": "127.0.0.1", "prefect_port": 1, "mlflow_port": 1, "deployments": home, "pools": []}
    return plan_services(home, **{**where, **asked})


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP) as process:
        yield process
        process.kill()


def test_down_ends_what_is_noted_and_its_children_and_no_process_that_has_an_id_of_old(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    ours = os.environ | {TOKEN: "t0ken"}
    noted = subprocess.Popen(SLEEP, env=ours, start_new_session=True)
    child_that_outlived_its_parent = subprocess.Popen(SLEEP, env=ours, start_new_session=True)
    reused = Started(stranger.pid, "another boot:1")
    services = made(tmp_path, mlflow=Started(noted.pid, process_started(noted.pid) or ""), prefect=reused)
    assert read_services(tmp_path) == services
    assert running_server(tmp_path, "prefect") is None  # its keeper is gone
    assert down(tmp_path) == ["mlflow"]
    assert noted.wait(10) and child_that_outlived_its_parent.wait(10)
    assert stranger.poll() is None
    assert read_services(tmp_path) is None
    assert down(tmp_path) == []


def test_what_a_killed_server_started_is_ended_and_other_sessions_are_not(tmp_path: Path) -> None:
    services = made(tmp_path)
    ours = os.environ | {TOKEN: "t0ken"}
    child = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", child, *SLEEP]
    with subprocess.Popen(command, env=ours, start_new_session=True, stdin=-1, stdout=-1) as server:
        assert server.stdout is not None
        left = int(server.stdout.readline())
        started = process_started(left)
        server.kill()
    flow = subprocess.Popen(SLEEP, env=ours, start_new_session=True)
    end_others(services, of=server.pid)
    assert started
    wait_for(lambda: process_started(left) != started, "its parent takes a moment to take note")
    assert flow.poll() is None
    end_others(services)
    assert flow.wait(10)


def test_commands_of_the_home_use_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, keeper=Started(os.getpid(), process_started(os.getpid()) or ""))
    assert running_server(tmp_path, "prefect") == "http://127.0.0.1:7/api"
    assert tracking_uri(tmp_path) == "http://127.0.0.1:9"
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("no_proxy", "intranet")
    with prefect_server(tmp_path) as url:  # whose calls do not go to a proxy
        assert (url, os.environ["NO_PROXY"]) == ("http://127.0.0.1:7/api", "intranet,127.0.0.1")
    assert tracking_uri(tmp_path) == "http://127.0.0.1:9"
    assert os.environ["no_proxy"] == "intranet,127.0.0.1"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    assert tracking_uri(tmp_path) == "http://elsewhere"
    assert up(tmp_path, host="", prefect_port=0, mlflow_port=0, deployments=tmp_path, pools=[])[1] is False


def test_a_port_in_use_is_named_and_a_server_of_the_users_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} of 127.0.0.1 cannot be had.*--prefect-port"):
            plan(tmp_path, prefect_port=port)
        monkeypatch.setenv("PREFECT_API_URL", "https://prefect.example/api")
        planned = plan(tmp_path, prefect_port=port, mlflow_port=port, pools=["kgqa-cpu"])
    assert (planned.mlflow, planned.prefect) == ("https://mlflow.example", "https://prefect.example/api")
    assert (planned.own, planned.names) == ((), ["worker-kgqa-cpu", "keeper"])


def test_what_runs_already_is_not_ended_by_somebody_who_starts_it_in_the_foreground(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    services = made(tmp_path, keeper=Started(stranger.pid, process_started(stranger.pid) or ""))
    with pytest.raises(ConfigError, match=r"has its servers already: .*`kgqa down` ends them"):
        run_here(tmp_path, host="127.0.0.1", prefect_port=1, mlflow_port=1, deployments=tmp_path, pools=["kgqa-cpu"])
    assert stranger.poll() is None
    assert read_services(tmp_path) == services


IN_THE_FOREGROUND = """
import sys, time
from pathlib import Path
from tasks import keeper, services

class Kept(keeper.Keeper):
    def start_all(self): print("up", flush=True)
    def keep(self): time.sleep(60)

def stop(home):
    print("ending", flush=True)
    time.sleep(1)
    print("ended", flush=True)

keeper.Keeper, keeper.stop_all = Kept, stop
home = Path(sys.argv[1])
services.run_here(home, host="127.0.0.1", prefect_port=1, mlflow_port=1, deployments=home, pools=[])
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_who_ends_it_twice_in_the_foreground_leaves_nothing_running(
    tmp_path: Path, start: Start, first: signal.Signals
) -> None:
    there = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    run = start(IN_THE_FOREGROUND, tmp_path, env=there)
    assert run.stdout is not None and run.stdout.readline() == "up\n"
    run.send_signal(first)
    assert run.stdout.readline() == "ending\n"
    for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        run.send_signal(again)
    assert run.stdout.readline() == "ended\n"
    run.wait(30)


def test_what_runs_already_and_lacks_what_is_asked_for_is_an_error(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = kgqa("up", "--deployments", "other.yaml")
    assert (missing.exit_code, "there is no file other.yaml" in missing.stderr) == (2, True)
    (tmp_path / "other.yaml").touch()
    made(own_home, keeper=Started(os.getpid(), process_started(os.getpid()) or ""))
    for asked, lacks in (
        (["--worker", "kgqa-cpu", "--worker", "kgqa-gpu"], "a worker of kgqa-gpu"),
        (["--deployments", "other.yaml"], "the deployments of other.yaml"),
        (["--prefect-port", "8", "--mlflow-port", "9"], "prefect at port 8"),
        (["--host", "0.0.0.0"], "servers at 0.0.0.0"),
    ):
        done = kgqa("up", *asked)
        assert (done.exit_code, f"it runs already, without {lacks}: `kgqa down`" in done.stderr) == (2, True)
    assert kgqa("up", "--worker", "kgqa-cpu").exit_code == 0


def test_servers_keeper_and_workers_mean_the_places_that_a_run_here_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # and they work in KGQA_HOME/prefect
    given = {"KGQA_DATA": "data", "MLFLOW_TRACKING_URI": "sqlite:///runs.db", "MLFLOW_DEFAULT_ARTIFACT_ROOT": "files"}
    given |= {"PREFECT_API_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:///p.db"}
    for name, place in given.items():
        monkeypatch.setenv(name, place)
    services = made(tmp_path / "home")
    keeper, mlflow, prefect, worker = (
        command_of(services, name)[1] for name in ("keeper", "mlflow", "prefect", "worker-kgqa-cpu")
    )
    assert {one["KGQA_DATA"] for one in (keeper, worker)} == {f"{tmp_path}/data"}
    assert keeper["MLFLOW_TRACKING_URI"] == mlflow["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{tmp_path}/runs.db"
    assert {one["MLFLOW_DEFAULT_ARTIFACT_ROOT"] for one in (keeper, mlflow, worker)} == {f"{tmp_path}/files"}
    assert prefect["PREFECT_API_DATABASE_CONNECTION_URL"] == f"sqlite+aiosqlite:///{tmp_path}/p.db"
    for place in ("https://mlflow.example", "databricks", "sqlite:///:memory:", "sqlite:////a/runs.db"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
        assert absolute_places()["MLFLOW_TRACKING_URI"] == place


def test_no_password_of_an_address_is_printed_or_readable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, place in (("PREFECT_API_URL", "prefect.example/api"), ("MLFLOW_TRACKING_URI", "mlflow.example")):
        monkeypatch.setenv(name, f"https://ann:secret@{place}")
    monkeypatch.setattr("tasks.services.is_healthy", lambda *_: True)
    planned = plan(tmp_path)
    planned.write()
    assert read_services(tmp_path) == planned
    assert services_file(tmp_path).stat().st_mode & 0o777 == 0o600
    for as_json in (False, True):
        print_services(planned, fresh=True, as_json=as_json)
    said = capsys.readouterr().out
    assert "https://***@prefect.example" in said and "secret" not in said
    assert "listen on" not in said  # none is ours


@pytest.mark.parametrize("given", ["1m", "0", "nan", "-3"])
def test_what_the_keeper_would_end_by_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("KGQA_POLL_SECONDS", given)
    with pytest.raises(ConfigError, match=rf"KGQA_POLL_SECONDS is '{given}'; it must be a number of seconds"):
        plan(tmp_path)


def test_a_slash_at_the_end_of_an_address_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "https://prefect.example/api/")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example/")
    planned = plan(tmp_path)
    assert (planned.prefect, planned.mlflow) == ("https://prefect.example/api", "https://mlflow.example")


def test_an_ipv6_host_has_brackets_in_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", "sqlite:////x.db")
    monkeypatch.setattr("tasks.services.require_free", lambda *_: None)  # a machine may have no IPv6
    planned = plan(tmp_path, host="::1", prefect_port=4299, mlflow_port=5299)
    assert (planned.prefect, planned.mlflow) == ("http://[::1]:4299/api", "http://[::1]:5299")
    command, _ = command_of(planned, "prefect")
    assert command[:3] == [sys.executable, "-m", "tasks.collecting"]  # else it stands still on SQLite
    assert command[-4:] == ["--host", "::1", "--port", "4299"]


@pytest.mark.slow
def test_commands_without_a_configuration_have_the_home_of_those_in_conf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KGQA_HOME")
    monkeypatch.chdir(tmp_path)
    home, conf = tmp_path / "big disk", tmp_path / "conf"
    conf.mkdir()
    (conf / "local.yaml").write_text(f"home: {home}\n")
    (conf / "rivers.yaml").write_text(
        "dataset: {name: rivers, source: embedded}\nencoder: {kind: hash}\nexplorer: {steps: 1}\n"
    )
    assert read_config(Path("conf/rivers.yaml")).runtime.home == home
    made(home)
    for command in (["gc", "--all", "--json"], ["status", "--json"]):
        assert json.loads(kgqa(*command).stdout)["home"] == str(home)
    assert json.loads(kgqa("up", "--status", "--json").stdout)["services"]
    assert kgqa("down").exit_code == 0 and read_services(home) is None
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert str(home) in str(kgqa("ask", "models:/none@champion", "who?").stderr)
    monkeypatch.setenv("KGQA_HOME", str(tmp_path / "other"))
    assert json.loads(kgqa("status", "--json").stdout)["home"] == str(tmp_path / "other")


def test_where_nothing_runs_the_status_says_so_and_a_damaged_note_is_no_note(own_home: Path) -> None:
    services_file(own_home).parent.mkdir(parents=True)
    services_file(own_home).write_text('{"processes": 7}')
    done = kgqa("up", "--status")
    assert (done.exit_code, done.stdout) == (1, "Nothing runs: kgqa up starts it.\n")


@pytest.mark.parametrize(
    ("status", "noted", "shown"),
    [("OFFLINE", 0.0, "not answering"), ("ONLINE", 0.0, "up"), ("OFFLINE", None, "up"), ("", 0.0, "up")],
)
def test_a_worker_that_prefect_does_not_hear_of_any_more_is_not_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str, noted: float | None, shown: str
) -> None:
    """A worker that was started just now has not told of itself yet; an earlier one of its name did long ago."""
    me = Started(os.getpid(), process_started(os.getpid()) or "")
    services = made(tmp_path, **{"worker-kgqa-cpu": me, "keeper": me})
    own = {"name": worker_name(services, "kgqa-cpu") if status else "one more", "status": status}
    with Replies(json.dumps([{"name": "another", "status": "OFFLINE"}, own]).encode()).served() as address:
        services = replace(services, own=(), prefect=f"{address}/api", mlflow=address)
        services.write()
        if noted is not None:
            os.utime(services_file(tmp_path), (noted, noted))
        print_services(services, fresh=False, as_json=False)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "worker-kgqa-cpu" in line]
    assert f" {shown} " in line
