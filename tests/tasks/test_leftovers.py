"""Processes are known by id and start time: what was left behind is ended, and nothing else ever is."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks import leftovers
from tasks.leftovers import ProcessRecord, end_leftovers, end_process, process_started, write_process_record

EARLIER = "an earlier process of the same id"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def orphan(folder: Path, process: subprocess.Popen[bytes], **changes: Any) -> ProcessRecord:
    """Write down ``process`` as left behind by an owner that is gone."""
    record = write_process_record(folder, process.pid, folder / "child.log")
    path = record.path(folder)
    path.write_text(json.dumps({**json.loads(path.read_text()), "owner_started": "x", **changes}))
    (folder / "child.log").write_text("its last words")
    return record


def test_a_running_process_keeps_its_start_and_an_ended_one_has_none(child: subprocess.Popen[bytes]) -> None:
    assert process_started(child.pid) == process_started(child.pid) is not None
    child.kill()
    deadline = time.monotonic() + 5
    while process_started(child.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process_started(child.pid) is None  # a zombie: nobody has waited for it yet
    child.wait()
    assert process_started(child.pid) is None


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
def test_the_name_of_a_program_does_not_confuse_its_start_time(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    odd = tmp_path / "x) S 1 (y"
    odd.symlink_to(shutil.which("sleep") or "")
    with subprocess.Popen([str(odd), "60"]) as process:
        time.sleep(0.1)  # until the program is loaded, the process has our name
        started, before = process_started(process.pid), process_started(child.pid)
        process.kill()
    assert started is not None and before is not None
    boot, _, ticks = started.rpartition(":")
    assert before.startswith(boot)
    assert int(ticks) >= int(before.rpartition(":")[2])


def test_a_child_whose_owner_is_gone_is_ended_and_forgotten(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    orphan(tmp_path, child)
    threading.Thread(target=child.wait).start()  # as init does: else it stays a zombie
    assert end_leftovers(tmp_path) == [child.pid]
    assert child.wait() == -signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("changes", [{"owner_started": "ours"}, {"host": "elsewhere"}])
def test_a_child_is_left_alone_whose_owner_lives_or_is_on_another_machine_of_a_shared_home(
    tmp_path: Path, child: subprocess.Popen[bytes], changes: dict[str, str]
) -> None:
    ours = {"owner_pid": os.getpid(), "owner_started": process_started(os.getpid())}
    record = orphan(tmp_path, child, **(ours if "owner_started" in changes else changes))
    assert end_leftovers(tmp_path) == []
    assert child.poll() is None
    assert record.path(tmp_path).exists()


def test_a_recycled_process_id_is_never_ended(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    record = orphan(tmp_path, child, started=EARLIER)
    assert end_leftovers(tmp_path) == []
    end_process(child.pid, EARLIER)
    assert child.poll() is None
    assert not record.path(tmp_path).exists()


@pytest.mark.slow
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
