"""A sweep in MLflow, for real on SQLite: the whole and its points, once, where they are looked for."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from kgqa_core.artifacts import Artifact, Recipe
from kgqa_core.tracking import TrackingRecord, write_record
from tasks.mlflow_store import tracking_uri
from tasks.run_content import SweepContent, sweep_content
from tasks.sweep_points import PointRow, Spread, Sweep, read_sweep
from tasks.tracking import publish_sweep
from tests.tasks.conftest import copy_store

RUN = """\
dataset: {name: NAME, source: embedded}
encoder: {kind: hash}
explorer: {steps: 2, edge_budget: 5, epochs: 1}
"""
SWEEP = """\
base: BASE
vary: {explorer.width: [5, 7]}
table: [hits1]
plots: [{x: explorer.width, y: f1, beside: ceiling}, {kind: curves, y: dev.hits1}]
"""


def read(folder: Path, base: str = "a.yaml") -> Sweep:
    for name in ("a", "b"):
        (folder / f"{name}.yaml").write_text(RUN.replace("NAME", f"dataset {name}"), encoding="utf-8")
    (folder / "widths.yaml").write_text(SWEEP.replace("BASE", base), encoding="utf-8")
    return read_sweep(folder / "widths.yaml", [f"runtime.home={folder / 'home'}"])


def content(folder: Path, base: str = "a.yaml") -> SweepContent:
    """Return what a tracker shall show of a pretended sweep: two points of two explorers each."""
    artifact = Artifact(folder / "artifact", Recipe("sweep", 1, {}, {"base": base}), "cc" * 32, ())
    (artifact.folder / "plots").mkdir(parents=True, exist_ok=True)
    (artifact.folder / "plots" / "1-f1.png").write_bytes(b"\x89PNG")
    pq.write_table(pa.table({"hits1": [90.0, 92.0]}), artifact.folder / "summary.parquet")
    record = TrackingRecord(
        "sweep", artifact.fingerprint, tables={"summary": "summary.parquet"}, started_ms=1_000, ended_ms=9_000
    )
    write_record(artifact.folder, record)
    rows = [
        PointRow(
            {"explorer.width": width},
            {name: Spread(mean, 0.5, 2) for name, mean in (("hits1", hits), ("f1", 70.0), ("em", 60.0))},
            {"dev.hits1": [(3, Spread(hits, 0.0, 2)), (6, Spread(hits + 1, 0.0, 2))]},
            2,
        )
        for width, hits in ((5, 90.0), (7, 92.0))
    ]
    return sweep_content(read(folder, base), artifact, rows, flow_run_id="flow-run-1", git_commit="0123abcd")


@pytest.mark.parametrize(("base", "experiment"), [("a.yaml", "dataset a"), ("[a.yaml, b.yaml]", "widths")])
def test_a_sweep_stands_beside_its_runs_or_under_its_own_name(tmp_path: Path, base: str, experiment: str) -> None:
    found = content(tmp_path, base)
    assert found.experiment == experiment
    assert found.whole.params["explorer.width"] == "5, 7"
    first, second = found.points[:2]
    figures = {name: value for name, (_, value, _) in first.metrics.items()}
    assert figures == {"hits1": 90.0, "hits1.deviation": 0.5, "f1": 70.0, "f1.deviation": 0.5}
    assert first.params["num_explorers"] == 2
    assert [(step, value) for step, value, _ in second.curves["dev.hits1"]] == [(3, 92.0), (6, 93.0)]


def test_a_sweep_is_published_once_and_whole_whatever_a_killed_publisher_left(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home, shown = copy_store(empty_store, tmp_path / "home"), content(tmp_path)
    set_terminated = MlflowClient.set_terminated

    def killed_after_the_first_point(client: MlflowClient, run_id: str, *rest: object, **more: object) -> None:
        set_terminated(client, run_id, *rest, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_terminated", killed_after_the_first_point)
        with pytest.raises(KeyboardInterrupt):
            publish_sweep(home, shown)
    told = publish_sweep(home, shown)
    assert told is not None and publish_sweep(home, shown) == told
    published = told.parent_run_id

    client = MlflowClient(tracking_uri=tracking_uri(home))
    experiment = client.get_experiment_by_name("dataset a")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    kinds = sorted(run.data.tags["kind"] for run in runs)
    assert kinds == ["sweep", "sweep point", "sweep point"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {run.data.tags.get("mlflow.parentRunId", published) for run in runs} == {published}
    files = {file.path for file in client.list_artifacts(published)}
    assert files == {"plots", "sweep.yaml", "summary.json", "tables"}
    assert [file.path for file in client.list_artifacts(published, "plots")] == ["plots/1-f1.png"]
    table = json.loads(Path(client.download_artifacts(published, "summary.json", str(tmp_path))).read_text())
    assert table["data"] == [[90.0], [92.0]]
