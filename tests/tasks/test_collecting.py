"""A server whose event loop collects no garbage does not wait for its own writers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The main thread holds the lock of a database that another connection waits for. Its garbage is a cursor of that one.
DRIVER = """\
import gc, sqlite3, sys, threading, time
from tasks.collecting import collect_apart

gc.disable()
path, apart = sys.argv[1], sys.argv[2] == "apart"
writing, waiting = (
    sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False) for _ in range(2)
)
knot = [waiting.execute("SELECT 1")]
knot.append(knot)
del knot
writing.execute("BEGIN IMMEDIATE")
threading.Thread(target=waiting.execute, args=("BEGIN IMMEDIATE",), daemon=True).start()
time.sleep(0.5)
collect_apart() if apart else gc.enable()
began = time.monotonic()
while time.monotonic() - began < 1:
    kept = [[] for _ in range(2000)]
    time.sleep(0.01)
writing.execute("COMMIT")
print(time.monotonic() - began)
"""


def seconds_until_committed(folder: Path, how: str) -> float:
    command = [sys.executable, "-c", DRIVER, str(folder / f"{how}.db"), how]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


@pytest.mark.slow
def test_who_holds_the_lock_goes_on_while_its_garbage_waits_for_another(tmp_path: Path) -> None:
    assert seconds_until_committed(tmp_path, "apart") < 3
    assert seconds_until_committed(tmp_path, "as Python does") > 4  # else this shows nothing
