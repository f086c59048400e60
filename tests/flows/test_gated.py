"""Retraining with a champion, from the command line: promoted, nothing new, refused, by hand, rolled back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from tests.conftest import kgqa
from tests.flows.rivers import Run

CONFIG = """\
dataset: {name: gated, source: embedded}
encoder: {kind: hash, dim: 31}
explorer: {steps: 2, width: 13, edge_budget: 7, epochs: 1, batch_size: 128, init_from: "models:/kgqa-rivers@champion"}
gate: {share: 0.2, min_lift: -100, max_seconds: 60}
"""
ONE_STEP = ("--set", "explorer.steps=1")  # what lies two steps away is out of reach: it has to be worse


@pytest.fixture
def run(tmp_path: Path, server: str) -> Run:
    (tmp_path / "rivers.yaml").write_text(CONFIG, encoding="utf-8")
    return Run(tmp_path, server)


def document(run: Run, command: str, *arguments: str) -> dict[str, Any]:
    return json.loads(run.kgqa(command, run.conf, *arguments, "--json").stdout)


def store_of(run: Run) -> str:
    return f"sqlite:///{run.folder / 'home' / 'mlflow' / 'mlflow.db'}"


def aliases(run: Run) -> dict[str, str]:
    client = MlflowClient(tracking_uri=store_of(run))
    return {alias: str(version) for alias, version in client.get_registered_model("kgqa-rivers").aliases.items()}


@pytest.mark.slow
def test_only_a_challenger_that_is_no_worse_replaces_the_champion(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = document(run, "run")
    assert first["promoted"], first["reason"]
    assert (first["champion"], aliases(run)) == (None, {"champion": "1"})

    again = document(run, "run")
    assert (again["promoted"], again["champion"], again["challenger"]) == (False, *[first["challenger"]] * 2)
    assert not any(stage["built"] for stage in again["stages"])
    assert "nothing new" in again["reason"]

    worse = document(run, "run", *ONE_STEP)
    assert not worse["promoted"]
    assert "hops 2 is significantly worse" in worse["reason"]
    assert worse["champion"] == first["challenger"]
    assert aliases(run) == {"champion": "1", "challenger": "2"}
    refused_again = document(run, "run", *ONE_STEP)
    assert refused_again["reason"] == worse["reason"]
    assert not any(stage["built"] for stage in refused_again["stages"])
    assert_told(run, worse["reason"], monkeypatch)

    compared = json.loads(run.kgqa("compare", f"{run.conf}@champion", f"{run.conf}@challenger", "--json").stdout)
    (f1,) = (row["metrics"]["f1"] for row in compared["comparisons"] if (row["by"], row["bucket"]) == ("hops", "2"))
    assert f1["first"] > f1["second"]

    by_hand = document(run, "promote", "--why", "a drill")
    assert (by_hand["moved"], by_hand["champion"]) == (True, worse["challenger"])
    assert not document(run, "promote", "--to", worse["challenger"])["moved"]
    assert aliases(run) == {"champion": "2"}

    shutil.rmtree(run.folder / "home" / "artifacts")  # whatever cleared the disk: a release holds what it needs
    back = document(run, "rollback", "--why", "the drill is over")
    assert (back["moved"], back["champion"], aliases(run)) == (True, first["challenger"], {"champion": "1"})
    question = ("models:/kgqa-rivers@champion", "who directed The Drowned Harbour?")
    mlflow_uri = store_of(run)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_uri)
    answered = replace(run, server="").kgqa_here("ask", *question, "--topic", "The Drowned Harbour", "--json")
    assert json.loads(answered.stdout)["topics"] == ["The Drowned Harbour"]

    undone = document(run, "run", *ONE_STEP)  # the next night: what was rolled back is not promoted again
    assert not undone["promoted"]
    assert "was rolled back" in undone["reason"]
    assert aliases(run) == {"champion": "1"}

    moves = document(run, "history")["moves"]
    shown = [(move["kind"], move["from_release"], move["to_release"], move["why"]) for move in moves]
    one, two = first["challenger"], worse["challenger"]
    assert shown == [
        ("promoted", None, one, first["reason"]),
        ("refused", one, two, worse["reason"]),
        ("promoted", one, two, "a drill"),
        ("rolled back", two, one, "the drill is over"),
    ]


def assert_told(run: Run, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect has the verdict as an artifact, and MLflow with the run."""
    monkeypatch.setenv("PREFECT_API_URL", os.environ.get("PREFECT_API_URL", run.server))
    with get_client(sync_client=True) as client:
        key = ArtifactFilter(key=ArtifactFilterKey(any_=["gate-rivers"]))
        verdicts = [str(one.data) for one in client.read_artifacts(artifact_filter=key)]
    assert any("**Refused**" in verdict and "| all |" in verdict for verdict in verdicts)
    tracked = MlflowClient(tracking_uri=store_of(run))
    (experiment,) = tracked.search_experiments(filter_string="name = 'gated'")
    runs = tracked.search_runs([experiment.experiment_id], "tags.kind = 'flow' and params.`gate.promoted` = 'False'")
    assert runs
    assert {one.info.status for one in runs} == {"FINISHED"}
    assert {one.data.params["gate.reason"] for one in runs} == {reason}
    assert "gate.md" in {file.path for file in tracked.list_artifacts(runs[0].info.run_id)}


