"""A pretended run, the stages of which leave records as real ones do, and what MLflow shows of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from mlflow import MlflowClient
from mlflow.entities import Run

from kgqa_core.artifacts import Artifact, Recipe
from kgqa_core.run.pipeline import StageOutcome
from kgqa_core.tracking import Point, TrackingRecord, write_record
from tasks import outbox
from tasks.mlflow_store import tracking_uri
from tasks.run_content import FlowRun
from tasks.tracking import Published, deliver

LOSS: list[Point] = [(20 * step, 3.0 / step, 1_000_000 + 500 * step) for step in range(1, 1100)]  # more than a batch
TRAINED = {seed: Recipe("explorer", 1, {}, {"seed": str(seed)}).fingerprint for seed in (1, 2)}
JUDGED = {seed: Recipe("evaluation", 1, {}, {"seed": str(seed)}).fingerprint for seed in (1, 2)}
BOTH = (JUDGED[1], JUDGED[2])
CONTENTS = {"graph": "aa" * 32, "questions": "bb" * 32, "encodings": "cc" * 32}
SYSTEMS = ["explorer seed 1", "explorer seed 2"]
DRAWN = ("draw_learning_curves", "draw_hits_by_hops")


@dataclass
class Pipeline:
    """A pretended run: its stages leave records as real ones do."""

    home: Path

    def stage(self, key: str, *, built: bool = True, **recorded: Any) -> StageOutcome:
        stage = key.partition("-")[0]
        recipe = Recipe(stage, 1, {}, {"seed": str(recorded["seed"])} if "seed" in recorded else {})
        folder = self.home / "artifacts" / stage / recipe.fingerprint
        if not folder.exists():
            folder.mkdir(parents=True)
            times = {"started_ms": 1_000_000, "ended_ms": 1_007_000}
            write_record(folder, TrackingRecord(stage, recipe.fingerprint, **{**times, **recorded}))
        return StageOutcome(key, Artifact(folder, recipe, CONTENTS.get(key, "dd" * 32), ()), built)

    def graph(self, *, built: bool = True) -> StageOutcome:
        return self.stage("graph", built=built, metrics={"num_triples": 2003.0}, params={"format": "tsv"})

    def explorer(self, seed: int, *, built: bool = True, loss: Sequence[Point] = LOSS[:3]) -> StageOutcome:
        return self.stage(
            f"explorer-seed{seed}",
            built=built,
            system="explorer",
            seed=seed,
            params={"epochs": 3, "learning_rate": 2e-3, "prune": False, "init_from": None},
            metrics={"train.cpu_seconds": 17.5, "dev.hits1": 90.0 + seed},
            curves={"train.loss": loss, "dev.hits1": [(20, 50.0, 1_000_500), (40, 75.0, 1_001_000)]},
        )

    def evaluation(self, seed: int, *, built: bool = True) -> StageOutcome:
        metrics = {"hits1": 96.0 + seed, "hits1.hop1": 97.0, "hits1.hop2": 99.0, "template_control.hits1.hop1": 80.0}
        outcome = self.stage(
            f"evaluation-seed{seed}",
            built=built,
            system="explorer",
            seed=seed,
            metrics=metrics,
            tables={"predictions": "predictions.parquet"},
            started_ms=1_008_000,
            ended_ms=1_009_500,
        )
        table = {"question": [f"question {row}" for row in range(613)], "prediction": [["Zoë", "Ёлка"]] * 613}
        pq.write_table(pa.table(table), outcome.artifact.folder / "predictions.parquet")
        return outcome

    def everything(self, *, built: bool = True) -> list[StageOutcome]:
        systems = [stage(seed, built=built) for seed in (1, 2) for stage in (self.explorer, self.evaluation)]
        return [self.graph(built=built), *systems]


def a_run(number: int = 1, **changes: Any) -> FlowRun:
    name, started = f"brave-otter-{number}", 1_000_000 * number
    text = "name: demo\nexplorer:\n  epochs: 3\n"
    run = FlowRun(f"flow-run-{number}", name, "demo", "demo", "c0ffee", text, "0123abcd", started)
    return replace(run, **changes)


def publish(home: Path, run: FlowRun, outcomes: Sequence[StageOutcome]) -> Published | None:
    """Tell MLflow about a run that has ended, as a flow does."""
    note = outbox.Note(run, tracked=True, stages=tuple(outcomes))
    outbox.write(home, note)
    return deliver(home, note)


def seen(home: Path, uri: str | None = None) -> tuple[MlflowClient, dict[str, Run]]:
    """Return a client and the runs that a user sees, by name; those that only show what an earlier one made aside."""
    client = MlflowClient(tracking_uri=uri or tracking_uri(home))
    experiment = client.get_experiment_by_name("demo")
    assert experiment is not None
    found = [run for run in client.search_runs([experiment.experiment_id]) if run.data.tags.get("kind") != "reused"]
    names = [run.info.run_name for run in found]
    assert len(set(names)) == len(names), f"twice: {sorted(names)}"
    return client, dict(zip(names, found, strict=True))


def reused(client: MlflowClient, parent: Run) -> dict[str, Run]:
    """Return the runs below ``parent`` that show what an earlier run made, by name."""
    below = f"tags.kind = 'reused' AND tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    found = client.search_runs([parent.info.experiment_id], below)
    assert len({run.info.run_name for run in found}) == len(found)
    return {run.info.run_name: run for run in found}


def table_of(client: MlflowClient, run: Run, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table as MLflow's UI shows it."""
    found = json.loads(Path(client.download_artifacts(run.info.run_id, f"{name}.json")).read_text())
    return [dict(zip(found["columns"], row, strict=True)) for row in found["data"]]


def told(published: Published | None) -> Published:
    assert published is not None
    return published
