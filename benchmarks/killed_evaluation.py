"""An evaluation killed at random points and resumed: the same table, and no completed call paid twice."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import PROJECT, write_section
from benchmarks.places import RUN, write_places
from kgqa_core.config_file import read_config
from kgqa_core.run.pipeline import Pipeline

SECONDS = 0.01  # that a call takes
SPREAD = 0.3  # seconds from a call to the kill at most: what is between calls, and after them, is hit too
COMPARED = ("predictions.parquet", "calls.parquet", "scores.json", "comparison.json", "comparison.md")
"""Files that must be equal to the byte. Left out is what tells of the run itself: ``tracking.json`` has times, and
``usage.parquet`` which calls were paid and which remembered."""
MADE_ANEW = ("system", "comparison")  # stages that are not copied
LEDGER = "ledger.txt"
LIMIT = 600.0  # seconds that a run may take
SYSTEMS = """\
systems:
  answered_by: [oracle, random]
  chunk: 8
  oracle: {error: 0.1}
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done."""

    kills: int
    systems: str  # as systems.run has them


FULL = Size(10, "[etd,dualr,rog,eperm,fiske,direct,cot,tog,explorer,ours]")
SMALL = Size(2, "[rog,tog]")


@dataclass(frozen=True, slots=True)
class Found:
    """What came of an evaluation that was killed again and again."""

    kills: int  # that found the evaluation at work
    half_made: int  # of them, those that left a system half made
    calls: int  # that the evaluation needs
    paid: int  # that were paid
    paid_again: int  # that had been paid before, in flight when a kill came
    kept_and_paid_again: int  # that the store held at a kill, and that were paid nevertheless
    differing: tuple[str, ...]  # files of ``COMPARED`` that are not those of an undisturbed evaluation
    compared: int  # files that were compared


def run(home: Path, size: Size = FULL) -> None:
    """Kill evaluations and write the section."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_places(folder)
        (folder / "places.yaml").write_text(RUN + SYSTEMS, encoding="utf-8")
        conf, undisturbed, settings = folder / "places.yaml", folder / "undisturbed", [f"systems.run={size.systems}"]
        undisturbed.mkdir()
        evaluate(conf, undisturbed, undisturbed / LEDGER, settings)
        found = kill_and_resume(conf, undisturbed, folder, settings=settings, kills=size.kills, seed=0)
    write_section("An evaluation that is killed", report(found, size), "python -m benchmarks killed_evaluation")


def report(found: Found, size: Size) -> str:
    """Return the section."""
    rows = [
        ("kills that found it at work (asked: 10)", f"{found.kills}"),
        ("of them, kills that left a system half made", f"{found.half_made}"),
        ("calls that the evaluation needs", f"{found.calls:,}"),
        ("calls paid, all runs together", f"{found.paid:,}"),
        ("paid before, the answer not yet kept when the kill came", f"{found.paid_again}"),
        ("**kept at a kill, and paid again** (asked: 0)", f"**{found.kept_and_paid_again}**"),
        (f"**files that differ** (asked: 0), of {found.compared}", f"**{len(found.differing)}**"),
    ]
    note = (
        f"`{size.systems}` on a graph of towns and rivers, chunks of 8 questions, an oracle with error 0.1 and random "
        f"picks; each call takes {1000 * SECONDS:.0f} ms and is handed on by itself. SIGKILL up to {SPREAD} s after a "
        "call drawn at random, one from each tenth of the evaluation; then it is run again until it ends. Compared to "
        "the byte with an undisturbed evaluation: predictions, calls, scores and the comparison; not what tells of the "
        "run itself: times, and which calls were paid and which remembered."
    )
    table = "\n".join(["| what | count |", "|---|---:|", *(f"| {name} | {value} |" for name, value in rows)])
    return f"{note}\n\n{table}"


def evaluate(conf: Path, home: Path, ledger: Path, settings: Sequence[str] = ()) -> None:
    """Evaluate without being disturbed, and without waiting for answers.

    Raises:
        subprocess.CalledProcessError: it failed; what it said is on standard error.
    """
    subprocess.run(command_of(conf, ledger, 0.0, settings), env=environment(home), check=True, timeout=LIMIT)


def command_of(conf: Path, ledger: Path, seconds: float, settings: Sequence[str]) -> list[str]:
    """Return the command of one evaluation."""
    return [sys.executable, "-m", "benchmarks.paid_evaluation", str(ledger), str(seconds), str(conf), *settings]


