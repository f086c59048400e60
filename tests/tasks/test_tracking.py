"""What MLflow shows after a run, for real on SQLite: nothing twice, nothing lost, nothing in the current folder."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

import tasks.tracking
from kgqa_core.artifacts import Artifact, Recipe
from kgqa_core.run.pipeline import StageOutcome
from kgqa_core.tracking import Point, TrackingRecord, write_record
from tasks.mlflow_store import ensure_store, tracking_uri, ui_command
from tasks.plots import draw_hits_by_hops, draw_learning_curves
from tasks.run_content import FlowRun
from tasks.tracking import Published, git_commit, publish

ROOT = Path(tasks.tracking.__file__).parents[1]
LOSS: list[Point] = [(20 * step, 3.0 / step, 1_000_000 + 500 * step) for step in range(1, 1100)]  # more than a batch
TRAINED = {seed: Recipe("explorer", 1, {}, {"seed": str(seed)}).fingerprint for seed in (1, 2)}
JUDGED = {seed: Recipe("evaluation", 1, {}, {"seed": str(seed)}).fingerprint for seed in (1, 2)}
BOTH = (JUDGED[1], JUDGED[2])
CONTENTS = {"graph": "aa" * 32, "questions": "bb" * 32, "encodings": "cc" * 32}


@pytest.fixture
def home(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)  # where MLflow would like to put its artifacts
    for draw in ("draw_learning_curves", "draw_hits_by_hops"):  # as slow as all the rest; see ``plots``
        monkeypatch.setattr(tasks.tracking, draw, lambda *_: None)
    home = tmp_path / "a home"
    (home / "mlflow").mkdir(parents=True)
    shutil.copy(empty_store, home / "mlflow" / "mlflow.db")
    return home


@pytest.fixture
def plots(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the plots drawn after all."""
    for draw in (draw_learning_curves, draw_hits_by_hops):
        monkeypatch.setattr(tasks.tracking, draw.__name__, draw)


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
        outcome = self.stage(
            f"evaluation-seed{seed}",
            built=built,
            system="explorer",
            seed=seed,
            metrics={"hits1": 96.0 + seed, "hits1.hop1": 97.0, "hits1.hop2": 99.0, "template_control.hits1.hop1": 80.0},
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
    run = FlowRun(
        id=f"flow-run-{number}",
        name=f"brave-otter-{number}",
        dataset="demo",
        config_name="demo",
        config_hash="c0ffee",
        config_text="name: demo\nexplorer:\n  epochs: 3\n",
        git_commit="0123abcd",
        started_ms=1_000_000 * number,
    )
    return replace(run, **changes)


def seen(home: Path, dataset: str = "demo", uri: str | None = None) -> tuple[MlflowClient, dict[str, Run]]:
    """Return a client and the runs that a user sees, by name and, where several share it, number."""
    client = MlflowClient(tracking_uri=uri or tracking_uri(home))
    experiment = client.get_experiment_by_name(dataset)
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    names = [run.info.run_name for run in found]
    assert len(set(names)) == len(names), f"twice: {sorted(names)}"
    return client, dict(zip(names, found, strict=True))


def told(published: Published | None) -> Published:
    assert published is not None
    return published


def test_a_run_shows_its_stages_and_each_system_and_seed_shows_what_it_did(home: Path) -> None:
    published = told(publish(home, a_run(), Pipeline(home).everything()))
    assert (published.created, published.present) == (BOTH, ())
    client, runs = seen(home)
    assert sorted(runs) == ["brave-otter-1", "explorer seed 1", "explorer seed 2"]

    parent = runs["brave-otter-1"]
    assert parent.info.run_id == published.parent_run_id
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["graph/num_triples"] == 2003
    assert parent.data.metrics["explorer-seed1/seconds"] == 7
    assert parent.data.metrics["explorer/hits1"] == 97.5  # the mean of both seeds
    assert parent.data.params == {"config_name": "demo", "config_hash": "c0ffee", "graph/format": "tsv"}
    expected = {"flow_run_id": "flow-run-1", "git_commit": "0123abcd", "dataset": "demo", "config_name": "demo"}
    expected |= {"config_hash": "c0ffee", "stage.graph": "built", "kind": "flow"}
    assert expected.items() <= parent.data.tags.items()
    assert Path(client.download_artifacts(parent.info.run_id, "config.yaml")).read_text() == a_run().config_text

    child = runs["explorer seed 2"]
    assert child.info.status == "FINISHED"
    assert (child.info.start_time, child.info.end_time) == (1_000_000, 1_009_500)
    expected = {"system": "explorer", "seed": "2", "fingerprint": JUDGED[2], "fingerprint.explorer": TRAINED[2]}
    expected |= {"flow_run_id": "flow-run-1", "git_commit": "0123abcd", "dataset": "demo", "kind": "system"}
    expected |= {"mlflow.parentRunId": parent.info.run_id, "data.graph": CONTENTS["graph"]}
    assert expected.items() <= child.data.tags.items()
    assert child.data.metrics["hits1"] == 98
    assert child.data.metrics["train.cpu_seconds"] == 17.5
    assert child.data.params == {
        "system": "explorer",
        "seed": "2",
        "epochs": "3",
        "learning_rate": "0.002",
        "prune": "False",
        "init_from": "None",
    }


def test_curves_keep_every_point_with_the_time_at_which_it_was_measured(home: Path) -> None:
    publish(home, a_run(), [Pipeline(home).explorer(1, loss=LOSS)])
    client, runs = seen(home)
    history = client.get_metric_history(runs["explorer seed 1"].info.run_id, "train.loss")
    assert sorted((point.step, point.value, point.timestamp) for point in history) == LOSS


@pytest.mark.usefixtures("plots")
def test_predictions_are_a_whole_table_and_a_shown_one_beside_two_plots(home: Path) -> None:
    publish(home, a_run(), Pipeline(home).everything())
    client, runs = seen(home)
    run_id = runs["explorer seed 1"].info.run_id
    listed = {item.path for folder in (None, "tables", "plots") for item in client.list_artifacts(run_id, folder)}
    assert listed >= {"tables/predictions.parquet", "predictions.json"}
    assert listed >= {"plots/learning_curves.png", "plots/hits_by_hops.png"}
    whole = Path(client.download_artifacts(run_id, "tables/predictions.parquet"))
    assert pq.read_metadata(whole).num_rows == 613
    shown = json.loads(Path(client.download_artifacts(run_id, "predictions.json")).read_text())
    assert len(shown["data"]) == 500
    assert shown["data"][12] == ["question 12", "Zoë | Ёлка"]
    assert "predictions.json" in runs["explorer seed 1"].data.tags["mlflow.loggedArtifacts"]


def test_the_data_that_was_read_is_shown_with_its_content_hash(home: Path) -> None:
    stages = [*Pipeline(home).everything(), Pipeline(home).stage("questions"), Pipeline(home).stage("lint")]
    publish(home, a_run(), stages)
    _, runs = seen(home)
    for run in runs.values():
        read = {item.dataset.name: item.dataset.digest for item in run.inputs.dataset_inputs}
        assert read == {"demo/graph": CONTENTS["graph"][:36], "demo/questions": CONTENTS["questions"][:36]}


def test_nothing_is_written_outside_the_home(home: Path) -> None:
    publish(home, a_run(), Pipeline(home).everything())
    assert list(Path.cwd().iterdir()) == []
    _, runs = seen(home)
    for run in runs.values():
        assert run.info.artifact_uri.startswith((home / "mlflow" / "artifacts").as_uri())


def test_a_second_run_that_skips_all_shows_its_stages_but_makes_no_system_twice(home: Path) -> None:
    pipeline = Pipeline(home)
    publish(home, a_run(1), pipeline.everything())
    second = told(publish(home, a_run(2), pipeline.everything(built=False)))
    assert (second.created, second.present) == ((), BOTH)
    _, runs = seen(home)
    assert sorted(runs) == ["brave-otter-1", "brave-otter-2", "explorer seed 1", "explorer seed 2"]
    assert runs["brave-otter-2"].data.tags["stage.graph"] == "skipped"
    assert runs["brave-otter-2"].data.metrics == runs["brave-otter-1"].data.metrics


def test_a_publication_that_is_tried_again_makes_no_second_run(home: Path) -> None:
    first = told(publish(home, a_run(), [Pipeline(home).graph()]))
    assert told(publish(home, a_run(), [Pipeline(home).graph()])).parent_run_id == first.parent_run_id


def test_an_mlflow_that_was_away_warns_and_is_caught_up_by_the_next_run(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        began = time.monotonic()
        with caplog.at_level(logging.WARNING, "tasks.tracking"):
            assert publish(home, a_run(1), Pipeline(home).everything()) is None
        assert time.monotonic() - began < 60  # MLflow's own retries last minutes
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "tasks.tracking"]
    assert "was not told" in warning
    assert "the next run publishes" in warning
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert told(publish(home, a_run(2), Pipeline(home).everything(built=False))).created == BOTH


def test_a_damaged_record_is_a_warning_too(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    stage = Pipeline(home).graph()
    (stage.artifact.folder / "tracking.json").write_text("{")
    with caplog.at_level(logging.WARNING, "tasks.tracking"):
        assert publish(home, a_run(), [stage]) is None
    assert "tracking.json" in caplog.text


def test_what_a_kill_left_unfinished_is_replaced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Pipeline(home).everything()
    with monkeypatch.context() as broken:

        def kill(*args: object) -> None:
            raise KeyboardInterrupt

        broken.setattr(tasks.tracking, "draw_learning_curves", kill)
        with pytest.raises(KeyboardInterrupt):
            publish(home, a_run(1), stages)
    _, runs = seen(home)
    left = runs["explorer seed 1"]
    assert left.info.status == "RUNNING"
    assert told(publish(home, a_run(2), stages)).created == BOTH
    _, runs = seen(home)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert runs["explorer seed 1"].info.run_id != left.info.run_id
    assert sorted(runs) == ["brave-otter-1", "brave-otter-2", "explorer seed 1", "explorer seed 2"]


def test_a_run_of_someone_else_on_the_same_server_is_not_touched(home: Path) -> None:
    client = MlflowClient(tracking_uri=tracking_uri(home))
    experiment = client.create_experiment("demo", artifact_location=(home / "theirs").as_uri())
    theirs = client.create_run(experiment, run_name="theirs", tags={"publisher": "another", "kind": "system"})
    publish(home, a_run(), Pipeline(home).everything())
    _, runs = seen(home)
    assert runs["theirs"].info.run_id == theirs.info.run_id
    assert runs["theirs"].info.status == "RUNNING"


def test_a_system_trained_in_one_run_and_judged_in_the_next_is_one_run(home: Path) -> None:
    pipeline = Pipeline(home)
    assert told(publish(home, a_run(1), [pipeline.explorer(1)])).created == (TRAINED[1],)
    both = [pipeline.explorer(1, built=False), pipeline.evaluation(1)]
    assert told(publish(home, a_run(2), both)).created == (JUDGED[1],)
    _, runs = seen(home)
    assert runs["explorer seed 1"].data.tags["fingerprint"] == JUDGED[1]
    # Training alone again: MLflow has it, inside the run that is also judged.
    assert told(publish(home, a_run(3), [pipeline.explorer(1, built=False)])).present == (TRAINED[1],)


def test_a_failed_run_is_shown_as_failed(home: Path) -> None:
    publish(home, a_run(status="FAILED"), [Pipeline(home).graph()])
    _, runs = seen(home)
    assert runs["brave-otter-1"].info.status == "FAILED"


def test_a_deleted_experiment_comes_back(home: Path) -> None:
    publish(home, a_run(1), [Pipeline(home).graph()])
    client, _ = seen(home)
    experiment = client.get_experiment_by_name("demo")
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    assert publish(home, a_run(2), [Pipeline(home).graph()]) is not None


def test_many_and_long_parameters_fit(home: Path) -> None:
    params = {f"setting {number}": "x" * 7001 for number in range(211)}
    publish(home, a_run(), [Pipeline(home).stage("encodings", params=params)])
    _, runs = seen(home)
    shown = runs["brave-otter-1"].data.params
    assert len([name for name in shown if name.startswith("encodings/setting")]) == 211
    assert len(shown["encodings/setting 210"]) == 6000


def test_a_store_that_the_user_names_is_used_and_its_artifacts_still_stay_in_the_home(
    home: Path, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(empty_store, tmp_path / "theirs.db")
    uri = f"sqlite:///{tmp_path / 'theirs.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert told(publish(home, a_run(), [Pipeline(home).graph()])).uri == uri
    _, runs = seen(home, uri=uri)
    assert runs["brave-otter-1"].info.artifact_uri.startswith((home / "mlflow" / "artifacts").as_uri())
    assert list(Path.cwd().iterdir()) == []


def test_publishing_works_in_a_thread_and_while_a_run_of_the_user_is_active(home: Path, tmp_path: Path) -> None:
    import mlflow

    before = mlflow.get_tracking_uri()
    shutil.copy(tracking_uri(home).removeprefix("sqlite:///"), tmp_path / "active.db")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'active.db'}")
    results: list[Published | None] = []
    try:
        experiment = mlflow.create_experiment("mine", artifact_location=(tmp_path / "mine").as_uri())
        with mlflow.start_run(experiment_id=experiment) as active:
            stages = Pipeline(home).everything()
            thread = threading.Thread(target=lambda: results.append(publish(home, a_run(1), stages)))
            thread.start()
            thread.join()
            results.append(publish(home, a_run(2), stages))
        mine = mlflow.get_run(active.info.run_id)
        assert mine.data.metrics == {}
        assert mine.data.params == {}
    finally:
        mlflow.set_tracking_uri(before)
    assert [told(result).created for result in results] == [BOTH, ()]


@pytest.mark.slow
def test_a_store_half_made_by_a_killed_process_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "mlflow").mkdir()
    for rubble in ("mlflow.db.new", "mlflow.db.new-journal"):
        (tmp_path / "mlflow" / rubble).write_bytes(b"half a database")
    assert MlflowClient(tracking_uri=ensure_store(tmp_path)).get_experiment_by_name("demo") is None
    assert sorted(path.name for path in (tmp_path / "mlflow").iterdir()) == ["mlflow.db", "mlflow.db.lock"]


TWO_AT_ONCE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_tracking import Pipeline, a_run
from tasks.tracking import publish
home = Path(sys.argv[2])
stages = Pipeline(home).everything()
print("ready", flush=True)
sys.stdin.readline()
published = publish(home, a_run(int(sys.argv[3])), stages)
print(len(published.created), len(published.present))
"""


@pytest.mark.slow
def test_two_processes_at_once_on_a_fresh_home_publish_everything_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    Pipeline(tmp_path).everything()
    command = [sys.executable, "-c", TWO_AT_ONCE, str(Path(__file__).parent), str(tmp_path)]
    runs = [
        subprocess.Popen(
            [*command, str(number)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (1, 2)
    ]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
    outputs = [run.communicate("go\n", timeout=120) for run in runs]
    assert [stderr for _, stderr in outputs] == ["", ""]
    assert sorted(stdout for stdout, _ in outputs) == ["0 2\n", "2 0\n"]
    _, found = seen(tmp_path)
    assert sorted(found) == ["brave-otter-1", "brave-otter-2", "explorer seed 1", "explorer seed 2"]


def test_the_command_for_the_ui_can_be_pasted_into_a_shell(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(ui_command(home, port=5013))
    assert words[1:] == [
        "ui",
        "--backend-store-uri",
        f"sqlite:///{home / 'mlflow' / 'mlflow.db'}",
        "--port",
        "5013",
        "--host",
        "127.0.0.1",
        "--workers",
        "1",
    ]
    assert Path(words[0]).parent == Path(sys.executable).parent
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example/team")
    assert shlex.split(ui_command(home))[-1] == "https://mlflow.example/team"


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
def test_the_ui_opens_on_what_was_published(home: Path) -> None:
    published = told(publish(home, a_run(), Pipeline(home).everything()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (home / "ui.log").open("wb")
    ui = subprocess.Popen(
        shlex.split(ui_command(home, port=port)), stdout=log, stderr=log, env=os.environ, start_new_session=True
    )

    def get(path: str, body: dict[str, Any] | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/{path}", data=data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read()

    try:
        until = time.monotonic() + 90
        while True:
            try:
                get("health")
                break
            except (urllib.error.URLError, ConnectionError):
                assert ui.poll() is None, (home / "ui.log").read_text()
                assert time.monotonic() < until, (home / "ui.log").read_text()
                time.sleep(0.2)
        experiments = json.loads(get("api/2.0/mlflow/experiments/search", {"max_results": 10}))["experiments"]
        (demo,) = [found["experiment_id"] for found in experiments if found["name"] == "demo"]
        runs = json.loads(get("api/2.0/mlflow/runs/search", {"experiment_ids": [demo]}))["runs"]
        assert {run["info"]["run_name"] for run in runs} == {"brave-otter-1", "explorer seed 1", "explorer seed 2"}
        child = next(run["info"]["run_id"] for run in runs if run["info"]["run_name"] == "explorer seed 1")
        assert get(f"get-artifact?path=config.yaml&run_id={published.parent_run_id}").startswith(b"name: demo")
        assert get(f"get-artifact?path=plots%2Fhits_by_hops.png&run_id={child}").startswith(b"\x89PNG")
        assert b"<html" in get("").lower()
    finally:
        os.killpg(ui.pid, 15)
        ui.wait(timeout=30)
        log.close()


def test_the_commit_is_that_of_the_folder_and_unknown_without_git(tmp_path: Path) -> None:
    assert git_commit(tmp_path) == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    clean = git_commit(tmp_path)
    assert len(clean) == 40
    (tmp_path / "file").write_text("2")
    assert git_commit(tmp_path) == f"{clean}-dirty"
