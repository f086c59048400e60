"""What MLflow shows after a run, for real on SQLite: nothing twice, nothing lost, nothing in the current folder."""

from __future__ import annotations

import errno
import json
import logging
import os
import shlex
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlflow
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

import tasks.tracking
from kgqa_core.artifacts import Artifact, Recipe
from kgqa_core.run.pipeline import StageOutcome
from kgqa_core.tracking import Point, TrackingRecord, write_record
from tasks import outbox
from tasks.mlflow_store import ensure_store, mask, tracking_uri, ui_command
from tasks.outbox import end_killed, noted, waiting
from tasks.run_content import FlowRun
from tasks.tracking import Published, git_commit, publish
from tests.conftest import Start
from tests.tasks.conftest import copy_store

LOSS: list[Point] = [(20 * step, 3.0 / step, 1_000_000 + 500 * step) for step in range(1, 1100)]  # more than a batch
TRAINED = {seed: Recipe("explorer", 1, {}, {"seed": str(seed)}).fingerprint for seed in (1, 2)}
JUDGED = {seed: Recipe("evaluation", 1, {}, {"seed": str(seed)}).fingerprint for seed in (1, 2)}
BOTH = (JUDGED[1], JUDGED[2])
CONTENTS = {"graph": "aa" * 32, "questions": "bb" * 32, "encodings": "cc" * 32}
SYSTEMS = ["explorer seed 1", "explorer seed 2"]
DRAWN = ("draw_learning_curves", "draw_hits_by_hops")


