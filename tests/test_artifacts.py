"""Artifacts are whole or not there: whatever fails, dies or runs at the same time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgqa_core.artifacts import JOURNAL, MANIFEST, ArtifactStore, Recipe, hash_file, read_artifact, write_json
from kgqa_core.errors import ArtifactError, InputError

RECIPE = Recipe("graph", 1, {"format": "tsv", "hops": (1, 2)}, {"triples": "a1", "names": "b2"})
OTHER = Recipe("graph", 1, {"format": "csv", "hops": (1, 2)}, {"triples": "a1", "names": "b2"})

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
    """What CHILD writes."""
    (folder / "deep").mkdir()
    for number in range(5):
        (folder / f"deep/{number}.txt").write_text(f"{number}\n" * 7)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def child(start: Callable[..., Any], store: ArtifactStore, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a process that builds a recipe, by default RECIPE, and pauses for so many seconds after the third file."""

    def start_build(seconds: float = 30, recipe: Recipe = RECIPE) -> subprocess.Popen[str]:
        fields = json.dumps([recipe.stage, recipe.version, recipe.config, recipe.inputs])
        made: subprocess.Popen[str] = start(CHILD, store.root, tmp_path / "log", seconds, fields)
        return made

    return start_build


def entries(store: ArtifactStore) -> set[str]:
    """What lies in the folder of stage "graph", but for lock files."""
    return {path.name for path in (store.root / "graph").iterdir() if path.suffix != ".lock"}


# What an artifact is


def test_the_fingerprint_is_a_hash_of_all_that_the_recipe_says_and_of_nothing_else() -> None:
    same = Recipe("graph", 1, {"hops": [1, 2], "format": "tsv"}, {"names": "b2", "triples": "a1"})
    assert same.fingerprint == RECIPE.fingerprint
    assert len(RECIPE.fingerprint) == 16
    others = [
        Recipe("questions", 1, RECIPE.config, RECIPE.inputs),
        Recipe("graph", 2, RECIPE.config, RECIPE.inputs),
        OTHER,
        Recipe("graph", 1, {**RECIPE.config, "new": None}, RECIPE.inputs),
        Recipe("graph", 1, RECIPE.config, {"triples": "b2", "names": "a1"}),
        Recipe("graph", 1, RECIPE.config, {"triples": "a1"}),
    ]
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

    made, now = store.build(RECIPE, write)
    again, then = store.build(RECIPE, write)
    assert (now, then, len(calls)) == (True, False, 1)
    assert again == store.find(RECIPE)
    assert again is not None
    assert (again.folder, again.content, again.files) == (made.folder, made.content, made.files)
    assert made.folder == store.root / "graph" / RECIPE.fingerprint
    assert made.fingerprint == RECIPE.fingerprint
    listed = {entry.name: (entry.bytes, entry.rows) for entry in made.files}
    assert listed["deep/note.txt"] == (6, None)
    assert listed["entities.parquet"][1] == 11
    assert {entry.sha256 for entry in made.files} == {hash_file(made.folder / name) for name in listed}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="sees what is synced in Linux's /proc")
