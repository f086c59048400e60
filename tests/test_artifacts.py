"""Artifacts are whole or not there: whatever fails, dies or runs at the same time."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core.artifacts import (
    JOURNAL,
    MANIFEST,
    ArtifactStore,
    FileEntry,
    Recipe,
    exclusive_lock,
    inspect_artifact,
    read_artifact,
    write_json,
)
from kgqa_core.errors import ArtifactError, InputError, KgqaError

RECIPE = Recipe("graph", 1, {"format": "tsv", "hops": (1, 2)}, {"triples": "a1", "names": "b2"})
OTHER = replace(RECIPE, config={"format": "csv", "hops": (1, 2)})

CHILD = r"""
import json, sys, time
from pathlib import Path
from kgqa_core.artifacts import ArtifactStore, Recipe

root, log, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
recipe = Recipe(*json.loads(sys.argv[4]))

def write(folder):
    with log.open("a") as stream:
        stream.write("writing\n")
    (folder / "deep").mkdir()
    for number in range(5):
        (folder / f"deep/{number}.txt").write_text(f"{number}\n" * 7)
        print(number, flush=True)
        time.sleep(seconds if number == 2 else 0)

made, now = ArtifactStore(root).build(recipe, write)
print(made.content, now, flush=True)
"""


def write_five(folder: Path) -> None:
    (folder / "deep").mkdir()
    for number in range(5):
        (folder / f"deep/{number}.txt").write_text(f"{number}\n" * 7)


def failing(failure: BaseException) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_five(folder)
        raise failure

    return write


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def child(start: Callable[..., Any], store: ArtifactStore, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a process that builds a recipe, and pauses for so many seconds after the third file."""

    def start_build(seconds: float = 30, recipe: Recipe = RECIPE, file: int | None = None) -> subprocess.Popen[str]:
        fields = json.dumps([recipe.stage, recipe.version, recipe.config, recipe.inputs])
        made: subprocess.Popen[str] = start(CHILD, store.root, tmp_path / "log", seconds, fields)
        assert made.stdout is not None
        while file is not None and (line := made.stdout.readline()).strip() != str(file):
            assert line, made.communicate()  # it says which file it has written
        return made

    return start_build


def entries(store: ArtifactStore) -> set[str]:
    """Return what lies in the folder of the stage, but for lock files."""
    return {path.name for path in (store.root / "graph").iterdir() if path.suffix != ".lock"}


def undisturbed(store: ArtifactStore) -> str:
    """Content hash of the same files, built without trouble under another recipe."""
    return store.build(OTHER, write_five)[0].content


def test_the_fingerprint_is_a_hash_of_all_that_the_recipe_says_and_of_nothing_else() -> None:
    same = Recipe("graph", 1, {"hops": [1, 2], "format": "tsv"}, {"names": "b2", "triples": "a1"})
    assert same.fingerprint == RECIPE.fingerprint
    assert len(RECIPE.fingerprint) == 16
    others = [replace(RECIPE, stage="questions"), replace(RECIPE, version=2), OTHER]
    others += [replace(RECIPE, config={**RECIPE.config, "new": None})]
    others += [replace(RECIPE, inputs=inputs) for inputs in ({"triples": "b2", "names": "a1"}, {"triples": "a1"})]
    assert len({recipe.fingerprint for recipe in (RECIPE, *others)}) == 7


