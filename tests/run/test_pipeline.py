"""Which stages of a run are done, why one is not, and what an artifact's identity follows."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.artifacts import Recipe, hash_file
from kgqa_core.config import RunConfig
from kgqa_core.config_file import read_config
from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.run import inputs as module
from kgqa_core.run.ensure import ensure
from kgqa_core.run.inputs import FileHashes
from kgqa_core.run.pipeline import Pipeline, differences
from kgqa_core.run.stages import StageSpec, known_stages
from kgqa_core.tracking import Recorder
from tests.conftest import Build

STAGES = ["graph", "questions", "encodings", "explorer-seed0", "controls", "evaluation-seed0"]


def pipeline_of(path: Path, *overrides: str) -> Pipeline:
    return Pipeline(read_config(path, overrides))


def states(pipeline: Pipeline) -> dict[str, tuple[str, str]]:
    """Return (state, why) of every stage."""
    return {status.key: (status.state, status.why) for status in pipeline.status()}


def fingerprints(pipeline: Pipeline) -> dict[str, str]:
    """Return the fingerprint of every stage of a run that is done."""
    return {key: pipeline.artifact(key).fingerprint for key in pipeline.specs}


# Where the stages stand


def test_of_a_run_that_was_never_made_every_stage_is_missing(films: Path) -> None:
    assert states(pipeline_of(films)) == {
        "graph": ("missing", "never built"),
        "questions": ("missing", "waits for graph"),
        "encodings": ("missing", "waits for graph, questions"),
        "explorer-seed0": ("missing", "waits for graph, questions, encodings"),
        "controls": ("missing", "waits for graph, questions"),
        "evaluation-seed0": ("missing", "waits for graph, questions, encodings, explorer-seed0, controls"),
    }


def test_of_a_run_that_was_made_every_stage_is_done_and_says_where(tiny_config: RunConfig) -> None:
    statuses = Pipeline(tiny_config).status()
    assert [status.key for status in statuses] == ["dataset", *STAGES]
    assert {(status.state, status.why) for status in statuses} == {("done", "")}
    for status in statuses:
        assert status.folder is not None
        assert status.folder.parent == tiny_config.runtime.home / "artifacts" / status.stage
        assert {"manifest.json", "tracking.json"} <= {path.name for path in status.folder.iterdir()}


def test_a_changed_setting_makes_its_stage_stale_and_those_after_it_wait(films: Path, build_stages: Build) -> None:
    assert build_stages(pipeline_of(films)) == STAGES
    changed = pipeline_of(films, "explorer.epochs=2", "evaluation.evidence_paths=1")
    assert states(changed) == {
        "graph": ("done", ""),
        "questions": ("done", ""),
        "encodings": ("done", ""),
        "explorer-seed0": ("stale", "epochs is 2, was 1"),
        "controls": ("done", ""),
        "evaluation-seed0": ("stale", "waits for explorer-seed0"),
    }
    old = next(status for status in changed.status() if status.key == "explorer-seed0")
    assert old.folder == pipeline_of(films).artifact("explorer-seed0").folder
    assert build_stages(changed) == ["explorer-seed0", "evaluation-seed0"]
    back = pipeline_of(films)
    assert {state for state, _ in states(back).values()} == {"done"}  # the old ones are still there
    assert build_stages(back) == []


def test_a_changed_question_file_makes_the_questions_stale(films: Path, build_stages: Build) -> None:
    build_stages(pipeline_of(films))
    asked = films.parent / "data/questions/dev.jsonl"
    asked.write_text(asked.read_text(encoding="utf-8").replace("who directed", "who made"), encoding="utf-8")
    found = states(pipeline_of(films))
    assert found["graph"] == ("done", "")
    assert found["questions"] == ("stale", "input questions/dev.jsonl changed")
    assert found["evaluation-seed0"] == ("stale", "waits for questions, encodings, explorer-seed0, controls")
    assert build_stages(pipeline_of(films)) == [STAGES[1], "changes", *STAGES[2:]]


def test_a_damaged_artifact_is_named_and_only_it_is_made_again(
    tiny_copy: RunConfig, tiny_config: RunConfig, build_stages: Build
) -> None:
    folder = Pipeline(tiny_copy).artifact("encodings").folder
    (folder / "encodings.parquet").write_bytes(b"PAR1")
    found = states(Pipeline(tiny_copy))
    assert found["encodings"] == ("missing", "its artifact is gone or damaged")
    assert found["explorer-seed0"] == ("stale", "waits for encodings")
    assert found["controls"] == ("done", "")
    assert build_stages(Pipeline(tiny_copy)) == ["encodings"]
    assert fingerprints(Pipeline(tiny_copy)) == fingerprints(Pipeline(tiny_config))


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        ("data/triples.tsv", r"triples: .*triples.tsv does not exist.*; did you mean .triples.csv"),
        ("data", r"triples: .*its folder .* does not exist either"),
    ],
)
def test_a_missing_file_is_named_with_what_lies_beside_it(
    films: Path, build_stages: Build, lost: str, why: str
) -> None:
    build_stages(pipeline_of(films))
    (films.parent / "data/triples.csv").touch()
    pipeline = pipeline_of(films)
    (films.parent / lost).rename(films.parent / "hidden")
    found = states(pipeline)
    assert found["graph"][0] == "stale" and re.search(why, found["graph"][1])
    assert found["questions"] == ("stale", "waits for graph")
    with pytest.raises(InputError, match=why):
        build_stages(pipeline)


def test_what_a_run_used_last_is_only_a_note(films: Path, build_stages: Build) -> None:
    build_stages(pipeline_of(films))
    assert build_stages(pipeline_of(films, "name=other")) == []  # what another run made counts, and is remembered
    changed = pipeline_of(films, "name=other", "explorer.width=11")
    assert states(changed)["explorer-seed0"] == ("stale", "width is 11, was 7")
    note = changed.home / "runs" / "films.json"
    assert set(json.loads(note.read_text())) == set(STAGES)
    for rubbish in ("", "[]", '{"graph": 5}', '{"graph": "../../etc"}'):
        note.write_text(rubbish)
        assert {state for state, _ in states(pipeline_of(films)).values()} == {"done"}
        assert states(pipeline_of(films, "explorer.width=11"))["explorer-seed0"] == ("missing", "never built")
    shutil.rmtree(note.parent)
    note.parent.write_text("no folder")
    assert build_stages(pipeline_of(films)) == []  # a note that cannot be written stops nothing


def test_what_is_not_done_cannot_be_opened_or_built_upon(films: Path) -> None:
    pipeline = pipeline_of(films)
    with pytest.raises(InputError, match=r"triples: cannot read .*data: it is no file but a folder"):
        pipeline_of(films, "dataset.graph.path=data", "dataset.graph.format=wikimovies").recipe("graph")
    assert pipeline.recipe("questions") is None
    with pytest.raises(
        ArtifactError, match=r"stage 'graph' of 'films' is not done: .* kgqa run CONF; kgqa status CONF "
    ):
        pipeline.artifact("graph")
    with pytest.raises(ArtifactError, match=r"'questions' reads graph, of which not all are done.*kgqa status"):
        pipeline.make("questions", lambda *given: None)


def test_every_stage_is_looked_up_once(films: Path, build_stages: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """All stages read others: looked up anew at each reading they would be many."""
    build_stages(pipeline_of(films))
    pipeline = pipeline_of(films)
    looked_up: list[str] = []
    find = pipeline.store.find
    monkeypatch.setattr(pipeline.store, "find", lambda recipe: looked_up.append(recipe.stage) or find(recipe))
    for look in (lambda: pipeline.find("evaluation-seed0"), pipeline.status):
        looked_up.clear()
        assert look()
        assert sorted(looked_up) == sorted({spec.stage for spec in pipeline.specs.values()})


# What an artifact's identity follows


def test_fingerprints_follow_content_and_neither_place_nor_time(
    films: Path, build_stages: Build, tmp_path: Path
) -> None:
    build_stages(pipeline_of(films))
    elsewhere = tmp_path / "another" / "folder"
    elsewhere.mkdir(parents=True)
    shutil.copytree(tmp_path / "data", elsewhere / "data", copy_function=shutil.copyfile)  # new times
    shutil.copyfile(films, elsewhere / "films.yaml")
    moved = pipeline_of(elsewhere / "films.yaml")
    assert build_stages(moved) == []
    assert fingerprints(moved) == fingerprints(pipeline_of(films))


def test_a_file_changed_while_it_was_read_makes_no_artifact(films: Path) -> None:
    pipeline = pipeline_of(films)

    def write(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
        (folder / "graph.txt").write_text((films.parent / "data/triples.tsv").read_text(encoding="utf-8"))
        (films.parent / "data/triples.tsv").write_text("Film 0\tdirected_by\tPerson 3\n")

    with pytest.raises(InputError, match=r"triples: .*triples.tsv was changed while stage 'graph' read it"):
        pipeline.make("graph", write)
    assert pipeline.find("graph") is None


def test_a_stage_does_not_mix_two_builds_where_another_takes_the_place_of_what_it_reads(
    films: Path, build_stages: Build
) -> None:
    """As where the nightly file comes, and another run builds it, while this one evaluates."""
    triples = films.parent / "data/triples.tsv"
    build_stages(pipeline_of(films))
    was = triples.read_text(encoding="utf-8")
    triples.write_text(was + "Film 0\tfilmed_in\tRome\n", encoding="utf-8")
    pipeline = pipeline_of(films)
    ensure(pipeline, ["encodings"])

    def write(run: Pipeline, spec: StageSpec, folder: Path, recorder: Recorder) -> None:
        first = pipeline.artifact("graph").content
        triples.write_text(was, encoding="utf-8")
        (folder / "graphs.txt").write_text(f"{first} {pipeline.artifact('graph').content}")

    with pytest.raises(InputError, match=r"graph was changed while stage 'controls' read it. Run again"):
        pipeline.make("controls", write)
    triples.write_text(was + "Film 0\tfilmed_in\tRome\n", encoding="utf-8")
    assert pipeline.find("controls") is None


def test_a_stage_that_lacks_a_file_that_it_should_have_written_is_not_published(films: Path) -> None:
    """As where a worker wrote it to another disk."""
    with pytest.raises(ArtifactError, match=r"stage 'graph' ended, and \S+ has no entities.parquet"):
        pipeline_of(films).make("graph", lambda *given: None)
    assert not list((pipeline_of(films).store.root / "graph").glob("*/"))


def test_a_new_version_of_a_stages_code_makes_it_stale(
    films: Path, build_stages: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_stages(pipeline_of(films))
    stages = known_stages()
    before = stages["controls"].version
    stages["controls"] = replace(stages["controls"], version=71)
    monkeypatch.setattr("kgqa_core.run.pipeline.known_stages", lambda: stages)
    found = states(pipeline_of(films))
    assert found["controls"] == ("stale", f"the stage's code is version 71, was {before}")
    assert found["explorer-seed0"] == ("done", "")
    assert found["evaluation-seed0"] == ("stale", "waits for controls")


def test_differences_of_two_recipes_are_said_in_words() -> None:
    def told(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
        return differences(Recipe("s", 1, old, {}), Recipe("s", 1, new, {}))

    assert told({"hops": (1, 2)}, {"hops": [1, 2]}) == []
    assert told({"k": 1}, {"k": True}) == ["k is True, was 1"]
    assert told({"old": 1}, {"new": 2}) == ["new is 2, was None", "old is None, was 1"]
    old = Recipe("s", 1, {}, {"gone": "x", "kept": "x", "other": "x"})
    new = Recipe("s", 2, {}, {"came": "x", "kept": "x", "other": "y"})
    inputs = ["input came is new", "input gone is gone", "input other changed"]
    assert differences(old, new) == ["the stage's code is version 2, was 1", *inputs]


# Content hashes of the user's own files: a file is read again only where it may have changed


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose bytes were read to be hashed."""
    names: list[str] = []
    monkeypatch.setattr(module, "hash_file", lambda path: names.append(path.name) or hash_file(path))
    return names