def test_the_manifest_comes_after_everything_it_names_is_on_the_disk(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    store.build(RECIPE, write_five)
    work = str(store.root / "graph" / f"{RECIPE.fingerprint}.work")
    names = [path.removeprefix(work) for path in synced]
    files = {f"/deep/{number}.txt" for number in range(5)}
    assert set(names[:6]) == files | {"/deep"}
    assert names[6].startswith(f"/.{MANIFEST}")
    assert names[7:] == ["", str(store.root / "graph")]  # the folder itself; the folder that it is renamed in


def test_the_content_hash_is_of_names_and_bytes_but_not_of_the_tracking_record(store: ArtifactStore) -> None:
    def writer(name: str, text: str, tracking: str) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            (folder / name).write_text(text)
            (folder / "tracking.json").write_text(tracking)

        return write

    recipes = [Recipe("graph", version, {}, {}) for version in range(1, 5)]
    writers = [writer("a", "x", "1"), writer("a", "x", "2"), writer("b", "x", "1"), writer("a", "y", "1")]
    first, retold, renamed, changed = (
        store.build(recipe, write)[0].content for recipe, write in zip(recipes, writers, strict=True)
    )
    assert first == retold
    assert len({first, renamed, changed}) == 3


# Damage


def without_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def without_file(folder: Path) -> None:
    (folder / "deep/3.txt").unlink()


def truncated(folder: Path) -> None:
    (folder / "deep/3.txt").write_text("3")


def grown(folder: Path) -> None:
    with (folder / "deep/3.txt").open("a") as stream:
        stream.write("3")


def file_became_folder(folder: Path) -> None:
    (folder / "deep/3.txt").unlink()
    (folder / "deep/3.txt").mkdir()


def of_another_recipe(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["recipe"]["config"]["format"] = "csv"
    write_json(folder / MANIFEST, manifest)


def changed_hash(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    sha256 = json.loads(text)["files"][0]["sha256"]
    (folder / MANIFEST).write_text(text.replace(sha256, "0" * 64))


def no_content(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["content"]
    write_json(folder / MANIFEST, manifest)


def foreign_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text("[1, 2]")


@pytest.mark.parametrize(
    "damage",
    [
        without_manifest,
        without_file,
        truncated,
        grown,
        file_became_folder,
        of_another_recipe,
        changed_hash,
        no_content,
        foreign_manifest,
    ],
)
def test_a_damaged_artifact_is_not_read_and_is_built_anew(store: ArtifactStore, damage: Callable[[Path], None]) -> None:
    made, _ = store.build(RECIPE, write_five)
    damage(made.folder)
    (made.folder / "stray.txt").write_text("left from before")
    assert store.find(RECIPE) is None
    again, now = store.build(RECIPE, write_five)
    assert now
    assert again.content == made.content
    assert entries(store) == {RECIPE.fingerprint}
    assert not (made.folder / "stray.txt").exists()


def test_a_manifest_cut_anywhere_is_no_manifest(store: ArtifactStore) -> None:
    made, _ = store.build(RECIPE, write_five)
    text = (made.folder / MANIFEST).read_bytes()
    for length in (*range(0, len(text), 17), *range(len(text) - 17, len(text) - 1)):  # the last byte is a line end
        (made.folder / MANIFEST).write_bytes(text[:length])
        assert read_artifact(made.folder) is None


def test_an_artifact_that_cannot_be_looked_into_is_an_error_and_is_kept(store: ArtifactStore) -> None:
    made, _ = store.build(RECIPE, write_five)
    (made.folder / MANIFEST).unlink()
    (made.folder / MANIFEST).symlink_to(MANIFEST)  # a circle: reading fails, though something is there
    with pytest.raises(ArtifactError, match=r"cannot read the artifact .*graph.*permissions"):
        store.build(RECIPE, write_five)
    assert (made.folder / "deep/3.txt").exists()


# Failures


def test_a_signal_right_behind_the_making_of_the_work_folder_leaves_none(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir

    def interrupted(path: Path, *arguments: Any, **options: Any) -> None:
        mkdir(path, *arguments, **options)
        if path.suffix == ".work":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "mkdir", interrupted)
        store.build(RECIPE, write_five)
    assert not list(store.root.glob("*/*.work"))
    assert store.build(RECIPE, write_five)[1]


@pytest.mark.parametrize("failure", [ValueError("no"), InputError("no"), KeyboardInterrupt(), SystemExit(143)])
def test_a_stage_that_fails_leaves_neither_artifact_nor_rubble(store: ArtifactStore, failure: BaseException) -> None:
    def write(folder: Path) -> None:
        write_five(folder)
        raise failure

    with pytest.raises(type(failure)) as raised:
        store.build(RECIPE, write)
    assert raised.value is failure
    assert entries(store) == set()
    assert store.build(RECIPE, write_five)[1]


def library_error(message: str, cause: BaseException | None = None, kind: type[Exception] = RuntimeError) -> Exception:
    problem = kind(message)
    problem.__cause__ = cause
    return problem


FULL_DISK = {
    "python": OSError(errno.ENOSPC, "No space left on device"),
    "quota": OSError(errno.EDQUOT, "Disk quota exceeded"),
    "numpy": OSError("30788 requested and 16256 written"),
    "safetensors": library_error("Error while serializing: I/O error: No space left on device (os error 28)"),
    "duckdb": library_error('IO Error: Could not write file "/x": No space left on device'),
    "duckdb spilling": library_error("Out of Memory Error: failed to offload data block of size 256.0 KiB"),
    "ours": library_error("the cache cannot be written", OSError(errno.ENOSPC, "full"), kind=ArtifactError),
}


@pytest.mark.parametrize("library", FULL_DISK)
def test_a_full_disk_is_named_with_what_to_do_whichever_library_met_it(store: ArtifactStore, library: str) -> None:
    store.build(OTHER, write_five)

    def write(folder: Path) -> None:
        (folder / "half.txt").write_text("x")
        raise FULL_DISK[library]

    with pytest.raises(
        ArtifactError, match=r"stage 'graph' .*MiB free.*KGQA_HOME.*run again: finished stages are kept"
    ):
        store.build(RECIPE, write)
    assert entries(store) == {OTHER.fingerprint}
    assert store.find(OTHER) is not None


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.EFBIG, "File too large"),
        library_error('IO Error: Could not write file "/x": File too large'),
        library_error("the cache cannot be written", OSError(errno.EFBIG, "too large"), kind=ArtifactError),
    ],
)
def test_a_file_that_may_not_grow_any_more_is_another_matter(store: ArtifactStore, failure: Exception) -> None:
    def write(folder: Path) -> None:
        raise failure

    with pytest.raises(ArtifactError, match=r"stage 'graph' .*ulimit -f.*run again: finished stages are kept"):
        store.build(RECIPE, write)
    assert entries(store) == set()


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.EIO, "Input/output error"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/kb.txt"),
        PermissionError(errno.EACCES, "Permission denied", "/data/kb.txt"),  # an input, not the store
        RuntimeError("a movie called No Space Left"),
        InputError("line 3: 'no space left on device'"),
    ],
)
def test_what_is_not_the_stores_fault_is_not_blamed_on_the_disk(store: ArtifactStore, failure: Exception) -> None:
    def write(folder: Path) -> None:
        raise failure

    with pytest.raises(type(failure)) as raised:
        store.build(RECIPE, write)
    assert raised.value is failure


