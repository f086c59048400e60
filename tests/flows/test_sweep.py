"""A sweep: every point an ordinary run that shares what it can, then tables, plots, and a run in MLflow."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

import flows.pipeline
import tasks.sweep
from flows.cli import print_sweep, sweep_document
from flows.summary import RunSummary, summarise
from kgqa_core.config import RunConfig
from kgqa_core.errors import DriftError, InputError
from kgqa_core.run.ensure import ensure
from kgqa_core.run.pipeline import Pipeline
from tasks.outbox import read_ended
from tasks.sweep import read_document
from tasks.sweep_points import read_sweep, show_value
from tests.conftest import TINY_RUN
from tests.flows.rivers import write_run

BUDGETS = """\
base: ../tiny.yaml
vary: {evaluation.edge_budget: [1, 3, all]}
table: [hits1, answer.edges_per_question]
"""
PLOTS = """\
plots:
  - {title: Edge budget, x: evaluation.edge_budget, y: hits1, beside: [template_control, ceiling]}
  - {x: answer.edges_per_question, y: f1, lines: []}
  - {kind: curves, y: dev.hits1}
  - {x: evaluation.edge_budget, y: hits1.hop9}
"""

RunSweep = Callable[..., flows.pipeline.SweepSummary]


@contextmanager
def without_prefect(home: Path, folder: Path) -> Iterator[RunSweep]:
    """Yield a function that runs a sweep over the run of all tests, built in ``home``, without Prefect."""
    (folder / "tiny.yaml").write_text(TINY_RUN, encoding="utf-8")
    (folder / "sweeps").mkdir()

    def retrain(config: RunConfig) -> RunSummary:
        pipeline = Pipeline(config)
        return summarise(pipeline, ensure(pipeline, pipeline.specs))

    def run_sweep(text: str, *overrides: str) -> flows.pipeline.SweepSummary:
        path = folder / "sweeps" / "budgets.yaml"
        path.write_text(text, encoding="utf-8")
        return flows.pipeline.sweep.fn(path, [f"runtime.home={home}", *overrides])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flows.pipeline, "retrain", retrain)
        patch.setattr(tasks.sweep, "compare_runs", tasks.sweep.compare_runs.fn)
        yield run_sweep


@pytest.fixture
def run(tiny_copy: RunConfig, tmp_path: Path) -> Iterator[RunSweep]:
    """Run a sweep over a copy of the run of all tests."""
    with without_prefect(tiny_copy.runtime.home, tmp_path) as run_sweep:
        yield run_sweep


@pytest.fixture(scope="module")
def done(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> flows.pipeline.SweepSummary:
    """A finished sweep with plots. Leave it as it is."""
    folder = tmp_path_factory.mktemp("sweep")
    shutil.copytree(tiny_config.runtime.home, folder / "home")
    with without_prefect(folder / "home", folder) as run_sweep:
        return run_sweep(BUDGETS + PLOTS)


def test_a_sweep_over_the_walk_trains_nothing_and_shows_what_it_costs(done: flows.pipeline.SweepSummary) -> None:
    assert done.built == {f"edge_budget={budget}": ["evaluation-seed0"] for budget in ("1", "3", "all")}
    found = read_document(done.artifact)
    assert found["header"] == ["edge_budget", "n", "Hits@1", "edges per question"]
    assert [line[0] for line in found["cells"]] == ["1", "3", "all"]
    edges = [point["figures"]["answer.edges_per_question"]["mean"] for point in found["points"]]
    assert edges == sorted(edges)
    assert edges[0] < edges[-1]
    ended = read_ended(done.artifact.folder.parents[2])
    assert ended[-1]["name"].startswith("budgets 2")  # as in Prefect, and not as its first run


def test_tables_and_plots_hold_every_explorer_point_and_curve_and_one_of_nothing_is_left_out(
    done: flows.pipeline.SweepSummary,
) -> None:
    folder = done.artifact.folder
    rows = pq.read_table(folder / "rows.parquet").to_pylist()
    assert [(row["at.evaluation.edge_budget"], row["seed"]) for row in rows] == [("1", 0), ("3", 0), ("all", 0)]
    assert len({row["fingerprint.explorer"] for row in rows}) == 1
    assert len({row["fingerprint.evaluation"] for row in rows}) == 3
    points = pq.read_table(folder / "summary.parquet").to_pylist()
    assert [point["hits1"] for point in points] == [row["hits1"] for row in rows]
    curves = pq.read_table(folder / "curves.parquet").to_pylist()
    assert {"dev.hits1", "train.loss"} <= {line["curve"] for line in curves}
    plots = [folder / plot for plot in read_document(done.artifact)["plots"]]
    assert [plot.name for plot in plots] == ["1-edge-budget.png", "2-f1.png", "3-dev-hits1.png"]
    assert all(plot.read_bytes().startswith(b"\x89PNG") for plot in plots)


def test_a_sweep_goes_on_where_it_was_and_makes_nothing_twice(run: RunSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    retrain = flows.pipeline.retrain

    def stops_at_the_first(config: RunConfig) -> RunSummary:
        if config.name.endswith("=1"):
            raise InputError("the disk is full")
        return retrain(config)

    def built(summary: flows.pipeline.SweepSummary) -> list[str]:
        return [label for label, keys in summary.built.items() if keys]

    with monkeypatch.context() as patch:
        patch.setattr(flows.pipeline, "retrain", stops_at_the_first)
        with pytest.raises(InputError, match=r"(?s)^1 of 3 runs failed.*run 'edge_budget=1' of the sweep: the disk is"):
            run(BUDGETS)
    first, again = run(BUDGETS), run(BUDGETS)
    assert (built(first), built(again)) == (["edge_budget=1"], [])  # one that fails holds up no other
    assert again.artifact.folder == first.artifact.folder
    more, other = run(BUDGETS.replace("[1, 3, all]", "[1, 2, 3, all]")), run(BUDGETS.replace("[hits1", "[f1"))
    assert (built(more), built(other)) == (["edge_budget=2"], [])  # one more value; another table
    assert len({summary.artifact.folder for summary in (first, more, other)}) == 3


def test_advice_names_a_point_as_a_run_of_its_own(
    run: RunSweep, tiny_copy: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drift = DriftError("kgqa build CONF --accept")
    monkeypatch.setattr(flows.pipeline, "retrain", Mock(side_effect=drift))
    with pytest.raises(DriftError) as raised:
        run(BUDGETS, "explorer.epochs=2")
    settings = [f"runtime.home={tiny_copy.runtime.home}", "explorer.epochs=2"]
    first, *_ = read_sweep(tmp_path / "sweeps" / "budgets.yaml", settings).points
    assert f"of the sweep: kgqa build {first.given} --accept" in str(raised.value)


@pytest.mark.slow
def test_seeds_are_repetitions_and_runs_train_only_what_differs(
    run: RunSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run("base: ../tiny.yaml\nset: {explorer.seeds: [0, 1]}\nvary: {explorer.width: [7, 5]}\n")
    assert done.built["width=7"] == ["explorer-seed1", "evaluation-seed1"]
    assert done.built["width=5"] == ["explorer-seed0", "explorer-seed1", "evaluation-seed0", "evaluation-seed1"]
    points = read_document(done.artifact)["points"]
    assert [(point["place"]["explorer.width"], point["num_explorers"]) for point in points] == [(7, 2), (5, 2)]
    rows = pq.read_table(done.artifact.folder / "rows.parquet").to_pylist()
    for point, pair in zip(points, (rows[:2], rows[2:]), strict=True):
        assert point["figures"]["hits1"]["mean"] == pytest.approx(sum(row["hits1"] for row in pair) / 2)
    plan = read_sweep(tmp_path / "sweeps" / "budgets.yaml")
    capsys.readouterr()
    print_sweep(plan, sweep_document(plan, done))
    out = capsys.readouterr().out
    assert "Sweep budgets: 2 runs; n explorers each, mean ± standard deviation" in out
    assert "2 runs had something to do, 0 were there." in out
    assert "width" in out
    assert "mlflow" not in out  # tracking is off


# From the command line, in real processes

SIZES = """\
base: ../rivers.yaml
vary:
  dataset.questions.train_size: [3, null]
  dataset.questions.draw: [0, 1]
