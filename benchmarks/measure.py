"""Running a command and counting what it cost, and writing a section of docs/results.md."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgqa_core.run.pipeline import Pipeline

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "docs" / "results.md"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command printed and used, its child processes included."""

    output: str
    cpu_seconds: float
    wall_seconds: float


def kgqa_command(arguments: Sequence[str], home: Path) -> tuple[list[str], dict[str, Any]]:
    """Return how to start the installed ``kgqa`` command: its words, and the options of ``subprocess``."""
    program = Path(sys.executable).with_name("kgqa")
    return [str(program), *arguments], {"cwd": PROJECT, "env": {**os.environ, "KGQA_HOME": str(home)}}


def kgqa(arguments: Sequence[str], home: Path) -> Cost:
    """Run the installed ``kgqa`` command with its artifacts in ``home``; raises where it fails."""
    command, options = kgqa_command(arguments, home)
    before, started = os.times(), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(done.stdout, used, time.perf_counter() - started)


def kgqa_json(arguments: Sequence[str], home: Path) -> tuple[Any, Cost]:
    """Run ``kgqa … --json`` and return its document and cost."""
    cost = kgqa([*arguments, "--json"], home)
    return json.loads(cost.output), cost


def with_settings(settings: Sequence[str]) -> list[str]:
    """Return the options of ``kgqa`` that override settings of a run file."""
    return [word for setting in settings for word in ("--set", setting)]


def open_run(command: str, conf: str, home: Path, settings: Sequence[str] = ()) -> Pipeline:
    """Make what a run of real data lacks with ``kgqa COMMAND``, and open it; ``conf`` is relative to the project."""
    from kgqa_core.config_file import read_config  # here: what starts a process imports little, as that is timed
    from kgqa_core.run.pipeline import Pipeline

    data_folder()
    kgqa([command, conf, *with_settings(settings)], home)
    return Pipeline(read_config(PROJECT / conf, [*settings, f"runtime.home={home}"]))


@dataclass(slots=True)
class Clock:
    """CPU seconds by what they were spent on."""

    spent: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Count the seconds of a block."""
        started = time.process_time()
        yield
        self.spent[what] += time.process_time() - started


def cpu_seconds(call: Callable[[], object]) -> float:
    """Return the CPU seconds of one call, all threads of this process together."""
    started = time.process_time()
    call()
    return time.process_time() - started


def peak_megabytes(pid: int | str = "self") -> float:
    """Return the largest resident set that a process has had so far, in MB (VmHWM; not inherited, as ru_maxrss is).

    Raises:
        OSError, ValueError: there is no such process, or it has ended.
    """
    return memory_bytes("VmHWM", pid) / 1e6


def memory_bytes(kind: str, pid: int | str = "self") -> int:
    """Return the memory of a process as its status tells it: ``VmHWM``, ``VmRSS``, ``VmData``; raises as above."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(rf"^{kind}:\s+(\d+) kB$", status, re.MULTILINE)
    if found is None:
        raise ValueError(f"process {pid} has ended")
    return int(found.group(1)) * 1024


def data_folder() -> Path:
    """Return KGQA_DATA."""
    if not os.environ.get("KGQA_DATA"):
        raise SystemExit("make bench needs KGQA_DATA: the folder that holds metaqa/ and peer_predictions/")
    return Path(os.environ["KGQA_DATA"])


def describe_machine() -> str:
    """Return processor, cores and memory, the versions that matter, the commit, whether that is all, and the day."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    from importlib.metadata import version

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True).stdout.strip()

    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")  # sections are written there
    return (
        f"{model.group(1) if model else platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB; "
        f"Python {platform.python_version()}, torch {version('torch')}; commit {git('rev-parse', '--short', 'HEAD')}"
        f"{' with changes' if changes else ''}; "
        f"{time.strftime('%Y-%m-%d')}"
    )


def markdown(names: Sequence[str], rows: Iterable[Sequence[str]], num_left: int = 1) -> list[str]:
    """Return a table as lines of Markdown; its first ``num_left`` columns are to the left, figures to the right."""
    rule = "|" + "---|" * num_left + "---:|" * (len(names) - num_left)
    header, *lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (names, *rows))
    return [header, rule, *lines]


def write_section(title: str, body: str, command: str) -> None:
    """Replace (or add) one section of docs/results.md, which stays as it was where that fails."""
    from kgqa_core.artifacts import written_whole  # here, as above

    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else "# Results\n\nEvery figure comes from a run.\n"
    section = f"## {title}\n\n`{command}` on {describe_machine()}.\n\n{body.strip()}\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if not pattern.search(text):
        text = f"{text.rstrip()}\n\n## {title}\n"
    text = pattern.sub(lambda _: f"{section}\n", text)
    with written_whole(RESULTS) as file:
        file.write_text(text.rstrip() + "\n", encoding="utf-8")
