"""kgqa verify: bits that flipped where no size changed."""

from __future__ import annotations

import json
import random

import pytest

from kgqa_core.config import RunConfig
from kgqa_core.run.pipeline import Pipeline
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
    assert "1 damaged and removed" in kgqa("verify", conf, "--remove").stdout
    assert build_stages(Pipeline(tiny_copy)) == ["graph"]
    assert kgqa("verify").exit_code == 0
