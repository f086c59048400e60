"""Failure drills, for real: kill -9 at three points of a whole retraining, SIGTERM, and a dataset that is busy."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import Abort
from prefect.flow_engine import run_flow

from benchmarks.drills.__main__ import kills, sigterm
from benchmarks.drills.full_memory import full_memory
from benchmarks.drills.load import CLIENTS, load
from benchmarks.drills.runs import CONF
from tasks.runtime import dataset_lock, only_process, train_in_pool

pytestmark = pytest.mark.slow


def test_killed_at_any_point_a_retraining_ends_with_the_bytes_and_the_alias_of_one_that_was_not(
    tmp_path: Path, server: str
) -> None:
    found = kills(tmp_path, server, points=3)
    assert found["same"] == 3


def test_sigterm_stops_cleanly_and_the_next_run_goes_on(tmp_path: Path, server: str) -> None:
    found = sigterm(tmp_path, server, points=0)
    assert found["code"] == 143
    assert found["stages_kept"] >= 3


def test_under_load_and_over_a_restart_every_reply_is_that_of_the_release_that_it_names(tmp_path: Path) -> None:
    found = load(tmp_path, "", points=12)
    assert found["requests"] >= CLIENTS
    assert (found["wrong"], found["lost"], len(found["by_release"])) == (0, 0, 2)


def test_where_memory_is_really_full_batches_are_halved_or_one_message_says_what_to_lower(tmp_path: Path) -> None:
    found = full_memory(tmp_path, "", points=0)
    assert found["explorer, 40 MB"]["made"] and found["explorer, 40 MB"]["halvings"]
    assert not found["explorer, 3 MB"]["made"] and "explorer.edge_budget" in found["explorer, 3 MB"]["said"][0]


SAVER = """\
import re, resource, sys
from pathlib import Path
import safetensors.torch, torch
from kgqa_core.artifacts import write_tensors
(used,) = re.findall(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())
resource.setrlimit(resource.RLIMIT_DATA, (1024 * (int(used) + 512), resource.RLIM_INFINITY))
try:
    write_tensors(Path(sys.argv[1]), {"w": torch.zeros(2)})
except MemoryError:
    sys.exit(7)
"""


def test_tensors_for_which_memory_is_too_full_are_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    """Half a megabyte is left; the library asks for one, and aborts."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
    command = [sys.executable, "-c", SAVER, str(tmp_path / "w.safetensors")]
    assert subprocess.run(command, env=environment, check=False).returncode == 7
    assert not [*tmp_path.iterdir()]


def test_while_a_dataset_is_busy_a_second_retraining_is_cancelled_where_that_is_wanted(
    own_home: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", server)
    from flows.pipeline import retrain

    with dataset_lock(own_home, "drill", wait=True):
        state = retrain(CONF, when_busy="cancel", return_state=True)
    assert state.is_cancelled()
    assert "another run of the dataset drill is at work" in str(state.message)
    assert not (own_home / "artifacts").exists()


def test_a_second_process_of_a_run_that_is_at_work_ends_and_leaves_its_state(
    own_home: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", server)
    from flows.pipeline import retrain

    with get_client(sync_client=True) as client:
        run = client.create_flow_run(retrain, parameters={"config": CONF, "when_busy": "wait"})
        with only_process(own_home, str(run.id)), pytest.raises(Abort, match="at work in another process"):
            run_flow(retrain, flow_run=run, parameters={"config": CONF, "when_busy": "wait"})
        state = client.read_flow_run(run.id).state
    assert state is not None
    assert state.is_running()
    assert not (own_home / "artifacts").exists()


def test_without_a_live_worker_of_a_pool_nothing_is_trained_there(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", server)
    logging.getLogger("tasks").addHandler(caplog.handler)  # Prefect takes away those of the root
    train_in_pool(CONF, "kgqa-nobody", home=tmp_path)
    logging.getLogger("tasks").removeHandler(caplog.handler)
    assert "no worker of the pool kgqa-nobody is alive: the explorers are trained here" in caplog.text