@pytest.fixture
def home(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # where MLflow would like to put its artifacts
    for draw in DRAWN:  # as slow as all the rest; see ``shown``
        monkeypatch.setattr(tasks.tracking, draw, lambda *_: None)
    return copy_store(empty_store, tmp_path / "a home")


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
    assert (child.data.metrics["hits1"], child.data.metrics["train.cpu_seconds"]) == (98, 17.5)
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


def test_a_kill_between_delivery_and_its_note_doubles_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(outbox, "remove", kill)
        publish(home, a_run(1), Pipeline(home).everything())
    assert [note.run.id for note in waiting(home)] == ["flow-run-1"]
    publish(home, a_run(2), [Pipeline(home).graph()])
    assert waiting(home) == []
    client, runs = seen(home)  # which fails for two of a name
    assert sorted(runs) == ["brave-otter-1", "brave-otter-2", *SYSTEMS]
    assert reused(client, runs["brave-otter-1"]) == {}


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


def test_a_run_whose_process_was_killed_is_shown_as_killed_with_the_stages_that_it_had(
    home: Path, start: Start
) -> None:
    stages = [Pipeline(home).graph()]
    run = start(NOTED, home, stdout=subprocess.PIPE)
    assert run.stdout is not None and run.stdout.readline() == "noted\n"
    assert end_killed(home, lambda _: None) == []  # it is alive
    assert waiting(home) == []
    run.kill()
    run.wait(30)
    ended: list[str] = []
    assert end_killed(home, ended.append) == ended == ["flow-run-1", "flow-run-7"]
    assert [note.run.id for note in waiting(home)] == ["flow-run-1"]  # the other told MLflow nothing anyway
    assert told(publish(home, a_run(2), stages)).created == ()
    killed = seen(home)[1]["brave-otter-1"]
    assert (killed.info.status, killed.data.tags["stage.graph"]) == ("KILLED", "built")
    assert not list((home / "outbox").iterdir())


NOTED = """
import sys, time
from pathlib import Path
from tests.tasks.test_tracking import Pipeline, a_run
from tasks.outbox import noted
home = Path(sys.argv[1])
with noted(home, a_run(1), tracked=True) as note, noted(home, a_run(7), tracked=False):
    note.has([Pipeline(home).graph()])
    print("noted", flush=True)
    time.sleep(300)
"""


def test_a_run_on_a_disk_without_locks_is_not_taken_for_dead(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*args: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    with monkeypatch.context() as broken:
        broken.setattr("fcntl.flock", no_locks)
        with noted(home, a_run(1), tracked=True) as note:
            note.has([Pipeline(home).graph()])
            assert end_killed(home, lambda _: None) == []
            assert waiting(home) == []
    (left,) = waiting(home)
    assert (left.run.status, [stage.key for stage in left.stages]) == ("FINISHED", ["graph"])


def test_how_a_run_ended_is_noted_and_a_password_is_in_no_note(home: Path) -> None:
    for number, problem in ((1, ValueError("no postgresql://ann:secret@db/x")), (2, KeyboardInterrupt()), (3, None)):
        with suppress(ValueError, KeyboardInterrupt), noted(home, a_run(number), tracked=True):
            if problem:
                raise problem
    ends = [(note.run.status, note.run.error) for note in waiting(home)]
    failed, killed, finished = ends
    assert failed == ("FAILED", "ValueError: no postgresql://ann:***@db/x")
    assert (killed[0], finished) == ("KILLED", ("FINISHED", ""))
    (home / "outbox" / "0000000000001-x.json").write_text("{")
    assert len(waiting(home)) == 3
    assert (home / "outbox" / "0000000000001-x.unreadable").exists()


def test_what_a_kill_left_unfinished_is_replaced_and_a_run_of_someone_else_is_not_touched(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MlflowClient(tracking_uri=tracking_uri(home))
    experiment = client.create_experiment("demo", artifact_location=(home / "theirs").as_uri())
    client.create_run(experiment, run_name="theirs", tags={"publisher": "another", "kind": "system"})
    stages = Pipeline(home).everything()

    def kill(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(tasks.tracking, DRAWN[0], kill)
        publish(home, a_run(1), stages)
    left = seen(home)[1]["explorer seed 1"]
    assert left.info.status == "RUNNING"
    assert told(publish(home, a_run(2), stages)).present == BOTH  # the first run was delivered before it
    _, runs = seen(home)
    assert runs.pop("theirs").info.status == "RUNNING"
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert runs["explorer seed 1"].info.run_id != left.info.run_id
    assert sorted(runs) == ["brave-otter-1", "brave-otter-2", *SYSTEMS]


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
from tests.tasks.test_tracking import Pipeline, a_run
from tasks.tracking import publish
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


def test_the_command_for_the_ui_can_be_pasted_into_a_shell(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(ui_command(home, port=5013))
    assert Path(words[0]).parent == Path(sys.executable).parent
    assert words[1:4] == ["ui", "--backend-store-uri", f"sqlite:///{home / 'mlflow' / 'mlflow.db'}"]
    assert words[4:] == ["--port", "5013", "--host", "127.0.0.1", "--workers", "1"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example/team")
    assert shlex.split(ui_command(home))[-1] == "https://mlflow.example/team"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://ann:secret@db/mlflow")
    assert '--backend-store-uri "$MLFLOW_TRACKING_URI" --port' in ui_command(home)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:p@ss/w@db:5432/x?sslmode=on", "postgresql://ann:***@db:5432/x?sslmode=on"),
        ("at http://token@host/x.", "at http://***@host/x."),
        ("https://ann:secret@host", "https://***@host"),
        ("mysql+pymysql://db/x?user=ann&password=secret&a=b", "mysql+pymysql://db/x?user=ann&password=***&a=b"),
        ("sqlite:////a b/mlflow.db", "sqlite:////a b/mlflow.db"),
        ("http://host:80/p?to=a@b and s3://bucket/key", "http://host:80/p?to=a@b and s3://bucket/key"),
    ],
)
def test_passwords_in_addresses_are_hidden(text: str, shown: str) -> None:
    assert mask(text) == shown


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


def test_a_copied_home_writes_beside_itself_and_not_into_the_original(empty_store: Path, tmp_path: Path) -> None:
    for place in ("original", "copy"):
        ensure_store(copy_store(empty_store, tmp_path / place))
        with closing(sqlite3.connect(tmp_path / place / "mlflow" / "mlflow.db")) as store:
            (where,) = store.execute("select artifact_location from experiments").fetchone()
        assert where == (tmp_path / place / "mlflow" / "artifacts" / "0").as_uri()