def test_a_run_that_would_share_the_champion_of_another_is_refused_before_anything_runs(
    tmp_path: Path, own_home: Path
) -> None:
    (tmp_path / "rivers.yaml").write_text(CONFIG, encoding="utf-8")
    release = own_home / "releases" / "kgqa-rivers-v2" / "aaaa"
    release.mkdir(parents=True)
    manifest = {"run": "rivers v2", "made_of": {}, "parent": None, "stages": {}, "made": "2026-01-01"}
    (release / "release.json").write_text(json.dumps(manifest), encoding="utf-8")
    refused = kgqa("run", str(tmp_path / "rivers.yaml"), "--set", "name=rivers.v2")
    assert (refused.exit_code, "'rivers v2' came first: give 'rivers.v2' another name" in refused.stderr) == (2, True)
    assert [path.name for path in own_home.iterdir()] == ["releases"]


STOPPED = """
import sys
from pathlib import Path
import flows.pipeline
from flows.run import run_flow
from kgqa_core.config_file import read_config

def stop(*_):
    raise KeyboardInterrupt

flows.pipeline.write_report = stop  # what comes after the champion was moved
run_flow("retrain", read_config(Path(sys.argv[1])))
"""


@pytest.mark.slow
def test_a_promotion_whose_run_is_stopped_right_after_it_is_told_all_the_same(run: Run) -> None:
    command = [sys.executable, "-c", STOPPED, run.conf]
    stopped = subprocess.run(command, env=run.environment, capture_output=True, text=True, check=False)
    assert "KeyboardInterrupt" in stopped.stderr
    (move,) = document(run, "history")["moves"]
    assert (move["kind"], move["told"], move["announced"]) == ("promoted", True, True)
    assert aliases(run) == {"champion": "1"}


@pytest.mark.slow
def test_over_its_cap_a_retraining_ends_as_a_refusal_and_the_next_one_goes_on(run: Run) -> None:
    stopped = document(run, "run", "--set", "gate.max_cpu_hours=0.000001")
    why = "it takes more than 1e-06 CPU hours (gate.max_cpu_hours)"
    assert (stopped["promoted"], stopped["challenger"], stopped["champion"]) == (False, None, None)
    assert stopped["reason"].endswith(why)
    tracked = MlflowClient(tracking_uri=store_of(run))
    (experiment,) = tracked.search_experiments(filter_string="name = 'gated'")
    (told,) = tracked.search_runs([experiment.experiment_id], "tags.kind = 'flow'")
    assert (told.info.status, told.data.params["gate.promoted"]) == ("FINISHED", "False")
    assert told.data.params["gate.reason"] == stopped["reason"]
    made = {stage["key"] for stage in stopped["stages"] if stage["built"]}
    assert made
    assert "evaluation-seed0" not in made

    following = document(run, "run")
    assert following["promoted"], following["reason"]
    assert not made & {stage["key"] for stage in following["stages"] if stage["built"]} - {"gate"}
