"""Which runs the keeper takes for lost. Prefect is a stand-in here: tests/flows/test_up.py."""

from __future__ import annotations

import base64
import errno
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kgqa_core.errors import KgqaError
from tasks import keeper
from tasks.keeper import PENDING_SECONDS, TRIES, Keeper
from tasks.services import Services, command_of, read_services
from tests.processes import Replies

GONE = 2**22 + 1  # above the largest id that a process may have


class StandIn(Keeper):
    """A keeper whose Prefect answers with the runs that it is given."""

    def __init__(self, home: Path, **run: Any) -> None:
        known = {name: "x" for name in ("token", "host", "prefect", "mlflow", "deployments")}
        super().__init__(Services(home=str(home), own=(), pools=("kgqa-cpu",), **known))
        self.runs = [{"id": "r1", "name": "drill", "state": {"id": "s1", "type": "PENDING"}, **run}]
        self.scheduled: list[str] = []

    def _ask(self, what: str, body: Any) -> Any:
        if what.endswith("set_state"):
            self.scheduled.append(what)
        return self.runs if what == "flow_runs/filter" else []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The keeper's clock, which a test moves."""
    fake = SimpleNamespace(now=1000.0)
    fake.monotonic = lambda: fake.now
    monkeypatch.setattr(keeper, "time", fake)
    return fake


def test_a_jump_of_the_clock_takes_no_run_from_its_worker(tmp_path: Path, clock: SimpleNamespace) -> None:
    kept = StandIn(tmp_path, infrastructure_pid=None)  # by the wall clock it has been waiting for years
    for _ in range(3):
        kept.end_lost_runs()
        clock.now += PENDING_SECONDS / 3
    assert kept.scheduled == []
    clock.now += 1
    kept.end_lost_runs()
    assert kept.scheduled == ["flow_runs/r1/set_state"]


@pytest.mark.slow
def test_a_fresh_home_whose_servers_are_somebody_elses_says_why_nothing_could_be_deployed(tmp_path: Path) -> None:
    """No service of ours had a log before."""
    kept = StandIn(tmp_path)
    with pytest.raises(KgqaError, match="x cannot be deployed"):
        kept._deploy()
    assert (tmp_path / "logs" / "deployments.log").read_text()


def test_a_run_in_a_new_state_begins_to_wait_anew(tmp_path: Path, clock: SimpleNamespace) -> None:
    kept = StandIn(tmp_path, infrastructure_pid=None)
    kept.end_lost_runs()
    clock.now += PENDING_SECONDS + 1
    kept.runs[0]["state"] = {"id": "s2", "type": "PENDING"}
    kept.end_lost_runs()
    assert kept.scheduled == []


@pytest.mark.parametrize("state", ["RUNNING", "CANCELLING"])
def test_a_run_at_work_whose_process_was_not_noted_is_not_started_a_second_time(
    tmp_path: Path, clock: SimpleNamespace, state: str
) -> None:
    kept = StandIn(tmp_path, infrastructure_pid=None, state={"id": "s1", "type": state})
    for _ in range(3):
        kept.end_lost_runs()
        clock.now += PENDING_SECONDS
    assert kept.scheduled == []


@pytest.mark.parametrize(("pid", "looks", "crashed"), [(GONE, 1, []), (GONE, 2, ["r1"]), ("elsewhere", 2, [])])
def test_a_run_whose_process_is_gone_at_two_looks_has_crashed(
    tmp_path: Path,
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    pid: object,
    looks: int,
    crashed: list[str],
) -> None:
    told: list[str] = []
    monkeypatch.setattr(keeper, "mark_crashed", told.append)
    kept = StandIn(tmp_path, infrastructure_pid=str(pid))
    for _ in range(looks):
        kept.end_lost_runs()
        clock.now += 15
    assert told == crashed


def test_a_run_that_its_worker_could_not_start_is_given_to_it_again_a_few_times(tmp_path: Path) -> None:
    kept, ended = StandIn(tmp_path), {"id": "s1", "message": "Its process was killed"}
    failed = {"id": "s2", "message": "Failed to submit flow run to infrastructure: ReadTimeout: "}
    kept.runs = [{"id": "r2", "name": "drill", "state": state} for state in (ended, failed)]
    for _ in range(TRIES + 2):
        kept.give_again()
    assert kept.scheduled == ["flow_runs/r2/set_state"] * TRIES


@pytest.mark.parametrize("variable", [False, True])
def test_a_server_with_a_password_is_asked_with_it_and_the_password_is_in_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: bool
) -> None:
    kept, replies = StandIn(tmp_path), Replies()
    if variable:
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", "ann:s/cret")
    with replies.served() as address:
        user = "" if variable else "ann:s%2Fcret@"
        kept.services = replace(kept.services, prefect=f"{address.replace('//', f'//{user}')}/api")
        assert Keeper._ask(kept, "flow_runs/filter", {}) == []
    ((path, headers, _),) = replies.asked
    assert path == "/api/flow_runs/filter"
    assert headers["Authorization"] == f"Basic {base64.b64encode(b'ann:s/cret').decode()}"
    for place in ("127.0.0.1/api", "127.0.0.1:9/api"):
        kept.services = replace(kept.services, prefect=f"http://ann:s3cret@{place}")
        monkeypatch.setattr(kept, "_ask", lambda *of: Keeper._ask(kept, *of))
        kept._attempt(kept.give_again)
    kept._attempt(Mock(__name__="poll", side_effect=KgqaError(kept.services.prefect)))
    assert caplog.text.count("cannot look after services") == 3
    assert "http://***@127.0.0.1:9/api" in caplog.text and "s3cret" not in caplog.text