def environment(home: Path) -> dict[str, str]:
    """Return the variables of a process whose artifacts are in ``home``."""
    return os.environ | {"PYTHONPATH": str(PROJECT), "KGQA_HOME": str(home)}


def copy_base(home: Path, target: Path) -> None:
    """Copy all that stands before the systems; no call is remembered there."""
    left_out = {home / "artifacts": set(MADE_ANEW), home / "cache": {"calls"}}
    shutil.copytree(home, target, ignore=lambda folder, names: left_out.get(Path(folder), set()).intersection(names))


def kill_and_resume(
    conf: Path, undisturbed: Path, scratch: Path, *, settings: Sequence[str] = (), kills: int, seed: int
) -> Found:
    """Evaluate in another home with kills; return how that compares.

    Args:
        conf: of the run.
        undisturbed: the home of an evaluation that nobody killed, with its ledger ``ledger.txt``.
        scratch: where the other home goes.
        settings: overrides of the configuration.
        kills: how many.
        seed: of their points.

    Raises:
        subprocess.CalledProcessError: the last run, which nobody kills, failed.
    """
    home, ledger, calls = scratch / "killed", scratch / "killed.txt", len(entries(undisturbed / LEDGER))
    copy_base(undisturbed, home)
    chance, at_work, half_made = random.Random(seed), 0, 0
    points: list[tuple[int, set[str]]] = []  # entries of the ledger at a kill, and what was kept then
    for number in range(kills):
        after = int(calls * (number + chance.random()) / kills)
        with subprocess.Popen(command_of(conf, ledger, SECONDS, settings), env=environment(home)) as run:
            wait_for(run, ledger, after)
            time.sleep(chance.uniform(0, SPREAD))
            at_work += run.poll() is None
            run.kill()
        half_made += any((home / "artifacts").glob("system/*.work"))
        points.append((len(entries(ledger)), kept_calls(home)))
    evaluate(conf, home, ledger, settings)
    paid = entries(ledger)
    return Found(
        kills=at_work,
        half_made=half_made,
        calls=calls,
        paid=len(paid),
        paid_again=sum(count - 1 for count in Counter(paid).values()),
        kept_and_paid_again=len({key for before, kept in points for key in paid[before:] if key in kept}),
        differing=differing(conf, (undisturbed, home), settings),
        compared=len(files_of(conf, home, settings)),
    )


def wait_for(run: subprocess.Popen[bytes], ledger: Path, count: int) -> None:
    """Return once a run has done something, and the ledger has ``count`` entries, or the run has ended."""
    before, until = len(entries(ledger)), time.monotonic() + LIMIT
    while run.poll() is None and len(entries(ledger)) < max(count, before + 1) and time.monotonic() < until:
        time.sleep(0.002)


def entries(ledger: Path) -> list[str]:
    """Return the keys of all calls paid, in order."""
    return ledger.read_text(encoding="utf-8").splitlines() if ledger.exists() else []


def kept_calls(home: Path) -> set[str]:
    """Return the keys that the call store of a home holds."""
    kept: set[str] = set()
    for path in (home / "cache" / "calls").glob("calls-*.sqlite"):
        with closing(sqlite3.connect(path)) as database:
            kept.update(key for (key,) in database.execute("SELECT key FROM calls"))
    return kept


def files_of(conf: Path, home: Path, settings: Sequence[str]) -> dict[str, Path]:
    """Return the files to compare, by stage and name."""
    pipeline = Pipeline(read_config(conf, [*settings, f"runtime.home={home}"]))
    stages = {key: pipeline.artifact(key).folder for key, spec in pipeline.specs.items() if spec.stage in MADE_ANEW}
    files = {f"{key}/{name}": folder / name for key, folder in stages.items() for name in COMPARED}
    return {name: path for name, path in files.items() if path.exists()}


def differing(conf: Path, homes: Sequence[Path], settings: Sequence[str]) -> tuple[str, ...]:
    """Return the files that are not the same to the byte in both homes."""
    first, second = (files_of(conf, home, settings) for home in homes)
    equal = {name for name in first.keys() & second.keys() if first[name].read_bytes() == second[name].read_bytes()}
    return tuple(sorted((first.keys() | second.keys()) - equal))