def test_an_artifact_is_built_once_and_its_manifest_lists_rows_bytes_and_hash_of_every_file(
    store: ArtifactStore,
) -> None:
    calls: list[Path] = []

    def write(folder: Path) -> None:
        calls.append(folder)
        pq.write_table(pa.table({"entity_id": np.arange(11)}), folder / "entities.parquet")
        (folder / "deep").mkdir()
        (folder / "deep" / "note.txt").write_text("été\n", encoding="utf-8")
        assert not (folder / MANIFEST).exists()

    made, _ = store.build(RECIPE, write)
    assert store.build(RECIPE, write) == (made, False)
    assert len(calls) == 1
    assert store.find(RECIPE) == made
    assert store.find_content("graph", made.content) == made
    assert store.find_content("graph", "0" * 64) is None
    assert made.folder == store.root / "graph" / RECIPE.fingerprint
    listed = {entry.name: entry for entry in made.files}
    digest = hashlib.sha256("été\n".encode()).hexdigest()
    assert listed["deep/note.txt"] == FileEntry("deep/note.txt", 6, digest, None)
    assert listed["entities.parquet"].rows == 11


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="sees what is synced in Linux's /proc")
def test_the_manifest_comes_after_everything_it_names_is_on_the_disk(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    store.build(RECIPE, write_five)
    names = [path.removeprefix(f"{store.root}/graph/{RECIPE.fingerprint}.work") for path in synced]
    assert set(names[:6]) == {f"/deep/{number}.txt" for number in range(5)} | {"/deep"}
    assert names[6].startswith(f"/.{MANIFEST}")
    assert names[7:] == ["", str(store.root / "graph")]  # the folder itself; the folder that it is renamed in


def test_the_content_hash_is_of_names_and_bytes_but_not_of_the_tracking_record(store: ArtifactStore) -> None:
    def content(version: int, name: str, text: str) -> str:
        def write(folder: Path) -> None:
            (folder / name).write_text(text)
            (folder / "tracking.json").write_text(str(version))

        return store.build(Recipe("graph", version, {}, {}), write)[0].content

    assert content(1, "a", "x") == content(2, "a", "x")
    assert len({content(1, "a", "x"), content(3, "b", "x"), content(4, "a", "y")}) == 3


def in_manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_text())
        change(manifest)
        write_json(folder / MANIFEST, manifest)

    return damage


def cut(folder: Path) -> None:
    """Check that a manifest cut anywhere but before its last line end is none, and leave it cut."""
    text = (folder / MANIFEST).read_bytes()
    for length in (*range(0, len(text) - 1, 17), *range(len(text) - 17, len(text) - 1)):
        (folder / MANIFEST).write_bytes(text[:length])
        assert read_artifact(folder) is None


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no manifest": lambda folder: (folder / MANIFEST).unlink(),
    "cut manifest": cut,
    "no file": lambda folder: (folder / "deep/3.txt").unlink(),
    "truncated": lambda folder: (folder / "deep/3.txt").write_text("3"),
    "other text": lambda folder: (folder / "deep/3.txt").write_text("4\n" * 7),
    "grown": lambda folder: (folder / "deep/3.txt").write_text("3\n" * 8),
    "a folder": lambda folder: (folder / "deep/3.txt").rename(folder / "4") and (folder / "deep/3.txt").mkdir(),
    "of another recipe": in_manifest(lambda manifest: manifest["recipe"]["config"].update(format="csv")),
    "another hash": in_manifest(lambda manifest: manifest["files"][0].update(sha256="0" * 64)),
    "another number of rows": in_manifest(lambda manifest: manifest["files"][0].update(rows=3)),
    "no content": in_manifest(lambda manifest: manifest.pop("content")),
    "foreign": lambda folder: (folder / MANIFEST).write_text("[1, 2]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_artifact_is_not_read_and_is_built_anew(
    store: ArtifactStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    made, _ = store.build(RECIPE, write_five)
    DAMAGES[damage](made.folder)
    (made.folder / "stray.txt").write_text("left from before")
    assert store.find(RECIPE) is None
    again, now = store.build(RECIPE, write_five)
    assert (now, again.content) == (True, made.content)
    assert entries(store) == {RECIPE.fingerprint}
    assert not (made.folder / "stray.txt").exists()
    assert caplog.text.count("is damaged") == (damage != "no manifest")  # said once, however often it is looked for


@pytest.mark.parametrize(
    "failure",
    [
        ValueError("no"),
        KeyboardInterrupt(),
        SystemExit(143),
        OSError(errno.EIO, "Input/output error"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/kb.txt"),
        PermissionError(errno.EACCES, "Permission denied", "/data/kb.txt"),  # an input, not the store
        InputError("line 3: 'no space left on device'"),
    ],
)
def test_a_stage_that_fails_leaves_neither_artifact_nor_rubble(
    store: ArtifactStore, failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(type(failure)) as raised:
        store.build(RECIPE, failing(failure))
    assert raised.value is failure
    assert entries(store) == set()
    mkdir = Path.mkdir

    def interrupted(path: Path, *arguments: Any, **options: Any) -> None:
        mkdir(path, *arguments, **options)
        if path.suffix == ".work":  # a signal right behind the making of the work folder
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "mkdir", interrupted)
        store.build(RECIPE, write_five)
    assert entries(store) == set()
    assert store.build(RECIPE, write_five)[1]


CAUSED = ArtifactError("the cache cannot be written")
CAUSED.__cause__ = OSError(errno.ENOSPC, "full")
FULL, TOO_LARGE = r"MiB free.*KGQA_HOME", "ulimit -f"


@pytest.mark.parametrize(
    ("failure", "cure"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), FULL),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), FULL),
        (OSError("30788 requested and 16256 written"), FULL),  # numpy
        (RuntimeError("I/O error: No space left on device (os error 28)"), FULL),  # safetensors
        (RuntimeError('IO Error: Could not write file "/x": No space left on device'), FULL),  # DuckDB
        (RuntimeError("Out of Memory Error: failed to offload data block of size 256.0 KiB"), FULL),  # and spilling
        (CAUSED, FULL),
        (OSError(errno.EFBIG, "File too large"), TOO_LARGE),
        (RuntimeError('IO Error: Could not write file "/x": File too large'), TOO_LARGE),
    ],
)
def test_a_disk_that_takes_no_more_is_named_with_what_to_do_whichever_library_met_it(
    store: ArtifactStore, failure: Exception, cure: str
) -> None:
    store.build(OTHER, write_five)
    with pytest.raises(ArtifactError, match=rf"stage 'graph' .*{cure}.*run again: finished stages are kept"):
        store.build(RECIPE, failing(failure))
    assert entries(store) == {OTHER.fingerprint}
    assert store.find(OTHER) is not None