@pytest.mark.parametrize("code", [0, 1])
def test_what_prefect_says_of_deployments_is_kept_without_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    said = "View Deployment in UI: https://ann:s3cret@prefect.example/deployments\n"  # as `prefect deploy` does
    done = SimpleNamespace(returncode=code, stdout=said, stderr="")
    monkeypatch.setattr(keeper, "subprocess", SimpleNamespace(run=lambda *_, **__: done, DEVNULL=None))
    kept = StandIn(tmp_path)
    with suppress(KgqaError) if code == 0 else pytest.raises(KgqaError, match=r"https://\*\*\*@prefect") as raised:
        kept._deploy()
    assert code == 0 or "s3cret" not in str(raised)
    assert "s3cret" not in kept.services.log("deployments").read_text(encoding="utf-8")


def test_what_the_keeper_starts_asks_no_proxy_for_servers_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY", "PREFECT_API_URL", "PREFECT_LOGGING_LEVEL", "PREFECT_HOME"):
        monkeypatch.setenv(name, "")  # and back at the end
    kept = StandIn(tmp_path)
    replace(kept.services, prefect="http://127.0.0.1:4200/api", mlflow="https://mlflow.example").write()

    monkeypatch.setattr(Keeper, "start_all", Mock(side_effect=KgqaError("enough")))
    with pytest.raises(SystemExit, match="enough"):
        keeper.main(tmp_path)
    worker = command_of(kept.services, "worker-kgqa-cpu")[1]
    assert worker["no_proxy"] == worker["NO_PROXY"] == "127.0.0.1"


def test_the_keepers_own_log_begins_anew_when_it_is_large(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.sleep = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(keeper, "MAX_LOG", 7)
    kept = StandIn(tmp_path)
    log = kept.services.log("keeper")
    log.parent.mkdir(parents=True)
    log.write_text("Prefect is away, again")
    with pytest.raises(KeyboardInterrupt):
        kept.keep()
    assert (log.read_text(), log.with_name("keeper.log.1").read_text()) == ("", "Prefect is away, again")


@pytest.mark.parametrize("lacking", ["process", "note"])
def test_a_full_disk_ends_no_keeper_and_what_ended_starts_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace, lacking: str
) -> None:
    kept = StandIn(tmp_path)
    kept.services = replace(kept.services, deployments=str(tmp_path / "none.yaml"))
    disk, started = SimpleNamespace(full=False), list[str]()

    def start(services: Services, name: str) -> Any:
        if disk.full and lacking == "process":
            raise OSError(errno.ENOSPC, "no space left on device")
        started.append(name)
        code = 1 if len(started) == 1 else None
        return SimpleNamespace(pid=GONE + len(started), returncode=code, poll=lambda: code)

    def write(services: Services) -> None:
        if disk.full:
            raise OSError(errno.ENOSPC, "no space left on device")
        write_services(services)

    def sleep(seconds: float) -> None:
        clock.now += 30
        disk.full = clock.now < 1100
        if clock.now > 1300:
            raise KeyboardInterrupt

    write_services = Services.write
    clock.sleep = sleep
    monkeypatch.setattr(keeper, "start", start)
    monkeypatch.setattr(keeper, "end_others", lambda *_, **__: None)
    monkeypatch.setattr(Services, "write", write)
    kept.start("worker-kgqa-cpu")
    disk.full = True
    with pytest.raises(KeyboardInterrupt):
        kept.keep()
    assert started == ["worker-kgqa-cpu"] * 2
    noted = read_services(tmp_path)
    assert noted is not None and noted.processes["worker-kgqa-cpu"].pid == GONE + 2


@pytest.mark.parametrize("name", ["mlflow", "worker-kgqa-cpu"])
@pytest.mark.parametrize(("silent", "kills"), [(5, 0), (6, 1), (11, 1), (12, 2)])
def test_what_runs_and_answers_nothing_for_minutes_is_killed_to_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace, name: str, silent: int, kills: int
) -> None:
    kept, killed = StandIn(tmp_path), list[str]()
    kept.services = replace(kept.services, own=("mlflow",))
    process: Any = SimpleNamespace(poll=lambda: None, kill=lambda: killed.append(name))
    kept._children[name], answers = process, iter([False] * silent)

    def sleep(seconds: float) -> None:
        clock.now += 60
        if clock.now > 1000 + 60 * (silent + 5):
            raise KeyboardInterrupt

    clock.sleep = sleep
    # Under load an answer takes 20 s.
    monkeypatch.setattr(keeper, "healthy", lambda _, name, seconds=5.0: seconds > 20 and next(answers, True))
    with pytest.raises(KeyboardInterrupt):
        kept.keep()
    assert len(killed) == kills
