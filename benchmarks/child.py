"""One call in a process of its own, and all that the process cost, from its start to its end.

``python -m benchmarks.child MODULE:FUNCTION JSON`` is what is started: it prints what the call returned.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measure import PROJECT, peak_megabytes


@dataclass(frozen=True, slots=True)
class Child:
    """What a process returned and used; imports and the start of Python count."""

    result: Any
    cpu: float  # seconds, all threads and its own children
    wall: float  # seconds
    peak: float  # MB resident (VmHWM), memory-mapped pages that were read included


def run_child(call: Callable[..., Any], *, environment: dict[str, str] | None = None, **arguments: Any) -> Child:
    """Call a function of a module with arguments that JSON can say; paths arrive as text.

    Raises:
        SystemExit: it failed; what it wrote to standard error is shown.
    """
    words = [f"{call.__module__}:{call.__qualname__}", json.dumps(arguments, default=str)]
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryFile() as out:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.child", *words],
            stdout=out,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode()
    if process.returncode:
        raise SystemExit(f"{words[0]} failed with {process.returncode}")
    found = json.loads(text.splitlines()[-1])
    return Child(found["result"], used.ru_utime + used.ru_stime, wall, found["peak"])


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder; files that are gone when looked at count nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total


def main() -> None:
    """Make the call that the command line says."""
    module, _, function = sys.argv[1].partition(":")
    result = getattr(import_module(module), function)(**json.loads(sys.argv[2]))
    print(json.dumps({"result": result, "peak": peak_megabytes()}))


if __name__ == "__main__":
    main()
