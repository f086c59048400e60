"""Run as a program: use a call cache in processes that are killed before, or inside, each of their system calls.

Prints JSON: per crash point what had been acknowledged before the kill and what a later process finds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kgqa_core.lm.call_cache import CallCache
from kgqa_core.lm.call_journal import Journal
from kgqa_core.lm.call_record import CallRecord

NAMES = ("open", "write", "fsync", "ftruncate", "replace", "rename", "unlink")  # of os; pathlib calls them too
HALF = "half"


def record(text: str) -> CallRecord:
    return CallRecord(text, -1.5, 3, True, 7, 0.25)


def prepare(folder: Path) -> None:
    """Leave a Parquet file of one process, and the journal of another that was killed, with a torn line."""
    with CallCache(folder, "model") as cache:
        cache.put({"old": record("old")})
        place = cache.folder
    journal = Journal(place)
    journal.append({"left": record("left")})
    with journal.path.open("ab") as stream:
        stream.write(b'{"key": "torn", "te')
    journal.close()


def scenario(folder: Path, acknowledge: Callable[[str], None]) -> None:
    with CallCache(folder, "model") as cache:
        for key in ("one", "two"):
            cache.put({key: record(key)})
            acknowledge(key)


def crash_at(point: int, how: str) -> None:
    """Kill this process at its ``point``-th system call; "half": after half of what it writes."""
    left = point

    def watch(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if how == HALF and name == "write":
                    call(args[0], bytes(args[1])[: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return watched

    for name in NAMES:
        setattr(os, name, watch(name, getattr(os, name)))


def in_child(work: Callable[[], None]) -> bool:
    """Run ``work`` in a process of its own; return whether it came to its end."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return status == 0


def acknowledged(handle: int, write: Callable[[int, bytes], int]) -> Callable[[str], None]:
    """Return a function that tells what is done, past any kill: ``write`` is not watched."""

    def tell(key: str) -> None:
        write(handle, f"{key}\n".encode())

    return tell


def killed_at(point: int, how: str, root: Path) -> tuple[bool, dict[str, Any]]:
    """Return whether the scenario came to its end before the point, and what is there afterwards."""
    folder, acks = root / f"{point}", root / f"{point}.acks"
    prepare(folder)
    handle = os.open(acks, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    tell = acknowledged(handle, os.write)

    def work() -> None:
        crash_at(point, how)
        scenario(folder, tell)

    done = in_child(work)
    os.close(handle)
    with CallCache(folder, "model") as cache:
        found = {key: kept.text for key in ("old", "left", "one", "two", "torn") if (kept := cache.get(key))}
        place, torn = cache.folder, cache.num_torn
    result = {
        "acknowledged": acks.read_text().split(),
        "found": found,
        "torn": torn,
        "rubble": len(list(place.glob(".*"))),
        "journals": len(list(place.glob("journal-*"))),
        "rows": len(CallCache(folder, "model")),
    }
    shutil.rmtree(folder)
    return done, result


def main(root: Path, how: str) -> None:
    results, done = [], False
    while not done:
        done, result = killed_at(len(results) + 1, how, root)
        results.append(result)
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