def settled(path: Path, text: str, *, age: float = 3600) -> Path:
    """Write a file that was last changed ``age`` seconds ago."""
    path.write_text(text)
    then = time.time_ns() - int(age * 10**9)
    os.utime(path, ns=(then, then))
    return path


def test_a_file_is_hashed_once_for_all_runs_and_again_when_it_changed(tmp_path: Path, read_files: list[str]) -> None:
    memory, file = tmp_path / "cache" / "file_hashes.json", settled(tmp_path / "kb.txt", "a|b|c")
    (tmp_path / "link.txt").symlink_to(file)
    first = FileHashes(memory).hash(file)
    assert first == hash_file(file)
    assert FileHashes(memory).hash(file) == FileHashes(memory).hash(tmp_path / "link.txt") == first
    assert read_files == ["kb.txt"]
    settled(file, "a|b|d", age=1800)  # the same size, another time
    assert FileHashes(memory).hash(file) == hash_file(file) != first
    settled(file, "a|b|dd", age=1800)  # the same time or nearly, another size
    assert FileHashes(memory).hash(file) == hash_file(file)
    assert read_files == ["kb.txt"] * 3


def test_many_small_files_are_not_written_down_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, writes = [settled(tmp_path / f"part-{number}.csv", f"a,b,{number}") for number in range(400)], list[int]()

    def write_slowly(path: Path, note: Mapping[str, Any]) -> None:
        writes.append(len(note))
        time.sleep(0.05)

    monkeypatch.setattr(module, "write_note", write_slowly)
    hashes = FileHashes(tmp_path / "file_hashes.json")
    assert [hashes.hash(file) for file in files] == [hash_file(file) for file in files]
    assert 0 < len(writes) < 20


