"""Runs of one dataset, one at a time; a training in another pool and who waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort, TerminationSignal
from prefect.states import Completed, Crashed, Pending, Running, Scheduled

from kgqa_core.errors import KgqaError
from tasks.outbox import Note, write
from tasks.runtime import dataset_lock, only_process, train_in_pool
from tests.processes import wait_for
from tests.tasks.published import a_run


def test_of_two_runs_of_a_dataset_the_second_waits_or_does_not_begin(tmp_path: Path) -> None:
    with dataset_lock(tmp_path, "a/b", wait=True):
        busy = pytest.raises(KgqaError, match="another run of the dataset a/b is at work")
        with busy, dataset_lock(tmp_path, "a/b", wait=False):
            pytest.fail("two at once")
        with dataset_lock(tmp_path, "other", wait=False), dataset_lock(tmp_path, "a b", wait=False):
            pass
        with dataset_lock(tmp_path, "知识", wait=False), dataset_lock(tmp_path, "数据", wait=False):
            pass
    with dataset_lock(tmp_path, "a/b", wait=False):
        pass


def test_who_waits_for_a_dataset_does_not_speak_of_artifacts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def wait() -> None:
        with dataset_lock(tmp_path, "towns", wait=True):
            pass

    with dataset_lock(tmp_path, "towns", wait=True):
        waiting = Thread(target=wait)
        waiting.start()
        wait_for(lambda: "waiting for another run, which holds" in caplog.text, "it says that it waits")
    waiting.join()
    assert not [said for said in caplog.messages if "artifact" in said.replace(str(tmp_path), "")]


class Pools:
    """A Prefect whose pool ``kgqa-gpu`` has one worker, and whose training is in each of some states in turn."""

    def __init__(self, *states: State[Any], lost_after: int = 9) -> None:
        self.states, self.lost_after = list(states), lost_after
        self.trained, self.set = list[str](), list[State[Any]]()

    def __enter__(self) -> Pools:
        return self

    def __exit__(self, *raised: object) -> None: ...
    def read_work_pool(self, name: str) -> None: ...
    def read_workers_for_work_pool(self, name: str) -> list[SimpleNamespace]:
        self.lost_after -= 1
        return [SimpleNamespace(status="OFFLINE" if self.lost_after < 0 else "ONLINE")]

    def read_deployment_by_name(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(work_pool_name="kgqa-gpu")

    def read_flow_run(self, run_id: str) -> SimpleNamespace:
        state = self.states.pop(0)
        return SimpleNamespace(id=run_id, name="otter", state=state, state_name=state.name)

    def set_flow_run_state(self, run_id: str, state: State[Any], force: bool = False) -> None:
        self.set.append(state)

    def run_deployment(self, name: str, **_: object) -> SimpleNamespace:
        self.trained.append(name)
        return self.read_flow_run("r1")

    def use(self, patch: pytest.MonkeyPatch) -> Pools:
        patch.setattr("prefect.get_client", lambda **_: self)
        patch.setattr("prefect.deployments.run_deployment", self.run_deployment)
        patch.setattr("tasks.runtime.POOL_SECONDS", 0.0)
        return self


def test_a_pool_that_the_deployment_is_not_of_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would wait in its own pool, where perhaps nobody works, and the retraining for it."""
    pools = Pools(Scheduled(), Running(), Completed()).use(monkeypatch)
    train_in_pool(tmp_path, "kgqa-gpu", home=tmp_path)
    assert pools.trained == ["train_explorer/train"]
    train_in_pool(tmp_path, "big-gpus", home=tmp_path)
    assert pools.trained == ["train_explorer/train"] and not pools.states
    assert "is of the pool kgqa-gpu, not of big-gpus: the explorers are trained here" in caplog.text


@pytest.mark.parametrize("waits", [Scheduled, Pending])
def test_a_training_that_no_worker_is_left_to_begin_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, waits: Callable[[], State[Any]]
) -> None:
    """Its worker ended since; the retraining would wait for ever, and the next ones for its lock of the dataset."""
    pools = Pools(waits(), waits(), waits(), lost_after=2).use(monkeypatch)
    train_in_pool(tmp_path, "kgqa-gpu", home=tmp_path)
    assert [state.name for state in pools.set] == ["Cancelled"] and not pools.states
    assert "no worker of the pool kgqa-gpu is alive: the explorers are trained here" in caplog.text


def test_a_training_whose_process_was_killed_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pools, told = Pools(Running(), Running(), Running(), lost_after=1).use(monkeypatch), list[str]()

    def mark(run_id: str) -> None:
        told.append(run_id)
        pools.states[:] = [Crashed()]

    monkeypatch.setattr("tasks.runtime.mark_crashed", mark)
    write(tmp_path, Note(replace(a_run(1), status="RUNNING"), tracked=False))  # its lock is free
    with pytest.raises(KgqaError, match="training in the pool kgqa-gpu ended as Crashed: see the flow run 'otter'"):
        train_in_pool(tmp_path, "kgqa-gpu", home=tmp_path)
    assert told == ["flow-run-1"]


def test_a_training_that_its_worker_could_not_start_is_waited_for_as_the_keeper_schedules_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_began = Crashed(message="Failed to submit flow run to infrastructure: ReadTimeout: ")
    pools = Pools(Scheduled(), *[never_began] * 3, Scheduled(), Running(), Completed()).use(monkeypatch)
    train_in_pool(tmp_path, "kgqa-gpu", home=tmp_path)
    assert not pools.states
    Pools(Scheduled(), *[never_began] * 99, lost_after=99).use(monkeypatch)  # by nobody
    with pytest.raises(KgqaError, match="training in the pool kgqa-gpu ended as Crashed"):
        train_in_pool(tmp_path, "kgqa-gpu", home=tmp_path)


def test_a_training_is_cancelled_with_who_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = Pools(Running()).use(monkeypatch)
    monkeypatch.setattr("tasks.outbox.end_killed", lambda *_: (_ for _ in ()).throw(TerminationSignal(signal=15)))
    with pytest.raises(TerminationSignal):
        train_in_pool(tmp_path, "kgqa-gpu", home=tmp_path)
    assert [state.name for state in pools.set] == ["Cancelling"]


def test_the_second_process_of_one_run_ends_without_a_state(tmp_path: Path) -> None:
    with only_process(tmp_path, "r1"):
        with pytest.raises(Abort, match="at work in another process"), only_process(tmp_path, "r1"):
            pass
        with only_process(tmp_path, "r2"):
            pass
    with only_process(tmp_path, "r1"):  # one that ended may be run again
        pass
