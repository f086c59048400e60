"""One Prefect server for all, and a small run whose systems stand side by side, with planners barely trained."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from benchmarks.places import RUN, write_places
from kgqa_core.config import RunConfig
from kgqa_core.config_file import read_config
from kgqa_core.run.pipeline import Pipeline
from tasks.server import prefect_server
from tests.conftest import Build, Shared

SYSTEMS = """\
systems:
  answered_by: [oracle]
  num_questions: 23
  chunk: 8
  max_traces: 3
  rog: {plans: dense}
  eperm: {plans: random}
"""

Configure = Callable[..., Pipeline]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The PREFECT_API_URL of a server for all runs that need none of their own: each start costs seconds."""
    before = dict(os.environ)
    with prefect_server(tmp_path_factory.mktemp("server")) as url:
        os.environ.clear()
        os.environ.update(before)
        yield url


@pytest.fixture
def conf(tiny_config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of the built run of all tests."""
    monkeypatch.setenv("KGQA_HOME", str(tiny_config.runtime.home))
    return tiny_config.runtime.home.parent / "tiny.yaml"


@pytest.fixture
def pipeline(tiny_config: RunConfig) -> Pipeline:
    """The built run of all tests. Leave it as it is."""
    return Pipeline(tiny_config)


@pytest.fixture(scope="session")
def places(shared: Shared) -> Configure:
    """Return the run in one home that all its tests share, with settings of one's own: what is made is made once."""
    folder = shared("places")
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "places.yaml").exists():
            write_places(folder)
            (folder / "places.yaml").write_text(RUN + SYSTEMS, encoding="utf-8")

    def configure(*settings: str) -> Pipeline:
        return Pipeline(read_config(folder / "places.yaml", [f"runtime.home={folder / 'home'}", *settings]))

    return configure


@pytest.fixture(scope="session")
def compared(places: Configure, build_stages: Build) -> Pipeline:
    """The run with all its systems, an oracle in the place of a language model. Leave it as it is."""
    pipeline = places()
    build_stages(pipeline)
    return pipeline
