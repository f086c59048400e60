"""Systems that answer on Dask workers: the same answers as in this process, whoever is killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.killed_evaluation import copy_base
from kgqa_core.run import compare
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages import systems as answers
from kgqa_core.run.stages.systems import Chunk, answer_chunk

pytestmark = pytest.mark.slow

Configure = Callable[..., Pipeline]


def watched(chunk: Chunk, *, notes: Path, victim: int | None) -> int:
    """Answer a chunk on a worker, note what that worker is like, and end the worker at the victim, once."""
    mark = notes / "killed"
    if chunk.number == victim and not mark.exists():
        mark.touch()
        import kgqa_core.systems.tables as file

        write = file.write_answered

        def die(path: Path, *arguments: Any, **options: Any) -> None:
            write(path.with_name(f".{path.name}.partial"), *arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)

        file.write_answered = die  # all is answered, and the last part about to be there
    before = list(compare._cached.values())
    number = answer_chunk(chunk)
    (kept,) = compare._cached.values()
    torch = sys.modules.get("torch")
    seen = {"pid": os.getpid(), "opened": kept not in before, "threads": torch.get_num_threads() if torch else None}
    with (notes / f"{chunk.number}.json").open("a", encoding="utf-8") as stream:
        stream.write(f"{json.dumps(seen)}\n")
    return number


@pytest.mark.parametrize(("workers", "system", "victim"), [(1, "tog", None), (2, "etd", 1)])
def test_workers_answer_as_this_process_does_and_a_killed_one_changes_nothing(
    places: Configure,
    compared: Pipeline,
    build_stages: Callable[[Pipeline], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    system: str,
    victim: int | None,
) -> None:
    key, notes = f"system-{system}-oracle-seed0", tmp_path / "notes"
    notes.mkdir()
    copy_base(compared.home, tmp_path / "home")
    monkeypatch.setattr(answers, "answer_chunk", partial(watched, notes=notes, victim=victim))
    there = places(
        f"runtime.home={tmp_path / 'home'}",
        f"systems.run=[{system}]",
        "systems.chunk=3",
        "cluster.fan_out_questions=1",
        f"cluster.workers={workers}",
    )
    build_stages(there)
    for table in ("predictions", "calls"):
        files = (run.artifact(key).folder / f"{table}.parquet" for run in (compared, there))
        here, far = (pq.read_table(file) for file in files)
        assert here.drop_columns(["seconds"] if table == "predictions" else []).equals(
            far.drop_columns(["seconds"] if table == "predictions" else []), check_metadata=True
        )
    seen = [json.loads(line) for file in notes.glob("*.json") for line in file.read_text("utf-8").splitlines()]
    assert len(seen) >= 8  # chunks
    assert os.getpid() not in {one["pid"] for one in seen}
    assert sum(one["opened"] for one in seen) == len({one["pid"] for one in seen})  # once per process
    assert {one["threads"] for one in seen} == ({1} if system == "etd" else {None})
    assert (notes / "killed").exists() == (victim is not None)
