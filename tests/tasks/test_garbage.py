"""What `kgqa gc` deletes and what it keeps, on a built run with a release and older runs."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from kgqa_core.artifacts import Artifact, ArtifactStore, Recipe, exclusive_lock, write_json
from kgqa_core.config import GateSection, RunConfig
from kgqa_core.errors import InputError, KgqaError
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from tasks import outbox
from tasks.garbage import collect, find_garbage, note_run, pin, read_pins
from tasks.mlflow_store import ensure_store
from tasks.release import Releases, link_folder
from tasks.run_content import FlowRun
from tests.conftest import kgqa
from tests.processes import visible_files


def with_steps(config: RunConfig, width: int) -> RunConfig:
    explorer = config.exploration.model_copy(update={"width": width})
    return config.model_copy(update={"explorer": explorer, "gate": GateSection(share=0.2)})


def run(config: RunConfig) -> Pipeline:
    pipeline = Pipeline(config)
    note_run(pipeline.home, config.name, ensure(pipeline, pipeline.specs))
    return pipeline


def paths(home: Path, **how: object) -> list[str]:
    found = find_garbage(home, **{"last": 1, "days": 0, **how})  # type: ignore[arg-type]
    return sorted(one.path.relative_to(home).as_posix() for one in found if one.kind != "lock file")


def folders(pipeline: Pipeline) -> dict[str, str]:
    return {key: pipeline.artifact(key).folder.relative_to(pipeline.home).as_posix() for key in pipeline.specs}


@pytest.mark.slow
def test_runs_releases_builds_and_pins_keep_what_they_need(tiny_copy: RunConfig) -> None:
    home = tiny_copy.runtime.home
    first, second, third = (run(with_steps(tiny_copy, width)) for width in (3, 5, 7))
    made = [folders(one) for one in (first, second, third)]
    lost = [{made[n][key] for key in ("explorer-seed0", "evaluation-seed0")} for n in range(3)]
    data = made[0]["graph"], made[0]["questions"]
    assert data == (made[2]["graph"], made[2]["questions"])
    of_tiny = paths(home, run=tiny_copy.name)
    assert {*of_tiny} == lost[0] | lost[1]
    assert {*paths(home)} >= {*of_tiny}
    assert paths(home, last=2, run=tiny_copy.name) == sorted(lost[0])
    assert paths(home, last=3, run=tiny_copy.name) == []
    assert paths(home, days=1) == []

    releases = Releases(home, "kgqa-tiny")
    champion = releases.make(first.config, first, None, "test")
    releases.move("promoted", champion.id, "a test")
    assert {*paths(home, run=tiny_copy.name)} == lost[0] - {made[0]["explorer-seed0"]} | lost[1]
    pin(home, made[1]["evaluation-seed0"].rpartition("/")[2])  # keeps its explorer, too
    assert {*paths(home, run=tiny_copy.name)} == {made[0]["evaluation-seed0"]}
    spare = releases.make(third.config, third, champion.id, "test")
    other = releases.make(second.config, second, None, "test")
    releases.move("refused", other.id, "a test")
    gone_releases = [{Path(path).name for path in paths(home, last=n) if path.startswith("releases")} for n in (1, 3)]
    assert gone_releases[0] <= {spare.id} and not gone_releases[1]  # champion and who was refused last are needed

    before = visible_files(home)
    collect(home, find_garbage(home, last=1, days=0, run=tiny_copy.name))
    gone = before.keys() - visible_files(home).keys()
    assert {name.rpartition("/")[0] for name in gone} == {made[0]["evaluation-seed0"]}
    ensure(first, first.specs)  # what a release keeps is used, and the rest is made again
    assert visible_files(home) == before


def test_leftovers_go_and_what_a_running_run_holds_stays(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    build = [Recipe("graph", 1, {"n": n}, {}) for n in range(2)]
    artifacts = [store.build(recipe, lambda folder: (folder / "a").write_text("a"))[0] for recipe in build]
    (tmp_path / "artifacts" / "graph" / "deadbeef.work").mkdir()
    (tmp_path / "artifacts" / "graph" / "cafe.work" / "journal").mkdir(parents=True)
    (tmp_path / "outbox").mkdir()
    (tmp_path / "outbox" / "1-old.lock").touch()
    (tmp_path / "outbox" / "1-old.unreadable").touch()
    (tmp_path / "run" / "flows").mkdir(parents=True)
    (tmp_path / "run" / "flows" / "killed.lock").touch()
    partial = tmp_path / "outbox" / ".x.json.123.partial"
    partial.touch()
    grow_old(partial)
    now = round(time.time() * 1000)
    flow = FlowRun("id7", "a run", "d", "c", "0", "", "0", started_ms=now)
    with outbox.noted(tmp_path, flow, tracked=False) as held:
        held.has([StageOutcome("graph", artifacts[0], built=False)])
        found = find_garbage(tmp_path, last=1, days=0)
        assert len(found) == 7
        assert {one.path.name: one.kind for one in found} == {
            artifacts[1].folder.name: "artifact graph",
            "deadbeef.work": "half-made artifact",
            partial.name: "half-written file",
            **{f"{name}.lock": "lock file" for name in ("1-old", "killed", *(one.folder.name for one in artifacts))},
        }
        with pytest.raises(KgqaError, match="runs are at work, and may need what is there: a run"):
            collect(tmp_path, found)
        assert artifacts[1].folder.exists()
    with exclusive_lock(artifacts[0].folder.with_suffix(".lock")):
        collect(tmp_path, found)
    assert not artifacts[1].folder.exists()
    assert artifacts[0].folder.exists() and artifacts[0].folder.with_suffix(".lock").exists()
    assert {path.name for path in (tmp_path / "artifacts" / "graph").iterdir()} == {
        artifacts[0].folder.name,
        f"{artifacts[0].folder.name}.lock",
        "cafe.work",
    }
    assert [path.name for path in (tmp_path / "outbox").iterdir()] == ["1-old.unreadable"]  # somebody may mend it


def test_what_killed_queries_and_exports_left_goes_after_an_hour(tmp_path: Path) -> None:
    left = {tmp_path / "run" / "sql-1234": "spill.tmp", tmp_path / ".export-5678": "triples.parquet"}
    for folder, name in left.items():
        folder.mkdir(parents=True)
        (folder / name).write_bytes(bytes(7))
    assert find_garbage(tmp_path, last=1, days=0) == []
    for folder in left:
        grow_old(folder)
    found = find_garbage(tmp_path, last=1, days=0)
    assert {one.path for one in found} == {*left} and collect(tmp_path, found) == 14
    assert not any(folder.exists() for folder in left)


def make(home: Path, stage: str, number: int, **inputs: str) -> Artifact:
    """Return an artifact of one file."""
    recipe = Recipe(stage, 1, {"n": number}, inputs)
    made, _ = ArtifactStore(home / "artifacts").build(recipe, lambda folder: (folder / "a").write_text(f"{number}"))
    return made


def release(home: Path, *names: str) -> None:
    """Write releases that hold nothing, the oldest first."""
    for name in names:
        manifest = {"run": "x", "made_of": {}, "parent": None, "stages": {}, "made": name.lstrip(".")}
        (home / "releases" / "kgqa-x" / name).mkdir(parents=True)
        write_json(home / "releases" / "kgqa-x" / name / "release.json", manifest)


def grow_old(path: Path) -> None:
    """Let a file or folder be two hours old."""
    os.utime(path, (time.time() - 7200,) * 2)


def note(home: Path, run: str, *made: Artifact) -> None:
    note_run(home, run, [StageOutcome(one.recipe.stage, one, built=True) for one in made])


def test_a_pin_is_a_whole_name_or_the_beginning_of_one_id(tmp_path: Path) -> None:
    for number in range(4):
        note(tmp_path, "my run", make(tmp_path, "graph", number))
    lone = make(tmp_path, "graph", 7)
    with pytest.raises(InputError, match=r"cannot pin 'my rnu': no run, .*; near are my run"):
        pin(tmp_path, "my rnu")
    with pytest.raises(InputError, match="cannot pin '': 5 artifacts and releases begin so"):
        pin(tmp_path, "")
    assert read_pins(tmp_path) == []
    pin(tmp_path, "my run")
    assert paths(tmp_path) == [lone.folder.relative_to(tmp_path).as_posix()]
    for name in (lone.fingerprint[:8], lone.fingerprint):
        pin(tmp_path, name)
        assert read_pins(tmp_path) == ["my run", lone.fingerprint]
    assert paths(tmp_path) == []


def test_a_pin_that_is_written_by_hand_may_be_the_beginning_of_an_id(tmp_path: Path) -> None:
    pinned, other = (make(tmp_path, "graph", number) for number in range(2))
    release(tmp_path, "aaaa", "bbbb")
    (tmp_path / "pins.txt").write_text(f"{pinned.fingerprint[:9]}\naaa\n", encoding="utf-8")
    assert paths(tmp_path) == [other.folder.relative_to(tmp_path).as_posix()]


def test_a_release_that_is_promoted_after_it_was_found_stays(tmp_path: Path) -> None:
    release(tmp_path, "aaaa", "bbbb")
    found = find_garbage(tmp_path, last=1, days=0)
    assert [one.path.name for one in found] == ["aaaa"]
    Releases(tmp_path, "kgqa-x").move("promoted", "aaaa", "by hand, while the rest is deleted")
    assert collect(tmp_path, found) == 0
    assert (tmp_path / "releases" / "kgqa-x" / "aaaa" / "release.json").is_file()


def test_a_file_counts_once_where_all_its_names_go_and_not_where_a_release_keeps_one(tmp_path: Path) -> None:
    artifact = make(tmp_path, "graph", 1_234_567)
    release(tmp_path, "aaaa", "bbbb")
    for name in ("aaaa", "bbbb"):
        link_folder(artifact.folder, tmp_path / "releases" / "kgqa-x" / name / "artifacts")
    size = sum(file.stat().st_size for file in artifact.folder.iterdir())
    own = (tmp_path / "releases" / "kgqa-x" / "aaaa" / "release.json").stat().st_size

    def told(last: int) -> dict[str, int]:
        found = find_garbage(tmp_path, last=last, days=0)
        return {one.kind: one.bytes for one in found if one.kind != "lock file"}

    assert told(2) == {"artifact graph": 0}
    assert told(1) == {"artifact graph": 0, "release": own}
    shutil.rmtree(tmp_path / "releases" / "kgqa-x" / "bbbb")
    release(tmp_path, "cccc")
    assert told(1) == {"artifact graph": 0, "release": size + own}


def test_a_full_disk_loses_no_pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [make(tmp_path, "graph", number).fingerprint for number in range(2)]
    pin(tmp_path, made[0])

    def write_some(path: Path, text: str, **_: object) -> None:
        path.write_bytes(text[:5].encode())
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as full, pytest.raises(OSError, match="no space"):
        full.setattr(Path, "write_text", write_some)
        pin(tmp_path, made[1])
    assert read_pins(tmp_path) == [made[0]]


def test_a_half_made_release_takes_no_place_of_the_last_ones(tmp_path: Path) -> None:
    release(tmp_path, "aaaa", "bbbb", ".cccc.1234.partial")
    assert paths(tmp_path) == ["releases/kgqa-x/aaaa"]


def test_what_a_killed_gc_left_stops_none_of_what_was_made_again(tmp_path: Path) -> None:
    folder = make(tmp_path, "graph", 1).folder
    left = folder.with_name(f".{folder.name}.gc.partial")  # half-deleted, before a run made it anew
    shutil.copytree(folder, left)
    grow_old(left)
    collect(tmp_path, find_garbage(tmp_path, last=1, days=0))
    assert not [*folder.parent.iterdir()]


def test_what_vanishes_while_it_is_counted_has_no_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = tmp_path / "artifacts" / "graph" / ".x.partial"
    partial.mkdir(parents=True)
    for name in ("kept", "gone"):
        (partial / name).write_bytes(bytes(7))
    grow_old(partial)
    is_file = Path.is_file

    def look_and_lose(path: Path) -> bool:
        found = is_file(path)
        if path.name == "gone":
            path.unlink(missing_ok=True)  # by the run that is at work there
        return found

    monkeypatch.setattr(Path, "is_file", look_and_lose)
    assert [one.bytes for one in find_garbage(tmp_path, last=1, days=0)] in ([7], [14])


@pytest.mark.slow
def test_of_artifacts_of_one_content_those_that_are_named_count(home: Path) -> None:
    """Whatever their fingerprints: the same questions linked in an old graph would keep it."""
    graphs = [make(home, "graph", number) for number in range(4)]
    questions = [make(home, "questions", 7, graph=graph.content) for graph in graphs]
    assert len({one.content for one in questions}) == 1 < len({one.fingerprint for one in questions})
    for place in range(4):
        reader = make(home, "explorer", place, questions=questions[0].content)
        note(home, "demo", graphs[place], questions[place], reader)
        kept = {one.folder.relative_to(home).as_posix() for one in (graphs[place], questions[place], reader)}
        assert not kept & {*paths(home)}
        assert {path for path in paths(home) if "/graph/" in path or "/questions/" in path} == {
            one.folder.relative_to(home).as_posix()
            for other in range(4)
            if other != place
            for one in (graphs[other], questions[other])
        }


def test_what_an_alias_of_mlflow_names_is_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow import MlflowClient

    graphs = [make(home, "graph", number) for number in range(3)]
    explorers = [make(home, "explorer", number, graph=graph.content) for number, graph in enumerate(graphs)]
    for pair in zip(graphs, explorers, strict=True):
        note(home, "demo", *pair)
    client = MlflowClient(*[ensure_store(home)] * 2)
    client.create_registered_model("kgqa-demo")
    for graph, explorer in zip(graphs, explorers, strict=True):
        client.create_model_version(
            "kgqa-demo", "file:/x", tags={"fingerprint": explorer.fingerprint, "graph": graph.content}
        )
    client.set_registered_model_alias("kgqa-demo", "champion", "1")
    assert paths(home) == sorted(one.folder.relative_to(home).as_posix() for one in (explorers[1], graphs[1]))
    shutil.rmtree(explorers[0].folder)  # the registry has its own copy, which needs the graph
    assert graphs[0].folder.relative_to(home).as_posix() not in paths(home)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:secret@127.0.0.1:9")
    assert paths(home) == []
    assert "all graphs and explorers stay" in caplog.text and "secret" not in caplog.text


def test_the_command_shows_and_deletes_only_when_told(own_home: Path) -> None:
    made, _ = ArtifactStore(own_home / "artifacts").build(Recipe("graph", 1, {}, {}), lambda folder: None)
    shown = json.loads(kgqa("gc", "--all", "--days", "0", "--json").stdout)
    assert made.folder.exists() and not shown["deleted"]
    assert str(made.folder) in {one["path"] for one in shown["garbage"]}
    assert json.loads(kgqa("gc", "--pin", made.fingerprint, "--json").stdout)["pinned"] == [made.fingerprint]
    for pinned in (True, False):
        done = kgqa("gc", "--all", "--days", "0", "--delete")
        assert done.exit_code == 0
        assert made.folder.exists() == pinned
        (own_home / "pins.txt").unlink(missing_ok=True)
    assert kgqa("gc").exit_code == 2
