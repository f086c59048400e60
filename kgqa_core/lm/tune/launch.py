"""Tuning in several processes of this machine, one per GPU.

What is to be done goes into a JSON file; points and progress come back as lines of another, and so does the report or
the error. ``torchrun -m kgqa_core.lm.tune JOB`` does such a job too, on one machine or several.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from kgqa_core import errors
from kgqa_core.errors import KgqaError, shorten
from kgqa_core.lm.tune.processes import MEETING
from kgqa_core.lm.tune.types import Phase, TuneReport, TuneRun, TuneSettings

JOB, TOLD, LOG = "job.json", "told.jsonl", "log-{rank}.txt"
POLL = 0.1  # seconds between two looks at what was told
_PATHS = ("out", "journal")


def tune_in_processes(
    base: Path,
    examples: Path | Sequence[Path],
    settings: TuneSettings,
    run: TuneRun,
    *,
    processes: int,
) -> TuneReport:
    """Do what ``tune`` does in ``processes`` processes of this machine; on GPUs, each takes one.

    Raises:
        KgqaError: what ``tune`` raises in any of them, or the last lines of one that ended otherwise.
    """
    files = [examples] if isinstance(examples, Path) else list(examples)
    with TemporaryDirectory(prefix="kgqa-tune-") as name:
        folder = Path(name)
        kept = replace(run, journal=run.journal or folder / "journal")
        write_job(folder / JOB, base, files, settings, kept)
        started: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(processes):
                started.append(_start(folder, rank, processes, run.threads))
            for line in _lines(folder / TOLD, started):
                if report := _heed(line, run):
                    for process in started:
                        process.wait()
                    return report
        finally:
            codes = [process.poll() for process in started]
            for process in started:
                process.kill()
                process.wait()
        failed = next((rank for rank, code in enumerate(codes) if code), 0)
        tail = (folder / LOG.format(rank=failed)).read_text(encoding="utf-8", errors="replace").strip()[-1000:]
        raise KgqaError(f"tuning process {failed} of {processes} ended with {codes[failed]}; its last words: {tail}")


def write_job(file: Path, base: Path, examples: Sequence[Path], settings: TuneSettings, run: TuneRun) -> None:
    """Write what ``python -m kgqa_core.lm.tune`` does."""
    how = {one.name: getattr(run, one.name) for one in fields(run) if one.name not in ("on_point", "progress")}
    job = {
        "base": str(base),
        "examples": [str(one) for one in examples],
        "settings": asdict(settings),
        "run": {name: str(value) if name in _PATHS and value is not None else value for name, value in how.items()},
    }
    file.write_text(json.dumps(job, default=dict), encoding="utf-8")


def do_job(file: Path, owner: int | None = None) -> None:
    """Tune as ``write_job`` wrote, in this process and the others of its group; the first one tells how it goes.

    Args:
        file: the job.
        owner: process that started this one, without which it ends: nobody would take what comes of it.
    """
    from kgqa_core.lm.tune.run import tune

    job = json.loads(file.read_text(encoding="utf-8"))
    settings = _settings(job["settings"])
    how: dict[str, Any] = {
        name: Path(value) if name in _PATHS and value is not None else value for name, value in job["run"].items()
    }
    with (file.parent / TOLD).open("a", encoding="utf-8") as stream:

        def tell(**said: Any) -> None:
            stream.write(json.dumps(said, default=str) + "\n")
            stream.flush()

        def progress(*done: int) -> None:
            if owner is not None and os.getppid() != owner:
                raise SystemExit(f"process {owner}, which started this tuning, is gone")
            tell(progress=done)

        run = TuneRun(**how, on_point=lambda *point: tell(point=point), progress=progress)
        try:
            report = tune(Path(job["base"]), [Path(one) for one in job["examples"]], settings, run)
        except KgqaError as problem:
            tell(error=[type(problem).__name__, str(problem)])
            raise
        if os.environ.get("RANK", "0") == "0":
            tell(report=asdict(report))


def _settings(told: Mapping[str, Any]) -> TuneSettings:
    phases = tuple(Phase(**phase) for phase in told["phases"])
    texts = {name: tuple(value) for name, value in told.items() if isinstance(value, list)}
    return TuneSettings(**{**told, **texts, "phases": phases})


def _start(folder: Path, rank: int, processes: int, threads: int) -> subprocess.Popen[bytes]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    told = {name: str(value) for name, value in (place | {"OMP_NUM_THREADS": threads}).items()}
    environment = {**os.environ, **told, MEETING: str(folder / "meeting")}
    command = [sys.executable, "-m", "kgqa_core.lm.tune", str(folder / JOB), str(os.getpid())]
    with (folder / LOG.format(rank=rank)).open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def _lines(file: Path, started: Sequence[subprocess.Popen[bytes]]) -> Iterator[str]:
    """Yield lines as they are written, until all processes have ended or one has failed, and there are no more."""
    file.touch()
    with file.open(encoding="utf-8") as stream:
        while True:
            codes = [process.poll() for process in started]
            over = None not in codes or any(codes)
            yield from _whole_lines(stream)
            if over:
                return
            time.sleep(POLL)


def _whole_lines(stream: TextIO) -> Iterator[str]:
    while True:
        place = stream.tell()
        line = stream.readline()
        if not line.endswith("\n"):
            stream.seek(place)
            return
        yield line


def _heed(line: str, run: TuneRun) -> TuneReport | None:
    """Pass on what was told; return the report where it is one."""
    told = json.loads(line)
    if "point" in told:
        run.on_point(*told["point"])
    elif "progress" in told:
        run.progress(*told["progress"])
    elif "error" in told:
        kind, message = told["error"]
        raise getattr(errors, kind, KgqaError)(message)
    elif "report" in told:
        return TuneReport(**{**told["report"], "folder": Path(told["report"]["folder"])})
    else:
        raise KgqaError(f"a tuning process told {shorten(line)}")
    return None
