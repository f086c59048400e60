"""kgqa verify: bits that flipped where no size changed."""

from __future__ import annotations

import json
import random

import pytest

from kgqa_core.config import RunConfig
from kgqa_core.run.pipeline import Pipeline
from tasks.release import releases_of
from tests.conftest import Build, kgqa

NUM_FLIPS = 5  # per kind of artifact


@pytest.mark.slow
def test_every_flipped_bit_is_found_and_removed_artifacts_are_made_again(
    tiny_copy: RunConfig, tiny_config: RunConfig, build_stages: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGQA_HOME", str(tiny_copy.runtime.home))
    conf = tiny_config.runtime.home.parent / "tiny.yaml"
    assert kgqa("verify", conf).exit_code == 0
    draw, before = random.Random(0), [Pipeline(tiny_copy).artifact(key) for key in Pipeline(tiny_copy).specs]
    for artifact in before:
        files = sorted(path for path in artifact.folder.rglob("*") if path.is_file() and path.stat().st_size)
        for path in draw.choices(files, k=NUM_FLIPS):
            whole = path.read_bytes()
            flipped = bytearray(whole)
            flipped[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
            path.write_bytes(flipped)
            done = kgqa("verify", "--json")
            found = json.loads(done.stdout)["damaged"]
            assert done.exit_code == 5
            assert list(found) == ["/".join(artifact.folder.parts[-2:])] and path.name in str(found)
            assert Pipeline(tiny_copy).store.find(artifact.recipe) is None  # a reader sees it, too
            path.write_bytes(whole)
    flipped = bytearray((before[1].folder / "edge_tail.npy").read_bytes())
    flipped[-4] ^= 1
    (before[1].folder / "edge_tail.npy").write_bytes(flipped)
    told = kgqa("verify", conf)
    assert (told.exit_code, len(told.stderr.splitlines())) == (5, 1) and "edge_tail.npy" in told.stderr
    assert "1 damaged, 1 removed" in kgqa("verify", conf, "--remove").stdout
    assert build_stages(Pipeline(tiny_copy)) == ["graph"]
    assert kgqa("verify").exit_code == 0


def test_what_a_release_alone_holds_is_read_too_and_not_removed(
    tiny_copy: RunConfig, build_stages: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGQA_HOME", str(tiny_copy.runtime.home))
    releases = releases_of(tiny_copy)
    release = releases.make(tiny_copy, Pipeline(tiny_copy), None, "0")
    whole = json.loads(kgqa("verify", "--json").stdout)
    kept = release.folder / "artifacts" / "explorer" / release.explorer / "model.safetensors"
    flipped = bytearray(kept.read_bytes())
    flipped[-1] ^= 1
    kept.write_bytes(flipped)  # one file under two links
    assert list(json.loads(kgqa("verify", "--json").stdout)["damaged"]) == [f"explorer/{release.explorer}"]
    assert kgqa("verify", "--remove").exit_code == 0
    assert build_stages(Pipeline(tiny_copy)) == ["explorer-seed0"]
    for words in (("verify",), ("verify", "--remove")):
        done = kgqa(*words)
        assert (done.exit_code, "kgqa promote" in done.stderr) == (5, True) and kept.exists()
    releases.restore(release)
    assert kgqa("verify").exit_code == 0
    assert json.loads(kgqa("verify", "--json").stdout)["artifacts"] == whole["artifacts"]
