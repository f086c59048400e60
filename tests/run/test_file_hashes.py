"""Content hashes of the user's own files: a file is read again only where it may have changed."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from kgqa_core.artifacts import hash_file
from kgqa_core.run import pipeline as file_hashes
from kgqa_core.run.pipeline import FileHashes


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose bytes were read to be hashed."""
    names: list[str] = []

    def count(path: Path) -> str:
        names.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(file_hashes, "hash_file", count)
    return names


def settled(path: Path, text: str, *, age: float = 3600) -> Path:
    """Write a file that was last changed ``age`` seconds ago."""
    path.write_text(text)
    then = time.time_ns() - int(age * 10**9)
    os.utime(path, ns=(then, then))
    return path


def test_a_file_is_hashed_once_for_all_runs_and_again_when_it_changed(tmp_path: Path, read_files: list[str]) -> None:
    memory = tmp_path / "cache" / "file_hashes.json"
    file = settled(tmp_path / "kb.txt", "a|b|c")
    first = FileHashes(memory).hash(file)
    assert first == hash_file(file)
    assert FileHashes(memory).hash(file) == first
    assert read_files == ["kb.txt"]
    settled(file, "a|b|d", age=1800)  # the same size, another time
    assert FileHashes(memory).hash(file) == hash_file(file) != first
    settled(file, "a|b|dd", age=1800)  # the same time or nearly, another size
    assert FileHashes(memory).hash(file) == hash_file(file)
    assert read_files == ["kb.txt"] * 3


def test_a_file_changed_just_now_is_not_remembered(tmp_path: Path, read_files: list[str]) -> None:
    """Within one tick of the file system's clock a file can change without another time."""
    hashes = FileHashes(tmp_path / "file_hashes.json")
    file = settled(tmp_path / "kb.txt", "a|b|c", age=0)
    stamp = file.stat().st_mtime_ns
    first = hashes.hash(file)
    file.write_text("a|b|d")
    os.utime(file, ns=(stamp, stamp))
    assert hashes.hash(file) == hash_file(file) != first
    assert read_files == ["kb.txt"] * 2


def test_two_names_for_one_file_share_its_hash(tmp_path: Path, read_files: list[str]) -> None:
    hashes = FileHashes(tmp_path / "file_hashes.json")
    file = settled(tmp_path / "kb.txt", "a|b|c")
    (tmp_path / "link.txt").symlink_to(file)
    assert hashes.hash(tmp_path / "link.txt") == hashes.hash(file)
    assert len(read_files) == 1


@pytest.mark.parametrize("rubbish", ["", "[]", "{", '{"KEY": 5}', '{"KEY": [1]}', '{"KEY": [5, 5]}', '"KEY"'])
def test_a_damaged_memory_costs_one_hashing_and_no_error(tmp_path: Path, read_files: list[str], rubbish: str) -> None:
    memory, file = tmp_path / "file_hashes.json", settled(tmp_path / "kb.txt", "a|b|c")
    memory.write_text(rubbish.replace("KEY", str(file)))
    assert FileHashes(memory).hash(file) == hash_file(file)
    assert FileHashes(memory).hash(file) == hash_file(file)
    assert len(read_files) == 1


def test_a_memory_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="kgqa_core")
    (tmp_path / "cache").write_text("a file where the folder should be")
    file = settled(tmp_path / "kb.txt", "a|b|c")
    assert FileHashes(tmp_path / "cache" / "file_hashes.json").hash(file) == hash_file(file)
    assert "cannot write the note" in caplog.text


def test_a_missing_file_is_the_callers_business(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileHashes(tmp_path / "file_hashes.json").hash(tmp_path / "nothing.txt")
