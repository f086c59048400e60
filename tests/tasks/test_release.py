"""Releases hold what they need, one of them is the champion, and every move is noted once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flows import gated
from flows.summary import RunSummary
from kgqa_core.artifacts import read_artifact, write_json
from kgqa_core.config import GateSection, RunConfig, TrackingSection
from kgqa_core.errors import ArtifactError, ConfigError, InputError
from kgqa_core.run.ask import open_served
from kgqa_core.run.pipeline import Pipeline
from tasks.release import Release, Releases, champion_of, release_id, releases_of, resolve_start, without_start
from tests.conftest import Build

MODEL = "kgqa-tiny"


@pytest.fixture
def releases(tiny_copy: RunConfig) -> Releases:
    return Releases(tiny_copy.runtime.home, MODEL)


@pytest.fixture
def release(releases: Releases, tiny_copy: RunConfig) -> Release:
    return releases.make(tiny_copy, Pipeline(tiny_copy), None, "0")


def damage(weights: Path) -> None:
    """Change the last byte of a file, which may be one under two links."""
    with weights.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x7f")


def started(config: RunConfig, start: str) -> RunConfig:
    section = config.exploration.model_copy(update={"init_from": Path(start)})
    return config.model_copy(update={"explorer": section})


def test_a_release_outlives_the_artifact_store_and_is_made_once(
    releases: Releases, release: Release, tiny_copy: RunConfig
) -> None:
    pipeline = Pipeline(tiny_copy)
    assert set(release.stages) == {"graph", "explorer-seed0"}
    assert release.made_of["questions"] == pipeline.artifact("questions").content
    assert releases.make(tiny_copy, pipeline, "another", "0") == release
    (release.folder / "release.json").unlink()  # one that lost its manifest is made again
    assert releases.make(tiny_copy, pipeline, None, "0").id == release.id
    shutil.rmtree(pipeline.store.root / "explorer")
    shutil.rmtree(pipeline.store.root / "graph")
    with pytest.raises(ArtifactError, match="graph with the content hash"):
        open_served(release.served, releases.home)
    assert releases.restore(release) == ["explorer-seed0", "graph"]
    assert releases.restore(release) == []
    assert read_artifact(pipeline.store.root / "explorer" / release.explorer) is not None
    answerer = open_served(release.served, releases.home)
    assert answerer.ask("who directed it?", answerer.system.graph.label_of(0)).error == ""


def test_a_champion_whose_folder_is_gone_is_made_again_or_named_with_what_helps(
    releases: Releases, release: Release, tiny_copy: RunConfig
) -> None:
    releases.move("promoted", release.id, "the first one")
    shutil.rmtree(release.folder)
    with pytest.raises(ArtifactError, match=rf"the champion {release.id} of {MODEL} is not .*kgqa promote CONF --to"):
        releases.champion()
    summary = RunSummary("tiny", ())
    judged = gated.judge_release(tiny_copy, Pipeline(tiny_copy), summary, None)
    assert judged.gate is not None and "nothing new" in judged.gate["reason"]
    assert releases.champion() == releases.read(release.id)


def play(releases: Releases, *moves: str) -> None:
    """Make moves one after another: "promoted a", "rolled back b"."""
    for move in moves:
        kind, _, name = move.rpartition(" ")
        releases.move(kind, name, "a test")  # type: ignore[arg-type]


def test_a_promotion_replayed_moves_once_and_a_rollback_goes_back(releases: Releases) -> None:
    moved = [releases.move("promoted", "a", "better") for _ in range(100)]
    assert [move is not None for move in moved] == [True] + [False] * 99
    play(releases, "promoted b", "promoted c")
    for before in "ba":
        assert releases.before_champion() == before
        play(releases, f"rolled back {before}")
    with pytest.raises(InputError, match="nothing to return to"):
        releases.before_champion()
    play(releases, "promoted d")
    assert releases.before_champion() == "a"
    shown = [(move.kind, move.from_release, move.to_release) for move in releases.moves()]
    assert shown[0] == ("promoted", None, "a")
    assert shown[3:] == [("rolled back", "c", "b"), ("rolled back", "b", "a"), ("promoted", "a", "d")]


def test_a_rollback_returns_to_the_champion_before_whoever_was_champion_twice_or_never(releases: Releases) -> None:
    play(releases, *(f"promoted {name}" for name in "zabac"))
    for name in "abz":  # not a again, which was rolled back
        assert releases.before_champion() == name
        play(releases, f"rolled back {name}")
    with pytest.raises(InputError, match=r"nothing to return to\. .*--to RELEASE"):
        releases.before_champion()
    play(releases, "promoted b", "refused x", "rolled back x")
    assert releases.before_champion() == "z"
    play(releases, "promoted b", "promoted c")
    assert releases.before_champion() == "b"


def test_who_is_promoted_by_hand_was_refused_since_the_last_promotion(releases: Releases, release: Release) -> None:
    with pytest.raises(InputError, match="a run of a configuration with a gate makes one"):
        Releases(releases.home, "kgqa-other").last_challenger()
    play(releases, "promoted a", "refused b", "promoted c", "rolled back a")
    assert releases.last_challenger() == release.id  # the newest
    play(releases, "refused d", "promoted d", "promoted e")
    assert releases.last_challenger() == release.id
    play(releases, "refused b", "rolled back a")
    assert releases.last_challenger() == "b"


def test_what_is_served_is_part_of_a_release_and_older_names_stay(
    releases: Releases, release: Release, tiny_copy: RunConfig
) -> None:
    limits = tiny_copy.evaluation.model_copy(update={"edge_budget": 3, "evidence_paths": 1})
    batches = tiny_copy.runtime.model_copy(update={"batch_size": 31})
    for changed in ({"evaluation": limits}, {"runtime": batches}):
        config = tiny_copy.model_copy(update=changed)
        made = releases.make(config, Pipeline(tiny_copy), None, "0")
        assert made.stages == release.stages
        assert made.id != release.id
        assert (made.card.evaluation, made.card.batch_size) == (config.evaluation, config.runtime.batch_size)
    unserved = tiny_copy.evaluation.model_copy(update={"split": "dev", "passes": 2})
    same = releases.make(tiny_copy.model_copy(update={"evaluation": unserved}), Pipeline(tiny_copy), None, "1")
    assert same.id == release.id
    old = releases.folder / release_id(release.stages)  # named when stages alone counted
    release.folder.rename(old)
    assert releases.make(tiny_copy, Pipeline(tiny_copy), None, "1").folder == old == releases.read(old.name).folder
    other = tiny_copy.model_copy(update={"evaluation": limits})
    assert releases.make(other, Pipeline(tiny_copy), None, "1").folder != old


def test_half_made_releases_are_none(releases: Releases, release: Release) -> None:
    for name in (f".{release.id}.0123456789ab.partial", f".{release.id}.gc.partial"):
        shutil.copytree(release.folder, releases.folder / name)
    assert releases.ids() == [release.id]
    assert releases.last_challenger() == release.id


def test_who_was_rolled_back_is_known_until_it_is_promoted_again(releases: Releases) -> None:
    play(releases, "promoted a", "promoted b")
    assert releases.rolled_back("b") is None
    releases.move("rolled back", "a", "wrong since Tuesday")
    play(releases, "refused b")
    back = releases.rolled_back("b")
    assert back is not None and back.why == "wrong since Tuesday"
    assert releases.rolled_back("a") is None
    play(releases, "promoted b")
    assert releases.rolled_back("b") is None


def test_refusals_are_noted_once_and_move_nothing(releases: Releases) -> None:
    play(releases, "promoted a")
    for _ in range(3):
        play(releases, "refused b")
        releases.tell(len(releases.moves()))
    assert [move.kind for move in releases.moves()] == ["promoted", "refused"]
    assert champion_of(releases.moves()) == "a"


def test_a_champion_that_somebody_moved_meanwhile_is_not_overwritten(releases: Releases) -> None:
    play(releases, "promoted a")
    releases.move("promoted", "b", "better", expected="a")
    play(releases, "rolled back a")
    with pytest.raises(InputError, match="is a now, and was b when this was judged"):
        releases.move("promoted", "c", "better than b", expected="b")
    assert champion_of(releases.moves()) == "a"


def test_what_is_damaged_or_unknown_is_named(releases: Releases, release: Release) -> None:
    with pytest.raises(InputError, match=f"no release 'zz' of {MODEL}; there are {release.id}"):
        releases.read("zz")
    assert releases.read(release.id[:5]) == release
    releases.move("promoted", release.id, "first")
    (releases.folder / "moves.json").write_text("[{}]", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"moves\.json is damaged"):
        releases.champion()


def test_training_starts_from_the_champion_and_nothing_new_from_where_it_started(
    releases: Releases, tiny_copy: RunConfig
) -> None:
    config = started(tiny_copy, f"models:/{MODEL}@champion")
    assert resolve_start(config) == (without_start(config), None)  # the first run of all
    pipeline = Pipeline(without_start(config))
    first = releases.make(config, pipeline, None, "0")
    releases.move("promoted", first.id, "first")
    assert resolve_start(config) == (without_start(config), None)  # nothing new: as the champion itself
    other = config.model_copy(update={"explorer": config.exploration.model_copy(update={"epochs": 3})})
    resolved, parent = resolve_start(other)
    assert parent == first.id
    assert resolved.exploration.init_from == first.served
    assert "init/model.json" in Pipeline(resolved).specs["explorer-seed0"].files
    named, parent = resolve_start(started(config, f"models:/{MODEL}@{first.id[:6]}"))
    assert (named.exploration.init_from, parent) == (first.served, first.id)
    with pytest.raises(InputError, match="kgqa-tiny"):
        resolve_start(started(config, "models:/kgqa-tiniest@champion"))


def test_a_run_whose_name_makes_the_model_of_another_run_is_refused(
    releases: Releases, release: Release, tiny_copy: RunConfig
) -> None:
    gated = tiny_copy.model_copy(update={"gate": GateSection()})
    assert releases_of(gated).folder == releases.folder
    releases.folder.rename(releases.folder.with_name("kgqa-tiny-v2"))
    for name in ("tiny.v2", "tiny v2", "tiny-v2"):
        with pytest.raises(ConfigError, match=rf"the runs '{name}' and 'tiny' would share the model kgqa-tiny-v2"):
            releases_of(gated.model_copy(update={"name": name}))


def test_a_start_that_was_deleted_stops_nothing(releases: Releases, tiny_copy: RunConfig) -> None:
    config = started(tiny_copy, f"models:/{MODEL}@champion")
    child = releases.make(config, Pipeline(without_start(config)), "gone", "0")
    assert resolve_start(config) == (without_start(config), None)
    releases.move("promoted", child.id, "by hand")
    assert resolve_start(config) == (without_start(config, child.served), child.id)
    with pytest.raises(InputError, match="there is no release 'gone'"):
        resolve_start(started(tiny_copy, f"models:/{MODEL}@gone"))


def test_the_beginning_of_several_releases_names_none(releases: Releases, release: Release) -> None:
    shutil.copytree(release.folder, release.folder.with_name(f"{release.id}0"))
    with pytest.raises(InputError, match=f"2 releases begin with '{release.id[:3]}' of {MODEL}; there are"):
        releases.read(release.id[:3])


def test_a_release_whose_files_are_damaged_is_not_put_back(releases: Releases, release: Release) -> None:
    stored = releases.home / "artifacts" / "explorer" / release.explorer
    damage(stored / "model.safetensors")
    shutil.rmtree(stored)  # as kgqa verify --remove does
    with pytest.raises(ArtifactError, match=rf"the release {release.id} is damaged: .*model\.safetensors"):
        releases.restore(release)
    assert not stored.exists()
    shutil.rmtree(release.folder / "artifacts" / "explorer")
    with pytest.raises(ArtifactError, match=rf"{release.explorer}/manifest\.json is missing"):
        releases.restore(release)


def test_a_release_gets_back_what_the_store_made_again(
    releases: Releases, release: Release, tiny_copy: RunConfig, build_stages: Build
) -> None:
    kept = release.folder / "artifacts" / "explorer" / release.explorer
    damage(kept / "model.safetensors")
    assert build_stages(Pipeline(tiny_copy)) == ["explorer-seed0"] and read_artifact(kept) is None
    assert releases.restore(release) == []
    mended = read_artifact(kept)
    assert mended is not None and mended.content == Pipeline(tiny_copy).artifact("explorer-seed0").content


def test_weights_that_changed_where_they_are_served_are_not_promoted(releases: Releases, release: Release) -> None:
    assert releases.restore(release) == []
    damage(release.served / "model.safetensors")
    with pytest.raises(ArtifactError, match=rf"{release.id} is damaged: .*served/model\.safetensors is .* not as it"):
        releases.restore(release)


def test_a_release_that_is_put_back_while_a_run_makes_the_same_anew_stops_no_run(
    releases: Releases, release: Release, tiny_copy: RunConfig
) -> None:
    pipeline = Pipeline(tiny_copy)
    lost = pipeline.artifact("explorer-seed0")
    shutil.rmtree(lost.folder)

    def train(folder: Path) -> None:
        for one in lost.files:
            shutil.copy(release.folder / "artifacts" / "explorer" / release.explorer / one.name, folder / one.name)
        assert releases.restore(release) == ["explorer-seed0"]

    made, _ = pipeline.store.build(lost.recipe, train)
    assert made.content == lost.content
    assert not lost.folder.with_suffix(".work").exists()


@pytest.mark.parametrize("told", [False, True])
def test_a_move_that_comes_while_mlflow_is_told_is_told_as_well(
    releases: Releases, tiny_copy: RunConfig, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    config = tiny_copy.model_copy(update={"tracking": TrackingSection()})
    for name in "ab":
        (releases.folder / name).mkdir(parents=True)
        manifest = {"run": "tiny", "made_of": {}, "parent": None, "stages": {"explorer-seed0": name}, "made": name}
        write_json(releases.folder / name / "release.json", manifest)
        releases.move("promoted", name, "better")
    shown = list[str | None]()

    def point(_home: Path, _model: str, champion: str | None, _challenger: str | None) -> bool:
        if len(releases.moves()) == 2:
            releases.move("rolled back", "a", "on call, in another process")
            if told:
                gated.tell_aliases(config, releases)
        shown.append(champion)
        return True

    monkeypatch.setattr(gated, "point_aliases", point)
    gated.tell_aliases(config, releases)
    assert shown == ["a"] * told + ["b", "a"]
    assert all(move.told for move in releases.moves())
    gated.tell_aliases(config, releases)
    assert len(shown) == 2 + told