def test_a_home_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")
    with pytest.raises(ArtifactError, match=r"Check the permissions, or set KGQA_HOME"):
        ArtifactStore(tmp_path / "home" / "artifacts").build(RECIPE, write_five)


def test_a_file_system_without_locks_is_named(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(stream: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ArtifactError, match="has no file locks"):
        store.build(RECIPE, write_five)


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


def write_array(folder: Path) -> None:
    np.save(folder / "big.npy", np.arange(10**5))


def write_table(folder: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 10**12, 10**5)
    pq.write_table(pa.table({"noise": noise}), folder / "big.parquet")


def write_text(folder: Path) -> None:
    (folder / "big.txt").write_text("x" * 10**6)


def write_weights(folder: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"weight": np.arange(10**5)}, folder / "big.safetensors")


def write_query(folder: Path) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT random() FROM range(100000)) TO '{folder}/big.parquet' (FORMAT parquet)")


@pytest.mark.parametrize("write", [write_array, write_table, write_text, write_weights, write_query])
def test_on_a_disk_that_is_really_full_finished_stages_stay_and_the_next_run_goes_on(
    small_disk: Path, write: Callable[[Path], None]
) -> None:
    store = ArtifactStore(small_disk / "home" / "artifacts")
    store.build(OTHER, write_five)
    with pytest.raises(ArtifactError, match=r"The disk is full.*finished stages are kept"):
        store.build(RECIPE, write)
    assert entries(store) == {OTHER.fingerprint}
    assert store.find(OTHER) is not None
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert store.build(RECIPE, write)[1]


def test_a_disk_that_became_read_only_can_be_read_and_is_named_where_it_must_be_written(small_disk: Path) -> None:
    store = ArtifactStore(small_disk / "home" / "artifacts")
    store.build(OTHER, write_five)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert not store.build(OTHER, write_five)[1]
    with pytest.raises(ArtifactError, match=r"Read-only file system.*Check the permissions"):
        store.build(RECIPE, write_five)


# Kills, and two runs at once


