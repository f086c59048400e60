"""A store of MLflow's, and the built run of all tests published to it, its explorer a registered model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mlflow
import pytest
from filelock import FileLock

import tasks.tracking
from flows.pipeline import describe_serving
from kgqa_core.config import RunConfig
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from tasks.mlflow_store import ensure_store
from tasks.run_content import FlowRun
from tests.conftest import TOWNS, Shared
from tests.tasks.published import DRAWN, publish


@pytest.fixture(scope="session")
def empty_store(shared: Shared) -> Path:
    """An empty store, made once: each test gets a copy."""
    home = shared("store")
    with FileLock(home.with_suffix(".lock")):  # nobody copies what another worker still writes
        ensure_store(home)
    return home / "mlflow" / "mlflow.db"


def copy_store(empty_store: Path, home: Path) -> Path:
    """Put the empty store into a home and return that."""
    (home / "mlflow").mkdir(parents=True)
    shutil.copy(empty_store, home / "mlflow" / "mlflow.db")
    return home


@pytest.fixture
def home(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # where MLflow would like to put its artifacts
    for draw in DRAWN:  # as slow as all the rest; see ``shown``
        monkeypatch.setattr(tasks.tracking, draw, lambda *_: None)
    return copy_store(empty_store, tmp_path / "a home")


@dataclass(frozen=True)
class TinyRun:
    """The built run of all tests, as a flow would publish it."""

    config: RunConfig
    outcomes: list[StageOutcome]
    run: FlowRun

    def outcome(self, key: str) -> StageOutcome:
        return next(outcome for outcome in self.outcomes if outcome.key == key)


@pytest.fixture(scope="session")
def tiny_run(tiny_config: RunConfig) -> TinyRun:
    run = FlowRun(
        id="flow-run-1",
        name="brave-otter",
        dataset="tiny",
        config_name="tiny",
        config_hash="c0ffee",
        config_text="name: tiny\n",
        git_commit="0123abcd",
        started_ms=1_000_000,
        serving=describe_serving(tiny_config),
    )
    pipeline = Pipeline(tiny_config)
    return TinyRun(tiny_config, ensure(pipeline, pipeline.specs), run)


@pytest.fixture(scope="session")
def registered(tiny_run: TinyRun, empty_store: Path, shared: Shared) -> Path:
    """The home of a store to which the tiny run is published. Leave it as it is."""
    home = shared("registered")
    with FileLock(home.with_suffix(".lock")):
        if not (home / "mlflow").exists():
            published = publish(copy_store(empty_store, home), tiny_run.run, tiny_run.outcomes)
            assert published is not None
            assert published.versions == ("kgqa-tiny/1",)
    return home


@pytest.fixture
def store(registered: Path, tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What a serving machine has: MLflow looks into the store, and KGQA_HOME holds the graph. Gives the store's URI."""
    before = mlflow.get_tracking_uri()
    uri = f"sqlite:///{registered / 'mlflow' / 'mlflow.db'}"
    mlflow.set_tracking_uri(uri)
    monkeypatch.setenv("KGQA_HOME", str(tiny_run.config.runtime.home))
    yield uri
    mlflow.set_tracking_uri(before)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a sweep file beside two run configurations, and return its path."""
    for name in ("towns", "rivers"):
        (tmp_path / f"{name}.yaml").write_text(TOWNS.replace("towns", name), encoding="utf-8")

    def write_sweep(text: str) -> Path:
        path = tmp_path / "sweeps" / "sizes.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write_sweep