repeat: dataset.questions.draw
plots:
  - {title: Training size, x: num_train, y: [hits1, f1], lines: [], beside: template_control}
  - {kind: curves, y: dev.hits1}
"""


@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_mlflow_shows_it_once(tmp_path: Path, server: str) -> None:
    run = write_run(tmp_path, server)
    sweep = tmp_path / "sweeps" / "sizes.yaml"
    sweep.parent.mkdir()
    sweep.write_text(SIZES, encoding="utf-8")
    command = [sys.executable, "-m", "flows.cli", "sweep", str(sweep), "--json"]
    scores = tmp_path / "home" / "artifacts" / "evaluation"

    def finished() -> dict[str, int]:
        done = [path for path in scores.glob("*/manifest.json") if path.parent.suffix != ".work"]
        return {path.parent.name: path.stat().st_mtime_ns for path in done}

    with subprocess.Popen(command, env=run.environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and len(finished()) < 2:
            time.sleep(0.02)
        process.kill()
    before = finished()
    assert before

    document = json.loads(run.kgqa("sweep", str(sweep), "--json").stdout)
    assert before.items() <= finished().items(), "a finished point was run again"
    points = [(point["place"], point["num_explorers"]) for point in document["points"]]
    size = "dataset.questions.train_size"
    assert points == [({size: 3}, 2), ({size: None}, 1)]  # every draw of all is all
    assert all(Path(plot).is_file() for plot in document["plots"])
    assert "mlflow ui" in document["mlflow_ui"]
    check_mlflow(tmp_path / "home", document)


def check_mlflow(home: Path, document: dict[str, Any]) -> None:
    """The sweep is there once, with its points below it, table and plots, beside the ordinary runs of its points."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("rivers")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    ends = {(run.data.tags["kind"], run.info.status) for run in found}
    assert ends - {("flow", "KILLED")} == {(kind, "FINISHED") for kind, _ in ends}
    kinds = Counter(run.data.tags["kind"] for run in found)
    assert (kinds["sweep"], kinds["sweep point"], kinds["system"]) == (1, 2, 3)
    by_size = {run.data.params.get("dataset.questions.train_size"): run.data for run in found}
    for point in document["points"]:
        data = by_size[show_value(point["place"]["dataset.questions.train_size"])]
        for name in ("hits1", "template_control.f1"):
            assert data.metrics[name] == pytest.approx(point["figures"][name]["mean"])
    (whole,) = [run.info.run_id for run in found if run.data.tags["kind"] == "sweep"]
    plots = {file.path for file in client.list_artifacts(whole, "plots")}
    assert plots == {f"plots/{Path(plot).name}" for plot in document["plots"]}