def test_a_file_changed_just_now_is_not_remembered(tmp_path: Path, read_files: list[str]) -> None:
    """Within one tick of the file system's clock a file can change without another time."""
    hashes, file = FileHashes(tmp_path / "file_hashes.json"), settled(tmp_path / "kb.txt", "a|b|c", age=0)
    stamp, first = file.stat().st_mtime_ns, hashes.hash(file)
    file.write_text("a|b|d")
    os.utime(file, ns=(stamp, stamp))
    assert hashes.hash(file) == hash_file(file) != first
    assert read_files == ["kb.txt"] * 2


@pytest.mark.parametrize("rubbish", ["", "[]", '{"KEY": 5}', '{"KEY": [1]}', '{"KEY": [5, 5]}', '"KEY"'])
def test_a_damaged_memory_costs_one_hashing_and_one_that_cannot_be_written_no_error(
    tmp_path: Path, read_files: list[str], rubbish: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory, file = tmp_path / "file_hashes.json", settled(tmp_path / "kb.txt", "a|b|c")
    memory.write_text(rubbish.replace("KEY", str(file)))
    assert FileHashes(memory).hash(file) == FileHashes(memory).hash(file) == hash_file(file)
    assert len(read_files) == 1
    caplog.set_level(logging.DEBUG, logger="kgqa_core")
    hashes = FileHashes(memory / "file_hashes.json")  # a file where the folder should be
    assert hashes.hash(file) == hash_file(file)
    assert "cannot write the note" in caplog.text
    with pytest.raises(FileNotFoundError):
        hashes.hash(tmp_path / "nothing.txt")