def test_a_home_that_is_a_file_or_without_locks_and_an_artifact_that_cannot_be_looked_into_are_named(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("not a folder")
    with pytest.raises(ArtifactError, match=r"Check the permissions, or set KGQA_HOME"):
        ArtifactStore(tmp_path / "home" / "artifacts").build(RECIPE, write_five)
    made, _ = store.build(RECIPE, write_five)
    (made.folder / MANIFEST).unlink()
    (made.folder / MANIFEST).symlink_to(MANIFEST)  # a circle: reading fails, though something is there
    with pytest.raises(ArtifactError, match=r"cannot read the artifact .*graph.*permissions"):
        store.build(RECIPE, write_five)
    assert (made.folder / "deep/3.txt").exists()

    def refuse(stream: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ArtifactError, match="has no file locks"):
        store.build(OTHER, write_five)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_the_run_after_one_that_was_stopped_in_the_middle_ends_as_if_nothing_happened(
    store: ArtifactStore, child: Callable[..., subprocess.Popen[str]], sent: signal.Signals
) -> None:
    stopped = child(file=2)
    stopped.send_signal(sent)
    assert stopped.wait(20) == -sent
    assert entries(store) == ({f"{RECIPE.fingerprint}.work"} if sent == signal.SIGKILL else set())
    assert store.find(RECIPE) is None
    made, now = store.build(RECIPE, write_five)
    assert (made.content, now) == (undisturbed(store), True)
    assert entries(store) == {RECIPE.fingerprint, OTHER.fingerprint}


def test_rubble_of_another_recipe_is_cleared_too_but_not_what_a_living_run_is_writing(
    store: ArtifactStore, child: Callable[..., subprocess.Popen[str]]
) -> None:
    third = Recipe("graph", 3, {}, {})
    killed, _living = child(recipe=OTHER, file=1), child(recipe=third, file=1)
    killed.kill()
    killed.wait(20)
    store.build(RECIPE, write_five)
    assert entries(store) == {RECIPE.fingerprint, f"{third.fingerprint}.work"}


def test_two_processes_build_the_same_recipe_once_and_both_get_it(
    child: Callable[..., subprocess.Popen[str]], store: ArtifactStore, tmp_path: Path
) -> None:
    both = [child(seconds=1), child(seconds=1)]
    lines = [process.communicate(timeout=60)[0].splitlines()[-1] for process in both]
    content = undisturbed(store)
    assert sorted(lines) == [f"{content} False", f"{content} True"]
    assert (tmp_path / "log").read_text().splitlines() == ["writing"]


def test_the_death_of_the_one_who_builds_frees_the_one_who_waits(
    store: ArtifactStore, child: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    killed = child(file=0)
    lock = store.root / "graph" / f"{RECIPE.fingerprint}.lock"
    with pytest.raises(KgqaError, match=f'"pid": {killed.pid}'), exclusive_lock(lock, timeout=0.1):
        pytest.fail("two at once")
    waiting = child(seconds=0)
    notice = waiting.stderr.readline()  # type: ignore[union-attr]  # the waiting one says for whom
    assert "waiting for another run" in notice and f'"pid": {killed.pid}' in notice
    killed.kill()
    output, _ = waiting.communicate(timeout=60)
    assert output.splitlines()[-1] == f"{undisturbed(store)} True"
    assert (tmp_path / "log").read_text().splitlines() == ["writing", "writing"]


def test_json_that_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_json(tmp_path / "last.json", {"é": [1, 2]})
    with pytest.raises(TypeError):
        write_json(tmp_path / "last.json", {"bad": {1, 2}, "worse": object()})
    assert json.loads((tmp_path / "last.json").read_text(encoding="utf-8")) == {"é": [1, 2]}
    assert [file.name for file in tmp_path.glob("*last*")] == ["last.json"]


def test_a_stage_with_a_journal_goes_on_and_the_journal_is_no_part_of_the_artifact(store: ArtifactStore) -> None:
    def write(folder: Path) -> None:
        """Count the attempts in a journal, and be stopped in the first two of three."""
        journal = folder / JOURNAL
        journal.mkdir(exist_ok=True)
        attempts = len(list(journal.iterdir())) + 1
        (journal / f"attempt-{attempts}").touch()
        assert [path.name for path in folder.iterdir()] == [JOURNAL]  # nothing else is left of an attempt
        (folder / "half.txt").write_text(f"after {attempts} attempts", "utf-8")
        if attempts < 3:
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            store.build(RECIPE, write)
        assert store.find(RECIPE) is None
        store.build(OTHER, lambda folder: (folder / "other.txt").touch())  # clears rubble, but no journal
    made, _ = store.build(RECIPE, write)
    assert (made.folder / "half.txt").read_text("utf-8") == "after 3 attempts"
    assert {entry.name for entry in made.files} == {"half.txt"}
    assert not (made.folder / JOURNAL).exists()


def test_a_large_file_is_sampled_when_it_is_opened_and_read_whole_when_it_is_verified(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgqa_core.artifacts.BLOCK_BYTES", 1000)
    made, _ = store.build(RECIPE, lambda folder: (folder / "large").write_bytes(bytes(range(256)) * 40))
    (entry,) = made.files
    assert len(entry.blocks) == 11 and inspect_artifact(made.folder, whole=True) == (made, [])
    data = bytearray((made.folder / "large").read_bytes())
    data[5000] ^= 1
    (made.folder / "large").write_bytes(data)
    monkeypatch.setattr("kgqa_core.artifacts.random.sample", lambda blocks, number: [*blocks][:number])
    assert read_artifact(made.folder) is not None  # those blocks are as they were
    monkeypatch.setattr("kgqa_core.artifacts.random.sample", lambda blocks, number: [5])
    assert read_artifact(made.folder) is None
    assert inspect_artifact(made.folder, whole=True)[1] == ["large"]
