"""A disk that is really full or read-only: a small one of memory, which only root may mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from kgqa_core.artifacts import ArtifactStore, Recipe
from kgqa_core.errors import ArtifactError

SMALL_RECIPE, LARGE_RECIPE = (Recipe("graph", 1, {"size": size}, {}) for size in ("small", "large"))


def write_small(folder: Path) -> None:
    (folder / "some.txt").write_text("a few bytes", encoding="utf-8")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=256k", "kgqa-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


NOISE = np.random.default_rng(0).integers(0, 10**12, 10**5)
LARGE: dict[str, Callable[[Path], object]] = {
    "numpy": lambda folder: np.save(folder / "big.npy", NOISE),
    "pyarrow": lambda folder: pq.write_table(pa.table({"noise": NOISE}), folder / "big.parquet"),
    "safetensors": lambda folder: save_file({"weight": NOISE}, folder / "big.safetensors"),
    "duckdb": lambda folder: duckdb.sql(f"COPY (SELECT random() FROM range(100000)) TO '{folder}/big.parquet'"),
}


@pytest.mark.parametrize("library", LARGE)
def test_on_a_disk_that_is_really_full_or_read_only_finished_stages_stay_and_the_next_run_goes_on(
    small_disk: Path, library: str
) -> None:
    store = ArtifactStore(small_disk / "home" / "artifacts")
    store.build(SMALL_RECIPE, write_small)
    with pytest.raises(ArtifactError, match=r"The disk is full.*finished stages are kept"):
        store.build(LARGE_RECIPE, lambda folder: LARGE[library](folder) and None)
    left = {path.name for path in (store.root / "graph").iterdir() if path.suffix != ".lock"}
    assert left == {SMALL_RECIPE.fingerprint}
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert not store.build(SMALL_RECIPE, write_small)[1]
    with pytest.raises(ArtifactError, match=r"Read-only file system.*Check the permissions"):
        store.build(LARGE_RECIPE, write_small)
    subprocess.run(["mount", "-o", "remount,rw,size=8m", str(small_disk)], check=True)
    assert store.build(LARGE_RECIPE, lambda folder: LARGE[library](folder) and None)[1]
