"""Processes are known by id and start time: what was left behind is ended, and nothing else ever is."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kgqa_core.errors import KgqaError
from tasks import leftovers
from tasks.leftovers import (
    ProcessRecord,
    end_leftovers,
    end_process,
    exclusive_lock,
    forget_process,
    process_started,
    write_process_record,
)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def orphan(folder: Path, process: subprocess.Popen[bytes]) -> ProcessRecord:
    """Write down ``process`` as left behind by an owner that is gone."""
    record = write_process_record(folder, process.pid, folder / "child.log")
    ours = record.path(folder).read_text()
    record.path(folder).write_text(ours.replace(f'"owner_started": "{record.owner_started}"', '"owner_started": "x"'))
    (folder / "child.log").write_text("its last words")
    return replace(record, owner_started="x")


def test_a_running_process_keeps_its_start_and_an_ended_one_has_none(child: subprocess.Popen[bytes]) -> None:
    started = process_started(child.pid)
    assert started is not None
    assert process_started(child.pid) == started
    child.kill()
    deadline = time.monotonic() + 5
    while process_started(child.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process_started(child.pid) is None  # a zombie: nobody has waited for it yet
    child.wait()
    assert process_started(child.pid) is None


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
def test_the_name_of_a_program_does_not_confuse_its_start_time(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    sleep = shutil.which("sleep")
    assert sleep is not None
    odd = tmp_path / "x) S 1 (y"
    odd.symlink_to(sleep)
    process = subprocess.Popen([str(odd), "60"])
    try:
        time.sleep(0.1)  # until the program is loaded, the process has our name
        started, before = process_started(process.pid), process_started(child.pid)
        assert started is not None
        assert before is not None
        boot, _, ticks = started.rpartition(":")
        assert before.startswith(boot)
        assert int(ticks) >= int(before.rpartition(":")[2])
    finally:
        process.kill()
        process.wait()


def test_a_child_whose_owner_is_gone_is_ended_and_forgotten(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    orphan(tmp_path, child)
    threading.Thread(target=child.wait).start()  # as init does: else it stays a zombie
    assert end_leftovers(tmp_path) == [child.pid]
    assert child.wait() == -signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_a_child_whose_owner_lives_is_left_alone(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    record = write_process_record(tmp_path, child.pid, tmp_path / "child.log")
    assert record.owner_pid == os.getpid()
    assert end_leftovers(tmp_path) == []
    assert child.poll() is None
    assert record.path(tmp_path).exists()
    forget_process(tmp_path, record)
    assert list(tmp_path.iterdir()) == []


def test_a_recycled_process_id_is_never_ended(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    record = orphan(tmp_path, child)
    path = record.path(tmp_path)
    path.write_text(path.read_text().replace(record.started, "an earlier process of the same id"))
    assert end_leftovers(tmp_path) == []
    assert child.poll() is None
    assert not path.exists()
    end_process(child.pid, "an earlier process of the same id")
    assert child.poll() is None


def test_a_process_of_another_machine_on_a_shared_home_is_left_alone(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    record = orphan(tmp_path, child)
    path = record.path(tmp_path)
    path.write_text(path.read_text().replace(f'"host": "{platform.node()}"', '"host": "elsewhere"'))
    assert end_leftovers(tmp_path) == []
    assert child.poll() is None
    assert path.exists()


def test_a_child_that_does_not_listen_is_ended_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "GRACE_SECONDS", 0.3)
    deaf = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        orphan(tmp_path, process)
        assert end_leftovers(tmp_path) == [process.pid]
        assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
def test_a_damaged_record_is_removed(tmp_path: Path, content: str) -> None:
    (tmp_path / "process-1.json").write_text(content)
    assert end_leftovers(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_held_by_one_at_a_time_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        exclusive_lock(path, timeout=0),
        pytest.raises(KgqaError, match="Another run has held"),
        exclusive_lock(path, timeout=0.1),
    ):
        pytest.fail("two at once")
    with exclusive_lock(path, timeout=0):
        pass


def test_a_lock_is_free_again_when_its_owner_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = (
        "import sys, time; from pathlib import Path; from tasks.leftovers import exclusive_lock\n"
        "with exclusive_lock(Path(sys.argv[1]), timeout=0): print(flush=True); time.sleep(60)"
    )
    root = str(Path(leftovers.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}
    ) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        with pytest.raises(KgqaError), exclusive_lock(path, timeout=0):
            pytest.fail("two at once")
        owner.kill()
        owner.wait()
    with exclusive_lock(path, timeout=0):
        pass
