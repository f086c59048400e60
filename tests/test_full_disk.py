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

from kgqa_core.artifacts import ArtifactStore
from kgqa_core.errors import ArtifactError
from tests.test_artifacts import OTHER, RECIPE, entries, write_five


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
    "python": lambda folder: (folder / "big.txt").write_text("x" * 10**6),
    "safetensors": lambda folder: save_file({"weight": NOISE}, folder / "big.safetensors"),
    "duckdb": lambda folder: duckdb.sql(f"COPY (SELECT random() FROM range(100000)) TO '{folder}/big.parquet'"),
}


@pytest.mark.parametrize("library", LARGE)
def test_on_a_disk_that_is_really_full_finished_stages_stay_and_the_next_run_goes_on(
    small_disk: Path, library: str
) -> None:
    store = ArtifactStore(small_disk / "home" / "artifacts")
    store.build(OTHER, write_five)
    with pytest.raises(ArtifactError, match=r"The disk is full.*finished stages are kept"):
        store.build(RECIPE, lambda folder: LARGE[library](folder) and None)
    assert entries(store) == {OTHER.fingerprint}
    assert store.find(OTHER) is not None
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert store.build(RECIPE, lambda folder: LARGE[library](folder) and None)[1]


def test_a_disk_that_became_read_only_can_be_read_and_is_named_where_it_must_be_written(small_disk: Path) -> None:
    store = ArtifactStore(small_disk / "home" / "artifacts")
    store.build(OTHER, write_five)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert not store.build(OTHER, write_five)[1]
    with pytest.raises(ArtifactError, match=r"Read-only file system.*Check the permissions"):
        store.build(RECIPE, write_five)