def test_ctrl_c_in_the_middle_leaves_nothing_and_the_next_run_ends_as_if_nothing_happened(
    store: ArtifactStore, child: Callable[..., subprocess.Popen[str]]
) -> None:
    stopped = child()
    wait_until_it_writes(stopped, file=2)
    stopped.send_signal(signal.SIGINT)
    assert stopped.wait(20) == -signal.SIGINT
    assert entries(store) == set()
    assert store.build(RECIPE, write_five)[0].content == undisturbed(store)


def test_kill_9_in_the_middle_leaves_rubble_that_the_next_run_clears(
    store: ArtifactStore, child: Callable[..., subprocess.Popen[str]], caplog: pytest.LogCaptureFixture
) -> None:
    killed = child()
    wait_until_it_writes(killed, file=2)
    killed.kill()
    killed.wait(20)
    assert entries(store) == {f"{RECIPE.fingerprint}.work"}
    assert store.find(RECIPE) is None
    made, now = store.build(RECIPE, write_five)
    assert now
    assert made.content == undisturbed(store)
    assert entries(store) == {RECIPE.fingerprint, OTHER.fingerprint}
    assert "removing the incomplete artifact" in caplog.text


def test_rubble_of_another_recipe_is_cleared_too_but_not_what_a_living_run_is_writing(
    store: ArtifactStore, child: Callable[..., subprocess.Popen[str]]
) -> None:
    third = Recipe("graph", 3, {}, {})
    killed, living = child(recipe=OTHER), child(recipe=third)
    for process in (killed, living):
        wait_until_it_writes(process, file=1)
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
    store: ArtifactStore,
    child: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    killed = child()
    wait_until_it_writes(killed, file=0)
    waiting = child(seconds=0)
    assert waiting.stderr is not None
    notice = waiting.stderr.readline()  # the waiting one says for whom
    assert "waiting for another run" in notice
    assert f'"pid": {killed.pid}' in notice
    killed.kill()
    output, _ = waiting.communicate(timeout=60)
    assert output.splitlines()[-1] == f"{undisturbed(store)} True"
    assert (tmp_path / "log").read_text().splitlines() == ["writing", "writing"]


def wait_until_it_writes(process: subprocess.Popen[str], *, file: int) -> None:
    """Return once the child has written that file; it says so."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == str(file):
            return
    raise AssertionError(f"the child ended: {process.stderr.read() if process.stderr else ''}")


def undisturbed(store: ArtifactStore) -> str:
    """Content hash of the same files, built without trouble under another recipe."""
    return store.build(OTHER, write_five)[0].content


# JSON at rest


def test_json_that_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "last.json"
    write_json(path, {"é": [1, 2]})
    with pytest.raises(TypeError):
        write_json(path, {"bad": {1, 2}, "worse": object()})
    assert json.loads(path.read_text(encoding="utf-8")) == {"é": [1, 2]}
    assert [file.name for file in tmp_path.glob("*.json*")] == ["last.json"]
    assert list(tmp_path.glob(".last*")) == []


def journaled(folder: Path) -> None:
    """A stage that counts its attempts in a journal, and is stopped in the first two of three."""
    journal = folder / JOURNAL
    journal.mkdir(exist_ok=True)
    attempts = len(list(journal.iterdir())) + 1
    (journal / f"attempt-{attempts}").touch()
    assert [path.name for path in folder.iterdir()] == [JOURNAL]  # nothing else is left of an attempt
    (folder / "half.txt").write_text("half", "utf-8")
    if attempts < 3:
        raise KeyboardInterrupt
    (folder / "half.txt").write_text(f"whole after {attempts} attempts", "utf-8")


def test_a_stage_with_a_journal_goes_on_and_the_journal_is_no_part_of_the_artifact(store: ArtifactStore) -> None:
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            store.build(RECIPE, journaled)
        assert store.find(RECIPE) is None
        store.build(OTHER, lambda folder: (folder / "other.txt").touch())  # clears rubble, but no journal
    made, _ = store.build(RECIPE, journaled)
    assert (made.folder / "half.txt").read_text("utf-8") == "whole after 3 attempts"
    assert {entry.name for entry in made.files} == {"half.txt"}
    assert not (made.folder / JOURNAL).exists()
