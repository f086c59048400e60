"""What MLflow shows after a run, for real on SQLite: nothing twice, nothing lost, nothing in the current folder."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import mlflow
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

import tasks.tracking
from tasks.mlflow_store import ensure_store, tracking_uri
from tasks.outbox import refused, waiting
from tasks.overview import overview
from tasks.run_content import FlowRun
from tasks.tracking import Published, git_commit
from tests.conftest import Start
from tests.tasks.conftest import copy_store
from tests.tasks.published import (
    BOTH,
    CONTENTS,
    DRAWN,
    JUDGED,
    LOSS,
    SYSTEMS,
    TRAINED,
    Pipeline,
    a_run,
    publish,
    reused,
    seen,
    table_of,
    told,
)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A home whose store shows a whole run, plots and all. Leave it as it is."""
    home = copy_store(empty_store, tmp_path_factory.mktemp("shown") / "a home")
    pipeline = Pipeline(home)
    pipeline.explorer(1, loss=LOSS)
    stages = [*pipeline.everything(), pipeline.stage("questions"), pipeline.stage("lint")]
    here = home / "here"
    here.mkdir()
    with chdir(here):
        published = told(publish(home, a_run(), stages))
    assert (published.created, published.present) == (BOTH, ())
    assert published.parent_run_id == seen(home)[1]["brave-otter-1"].info.run_id
    experiment = seen(home)[0].get_experiment_by_name("demo")
    columns = json.loads(experiment.tags["mlflow.sharedViewState.kgqa"])  # what MLflow's own button Share writes
    assert columns == {"selectedColumns": ["metrics.`hits1`"]}
    assert published.table.endswith(f"#/experiments/{experiment.experiment_id}/runs?viewStateShareKey=kgqa")
    assert list(here.iterdir()) == []  # nothing is written outside the home
    return home


def test_a_run_shows_its_stages_and_each_system_and_seed_shows_what_it_did(shown: Path) -> None:
    client, runs = seen(shown)
    assert sorted(runs) == ["brave-otter-1", *SYSTEMS]
    parent, child = runs["brave-otter-1"], runs["explorer seed 2"]
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert parent.data.metrics == {"hits1": 97.5}  # the mean of both seeds, by the name that a seed's own has
    assert parent.data.params == {"config_name": "demo", "config_hash": "c0ffee", "graph.format": "tsv"}
    stages = {row["stage"]: (row["state"], row["seconds"]) for row in table_of(client, parent, "stages")}
    assert stages["explorer-seed1"] == ("built", 7)
    figures = {(row["stage"], row["figure"]): row["value"] for row in table_of(client, parent, "stage_figures")}
    assert (figures["graph", "num_triples"], figures["evaluation-seed2", "hits1.hop1"]) == (2003, 97)
    shared = {"flow_run_id": "flow-run-1", "git_commit": "0123abcd", "dataset": "demo", "config_hash": "c0ffee"}
    assert {**shared, "config_name": "demo", "stage.graph": "built", "kind": "flow"}.items() <= parent.data.tags.items()
    assert Path(client.download_artifacts(parent.info.run_id, "config.yaml")).read_text() == a_run().config_text
    assert (child.info.start_time, child.info.end_time) == (1_000_000, 1_009_500)
    expected = {"system": "explorer", "seed": "2", "fingerprint": JUDGED[2], "fingerprint.explorer": TRAINED[2]}
    expected |= {"kind": "system", "mlflow.parentRunId": parent.info.run_id, "data.graph": CONTENTS["graph"]}
    assert {**shared, **expected}.items() <= child.data.tags.items()
    # A chart of a single bar for each of dozens of figures says nothing: they are a table, and a curve stays a curve.
    assert child.data.metrics == {"hits1": 98, "train.loss": LOSS[2][1], "dev.hits1": 75}
    own = {row["figure"]: row["value"] for row in table_of(client, child, "figures")}
    assert own == {"train.cpu_seconds": 17.5, "dev.hits1": 92, "hits1": 98, "hits1.hop1": 97, "hits1.hop2": 99,
                   "template_control.hits1.hop1": 80}  # fmt: skip
    settings = {"epochs": "3", "learning_rate": "0.002", "prune": "False", "init_from": "None"}
    assert child.data.params == {"system": "explorer", "seed": "2", **settings}


