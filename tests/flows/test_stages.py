"""Stages in their order, each made only where it is missing, each with a record of what it measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import prefect
import pyarrow.parquet as pq
import pytest
from prefect.cache_policies import NO_CACHE

from flows.summary import summarise
from kgqa_core.config import RunConfig
from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.run.cluster import chunk_mapper
from kgqa_core.run.ensure import ensure
from kgqa_core.run.open import open_system
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from kgqa_core.run.stages import StageSpec, known_stages
from kgqa_core.tracking import read_record
from tasks.runtime import run_as_task

R = TypeVar("R")
KEYS = ["dataset", "graph", "questions", "encodings", "explorer-seed0", "controls", "evaluation-seed0"]


@pytest.fixture
def tiny(tiny_config: RunConfig) -> Pipeline:
    """The built run of all tests; not to be changed."""
    return Pipeline(tiny_config)


def record_of(pipeline: Pipeline, key: str) -> Any:
    return read_record(pipeline.artifact(key).folder)


def json_of(pipeline: Pipeline, key: str, name: str) -> Any:
    return json.loads((pipeline.artifact(key).folder / name).read_text(encoding="utf-8"))


# The order of the stages


@pytest.mark.parametrize(("goal", "num"), [("questions", 3), ("encodings", 4), (KEYS[4], 5), (KEYS[6], 7)])
def test_what_a_goal_needs_is_made_first_and_what_is_there_is_skipped(tiny: Pipeline, goal: str, num: int) -> None:
    outcomes = ensure(tiny, [goal])
    assert [outcome.key for outcome in outcomes] == KEYS[:num]
    assert not any(outcome.built for outcome in outcomes)
    assert [outcome.artifact.folder for outcome in outcomes] == [tiny.artifact(key).folder for key in KEYS[:num]]


def test_only_what_the_store_lacks_is_handed_to_a_worker(tiny_copy: RunConfig) -> None:
    asked: list[tuple[str, str, bool]] = []

    def worker(work: Callable[[], R], *, title: str, key: str, io: bool) -> R:
        asked.append((title, key, io))
        return work()

    ensure(Pipeline(tiny_copy), KEYS, worker=worker)
    assert asked == []
    for key in ("controls", "questions"):
        (Pipeline(tiny_copy).artifact(key).folder / "manifest.json").unlink()
    made = ensure(Pipeline(tiny_copy), KEYS, worker=worker)
    assert asked == [("link questions", "questions", True), ("fit controls", "controls", False)]
    assert [outcome.key for outcome in made if outcome.built] == ["questions", "controls"]


def test_prefect_neither_caches_nor_keeps_nor_repeats_what_is_not_input_and_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(prefect.Task, "__call__", lambda task, *_, **__: made.append(task))
    for stage in known_stages().values():
        run_as_task(lambda: None, title=stage.title, key=f"{stage.name}-{{seed}}", io=stage.io)
    for task in made:
        assert task.cache_policy == NO_CACHE
        assert task.persist_result is False
    names = {stage.title: f"{stage.name}-{{seed}}" for stage in known_stages().values()}
    assert {task.name: task.task_run_name.format() for task in made} == names  # no two kinds of one name
    retried = {"parse dump", "read topics", "build graph", "build subgraphs", "link questions", "find supervision"}
    assert {task.name: task.retries for task in made if task.retries} == dict.fromkeys(retried, 2)


# What a stage writes down about itself


@pytest.mark.parametrize("key", KEYS)
def test_every_artifact_holds_the_record_of_its_making(tiny: Pipeline, key: str) -> None:
    record, artifact = record_of(tiny, key), tiny.artifact(key)
    assert record.stage == artifact.recipe.stage
    assert record.fingerprint == artifact.fingerprint
    own = key.partition("-")[2] == "seed0"
    assert (record.system, record.seed) == (("explorer", 0) if own else (None, None))
    for name, value in artifact.recipe.config.items():
        assert record.params[name] == (value if isinstance(value, str | int | float | bool | None) else str(value))
    assert record.started_ms <= record.ended_ms


def test_the_record_of_the_data_has_its_counts(tiny: Pipeline) -> None:
    counts = json_of(tiny, "graph", "graph.json")
    graph = record_of(tiny, "graph")
    assert {name: graph.metrics[name] for name in ("num_entities", "num_triples")} == {
        name: counts[name] for name in ("num_entities", "num_triples")
    }
    assert graph.tables == {"rejects": "rejects.parquet"}
    questions = pq.read_table(tiny.artifact("questions").folder / "questions.parquet").to_pylist()
    recorded = record_of(tiny, "questions").metrics
    assert recorded["num_questions"] == len(questions)
    for split in ("train", "dev", "test"):
        assert recorded[f"num_{split}"] == sum(question["split"] == split for question in questions)
    encodings = record_of(tiny, "encodings").metrics
    rows = pq.read_metadata(tiny.artifact("encodings").folder / "encodings.parquet").num_rows
    assert encodings == {"num_texts": rows, "encoding_dim": 31}


def test_the_record_of_training_has_curves_and_that_of_the_scores_has_the_reports_figures(tiny: Pipeline) -> None:
    training = record_of(tiny, "explorer-seed0")
    assert {"train.loss", "train.learning_rate", "dev.hits1"} <= set(training.curves)
    learned, *controls = json_of(tiny, "evaluation-seed0", "scores.json")
    scores = record_of(tiny, "evaluation-seed0")
    assert {name: scores.metrics[name] for name in learned["overall"]} == learned["overall"]
    assert scores.metrics["hits1.hop1"] == learned["by_hops"]["1"]["hits1"]
    assert scores.metrics["f1.answers2-4"] == learned["by_answers"]["2-4"]["f1"]
    assert scores.metrics["em.answers10-up"] == learned["by_answers"][">=10"]["em"]
    assert {"mean_top_tie", "hits1.low", "hits1.high", "f1.low", "em.high"} <= learned["overall"].keys()
    assert scores.tables == {"predictions": "predictions.parquet"}
    assert controls == json_of(tiny, "controls", "scores.json")
    assert record_of(tiny, "controls").metrics["template_control.hits1"] == controls[0]["overall"]["hits1"]


def test_a_stage_that_fails_keeps_what_was_made_before_it(tiny_copy: RunConfig) -> None:
    pipeline = Pipeline(tiny_copy)
    folder = pipeline.artifact("controls").folder
    (folder / "scores.json").unlink()

    def no_number(_: Pipeline, __: StageSpec, folder: Path, recorder: Any) -> None:
        recorder.metric("loss", float("nan"))

    def write(_: Pipeline, __: StageSpec, folder: Path, recorder: Any) -> None:
        (folder / "half.json").write_text("{")
        raise InputError("no training question")

    with pytest.raises(Exception, match="loss became nan"):
        pipeline.make("controls", no_number)
    with pytest.raises(InputError):
        pipeline.make("controls", write)
    assert [path.suffix for path in folder.parent.iterdir()] == [".lock"]
    assert pipeline.find("explorer-seed0")


# The stages in use


def test_a_trained_explorer_answers_and_one_that_is_not_trained_says_so(tiny: Pipeline) -> None:
    system = open_system(tiny)
    assert system.card.encoder == "hash-v1-d31"
    assert (system.card.width, system.card.steps, system.card.edge_budget) == (7, 2, 5)
    other = tiny.config.model_copy(update={"explorer": tiny.config.explorer.model_copy(update={"epochs": 2})})
    with pytest.raises(ArtifactError, match="'explorer-seed0' of 'tiny' is not done"):
        open_system(Pipeline(other))


def test_a_small_graph_is_parsed_in_this_process(tiny: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "triples.tsv").write_text("a\tb\tc\n")
    with chunk_mapper(tiny, [tmp_path / "triples.tsv"]) as map_chunks:
        assert map_chunks is map
    with chunk_mapper(tiny, [tmp_path / "missing.tsv"]) as map_chunks:  # reported where it is read
        assert map_chunks is map


# What a flow returns


def test_the_summary_has_a_row_per_seed_their_mean_and_the_controls(tiny: Pipeline) -> None:
    outcomes = ensure(tiny, tiny.specs)
    summary = summarise(tiny, outcomes)
    assert [row.role for row in summary.rows] == ["learned", "template control", "ceiling"]
    assert summary.built == []
    for name in ("explorer (seed 0)", "template control", "gold-chain ceiling"):
        assert name in summary.markdown
    twice = summarise(
        tiny, [*outcomes, StageOutcome("evaluation-seed1", tiny.artifact("evaluation-seed0"), built=True)]
    )
    assert [row.system for row in twice.rows][:3] == ["explorer (seed 0)"] * 2 + ["explorer (mean of 2 seeds)"]
    assert twice.rows[2].overall["hits1"] == pytest.approx(twice.rows[0].overall["hits1"])
    assert len(twice.rows) == 5
    assert twice.built == ["evaluation-seed1"]
    data = summarise(tiny, outcomes[:3])
    assert (data.rows, data.markdown, data.name) == ((), "", "tiny")