def test_curves_keep_every_point_and_tables_are_whole_and_shown_beside_two_plots(shown: Path) -> None:
    client, runs = seen(shown)
    run_id = runs["explorer seed 1"].info.run_id
    history = client.get_metric_history(run_id, "train.loss")
    assert sorted((point.step, point.value, point.timestamp) for point in history) == LOSS
    listed = {item.path for folder in (None, "tables", "plots") for item in client.list_artifacts(run_id, folder)}
    assert listed >= {"tables/predictions.parquet", "predictions.json"}
    assert listed >= {"plots/learning_curves.png", "plots/hits_by_hops.png"}
    whole = Path(client.download_artifacts(run_id, "tables/predictions.parquet"))
    assert pq.read_metadata(whole).num_rows == 613
    table = json.loads(Path(client.download_artifacts(run_id, "predictions.json")).read_text())
    assert len(table["data"]) == 500
    assert table["data"][12] == ["question 12", "Zoë | Ёлка"]
    assert "predictions.json" in runs["explorer seed 1"].data.tags["mlflow.loggedArtifacts"]
    for run in runs.values():  # all is in the home
        read = {item.dataset.name: item.dataset.digest for item in run.inputs.dataset_inputs}
        assert read == {"demo/graph": CONTENTS["graph"][:36], "demo/questions": CONTENTS["questions"][:36]}
        assert run.info.artifact_uri.startswith((shown / "mlflow" / "artifacts").as_uri())


@pytest.mark.slow
def test_a_second_run_that_skips_all_shows_its_stages_and_links_what_it_has_to_the_run_that_made_it(home: Path) -> None:
    pipeline = Pipeline(home)
    first = told(publish(home, a_run(1), pipeline.everything()))
    assert told(publish(home, a_run(1), pipeline.everything())) == first  # tried again
    second = told(publish(home, a_run(2), pipeline.everything(built=False)))
    assert (second.created, second.present) == ((), BOTH)
    assert told(publish(home, a_run(2), pipeline.everything(built=False))) == second
    client, runs = seen(home)
    assert sorted(runs) == ["brave-otter-1", "brave-otter-2", *SYSTEMS]
    assert reused(client, runs["brave-otter-1"]) == {}
    shown = reused(client, runs["brave-otter-2"])
    assert sorted(shown) == SYSTEMS
    for name, run in shown.items():
        assert run.data.tags["made_by"] == runs[name].info.run_id
        assert runs[name].info.run_id in run.data.tags["mlflow.note.content"]
        assert run.data.metrics["hits1"] == runs[name].data.metrics["hits1"]
        assert "train.loss" not in run.data.metrics
        assert client.list_artifacts(run.info.run_id) == []
    assert runs["brave-otter-2"].data.tags["stage.graph"] == "skipped"
    assert runs["brave-otter-2"].data.metrics == runs["brave-otter-1"].data.metrics


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An MLflow that is away: its address, where nobody answers."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        uri = f"http://ann:secret@127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        yield uri


def test_runs_while_mlflow_was_away_are_delivered_in_order_and_once_even_if_the_data_moved_on(
    home: Path, nobody: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = Pipeline(home)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "tasks.tracking"):
        assert publish(home, a_run(1), pipeline.everything()) is None
    assert time.monotonic() - began < 60  # MLflow's own retries last minutes
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "tasks.tracking"]
    assert "was not told" in warning
    assert "delivered by the next run" in warning
    assert "secret" not in caplog.text
    assert os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] == "true"  # MLflow prints where a run is, with it
    assert publish(home, a_run(2, status="FAILED", error="no", ended_ms=2_007_000), [pipeline.graph()]) is None
    assert [note.run.id for note in waiting(home)] == ["flow-run-1", "flow-run-2"]

    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    started: list[str] = []
    start = tasks.tracking._start
    monkeypatch.setattr(tasks.tracking, "_start", lambda *told: started.append(told[2].name) or start(*told))
    other = pipeline.stage("explorer-seed3", system="explorer", seed=3)  # the data moved on: none of the first run's
    assert told(publish(home, a_run(3), [other])).created == (other.artifact.fingerprint,)
    assert started == ["brave-otter-1", *SYSTEMS, "brave-otter-2", "brave-otter-3", "explorer seed 3"]
    assert not list((home / "outbox").iterdir())
    _, runs = seen(home)
    assert sorted(runs) == sorted(started)
    late = runs["brave-otter-2"]
    assert (late.info.status, late.info.end_time, late.data.tags["error"]) == ("FAILED", 2_007_000, "no")
    assert runs["explorer seed 1"].data.tags["mlflow.parentRunId"] == runs["brave-otter-1"].info.run_id


def test_a_run_that_mlflow_refuses_holds_up_no_other_and_a_damaged_record_costs_its_stage_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    content = tasks.run_content.flow_content

    def refuse(run: FlowRun, stages: Sequence[Any]) -> Any:
        if run.id == "flow-run-1":
            raise ValueError("a name that MLflow refuses")
        return content(run, stages)

    with monkeypatch.context() as broken:
        broken.setattr(tasks.run_content, "flow_content", refuse)
        assert publish(home, a_run(1), [Pipeline(home).graph()]) is None
        damaged = Pipeline(home).explorer(1)
        (damaged.artifact.folder / "tracking.json").write_text("{")
        assert publish(home, a_run(2), [Pipeline(home).graph(), damaged]) is not None
    assert "a name that MLflow refuses" in caplog.text
    assert "tracking.json" in caplog.text
    assert [note.run.id for note in waiting(home)] == ["flow-run-1"]
    assert "stage.explorer-seed1" not in seen(home)[1]["brave-otter-2"].data.tags
    publish(home, a_run(3), [])
    assert sorted(seen(home)[1]) == ["brave-otter-1", "brave-otter-2", "brave-otter-3"]


def test_a_run_that_mlflow_refuses_for_good_is_set_aside_and_named(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = Pipeline(home).stage("encodings", params={"no; such": 3})
    assert publish(home, a_run(1), [wrong]) is None
    assert ([note.run.id for note in waiting(home)], [note.run.id for note in refused(home)]) == ([], ["flow-run-1"])
    assert "MLflow refuses run brave-otter-1" in caplog.text
    assert "delivered by the next run" not in caplog.text
    caplog.clear()
    assert publish(home, a_run(2), []) is not None
    assert caplog.text == ""
    assert overview(home)["runs"]["refused"] == ["brave-otter-1"]
    assert sorted(seen(home)[1]) == ["brave-otter-2"]


def test_a_dump_whose_name_mlflow_takes_for_none_is_shown_under_one_that_it_takes(home: Path) -> None:
    dump = Pipeline(home).stage("dump-facts (1)+é.nt", params={"aliases": "[]"}, curves={"lines": [(1, 2.0, 1_000)]})
    assert publish(home, a_run(1), [dump]) is not None
    run = seen(home)[1]["brave-otter-1"]
    named = "dump-facts _1__é.nt"
    assert (run.data.params[f"{named}.aliases"], run.data.metrics[f"{named}.lines"]) == ("[]", 2.0)
    assert run.data.tags[f"stage.{named}"] == "built"


def test_what_a_kill_left_unfinished_is_replaced_and_a_run_of_someone_else_is_not_touched(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MlflowClient(tracking_uri=tracking_uri(home))
    experiment = client.create_experiment("demo", artifact_location=(home / "theirs").as_uri())
    client.create_run(experiment, run_name="theirs", tags={"publisher": "another", "kind": "system"})
    stages = Pipeline(home).everything()

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(tasks.tracking, DRAWN[0], Mock(side_effect=KeyboardInterrupt))
        publish(home, a_run(1), stages)
    left = seen(home)[1]["explorer seed 1"]
    assert left.info.status == "RUNNING"
    assert told(publish(home, a_run(2), stages)).present == BOTH  # the first run was delivered before it
    _, runs = seen(home)
    assert runs.pop("theirs").info.status == "RUNNING"
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert runs["explorer seed 1"].info.run_id != left.info.run_id
    assert sorted(runs) == ["brave-otter-1", "brave-otter-2", *SYSTEMS]


@pytest.mark.slow
def test_a_system_trained_in_one_run_and_judged_in_the_next_is_one_run(home: Path) -> None:
    pipeline = Pipeline(home)
    assert told(publish(home, a_run(1), [pipeline.explorer(1)])).created == (TRAINED[1],)
    both = [pipeline.explorer(1, built=False), pipeline.evaluation(1)]
    assert told(publish(home, a_run(2), both)).created == (JUDGED[1],)
    tags = seen(home)[1]["explorer seed 1"].data.tags
    assert (tags["fingerprint"], tags["fingerprint.explorer"]) == (JUDGED[1], TRAINED[1])
    # Training alone again: MLflow has it, inside the run that is also judged.
    assert told(publish(home, a_run(3), [pipeline.explorer(1, built=False)])).present == (TRAINED[1],)


def test_a_failed_run_is_shown_with_many_long_parameters_and_a_deleted_experiment_comes_back(home: Path) -> None:
    params = {f"setting {number}": "x" * 7001 for number in range(211)}
    controls = Pipeline(home).stage("controls", system="template control", metrics={"hits1": 80.0})
    publish(home, a_run(status="FAILED"), [Pipeline(home).stage("encodings", params=params), controls])
    client, runs = seen(home)
    failed = runs["brave-otter-1"]
    assert failed.info.status == "FAILED"
    found = [value for name, value in failed.data.params.items() if name.startswith("encodings.setting")]
    assert (len(found), {len(value) for value in found}) == (211, {6000})
    assert "seed" not in runs["template control"].data.tags
    client.delete_experiment(failed.info.experiment_id)
    assert publish(home, a_run(2), []) is not None  # a run without stages is still a run


def test_a_store_that_the_user_names_is_used_and_its_artifacts_still_stay_in_the_home(
    home: Path, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{copy_store(empty_store, tmp_path / 'theirs') / 'mlflow' / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert told(publish(home, a_run(), [Pipeline(home).graph()])).uri == uri
    run = seen(home, uri=uri)[1]["brave-otter-1"]
    assert run.info.artifact_uri.startswith((home / "mlflow" / "artifacts").as_uri())
    monkeypatch.setenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", (tmp_path / "files").as_uri())
    elsewhere = told(publish(home, a_run(2, dataset="another"), [Pipeline(home).graph()]))
    assert elsewhere.artifacts == (tmp_path / "files").as_uri()
    assert list((tmp_path / "files").rglob("config.yaml"))
    assert elsewhere.page.startswith("http://127.0.0.1:5000/#/experiments/")
    assert list(Path.cwd().iterdir()) == []


def test_publishing_works_in_a_thread_and_while_a_run_of_the_user_is_active(
    home: Path, tmp_path: Path, empty_store: Path
) -> None:
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{copy_store(empty_store, tmp_path / 'theirs') / 'mlflow' / 'mlflow.db'}")
    results: list[Published | None] = []
    try:
        experiment = mlflow.create_experiment("mine", artifact_location=(tmp_path / "mine").as_uri())
        with mlflow.start_run(experiment_id=experiment) as active:
            stages = Pipeline(home).everything()
            thread = threading.Thread(target=lambda: results.append(publish(home, a_run(1), stages)))
            thread.start()
            thread.join()
            results.append(publish(home, a_run(2), stages))
        mine = mlflow.get_run(active.info.run_id).data
        assert (mine.metrics, mine.params) == ({}, {})
    finally:
        mlflow.set_tracking_uri(before)
    assert [told(result).created for result in results] == [BOTH, ()]


TWO_AT_ONCE = """
import sys
from pathlib import Path
from tests.tasks.published import Pipeline, a_run
from tests.tasks.published import publish
home = Path(sys.argv[1])
stages = Pipeline(home).everything()
print("ready", flush=True)
sys.stdin.readline()
published = publish(home, a_run(int(sys.argv[2])), stages)
print(len(published.created), len(published.present))
"""


@pytest.mark.slow
def test_two_processes_at_once_on_a_store_half_made_by_a_killed_one_publish_everything_once(
    tmp_path: Path, start: Start
) -> None:
    (tmp_path / "mlflow").mkdir()
    for rubble in ("mlflow.db.new", "mlflow.db.new-journal"):
        (tmp_path / "mlflow" / rubble).write_bytes(b"half a database")
    Pipeline(tmp_path).everything()
    runs = [start(TWO_AT_ONCE, tmp_path, number, stdin=subprocess.PIPE) for number in (1, 2)]
    for run in runs:
        assert run.stdout is not None and run.stdout.readline() == "ready\n"
    outputs = [run.communicate("go\n", timeout=120) for run in runs]
    assert [stderr for _, stderr in outputs] == ["", ""]
    assert sorted(stdout for stdout, _ in outputs) == ["0 2\n", "2 0\n"]
    assert sorted(seen(tmp_path)[1]) == ["brave-otter-1", "brave-otter-2", *SYSTEMS]
    assert ensure_store(tmp_path) == tracking_uri(tmp_path)
    assert not list((tmp_path / "mlflow").glob("mlflow.db.new*"))


def test_the_commit_is_that_of_the_folder_and_unknown_without_git(tmp_path: Path) -> None:
    assert git_commit(tmp_path) == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "file").write_text("1")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    clean = git_commit(tmp_path)
    assert len(clean) == 40
    (tmp_path / "file").write_text("2")
    assert git_commit(tmp_path) == f"{clean}-dirty"
