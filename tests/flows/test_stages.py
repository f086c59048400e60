"""Stages in their order, each made only where it is missing, each with a record of what it measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from prefect.cache_policies import NO_CACHE

import flows.stages
from flows.stages import all_stages, encoding_stages, ensure, explorer_stages, graph_stages
from flows.summary import summarise
from kgqa_core.artifacts import Artifact
from kgqa_core.config import RunConfig
from kgqa_core.config_file import read_config
from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.run.open import open_system
from kgqa_core.run.pipeline import PROGRESS, Pipeline
from kgqa_core.tracking import read_record
from tasks.cluster import chunk_mapper
from tasks.controls import fit_controls
from tasks.dataset import make_dataset
from tasks.encodings import encode_questions_and_relations
from tasks.evaluation import evaluate_one_explorer
from tasks.explorer import train_one_explorer
from tasks.graph import build_graph_shards
from tasks.questions import link_questions
from tasks.stage import StageOutcome, run_stage

KEYS = ["dataset", "graph", "questions", "encodings", "explorer-seed0", "controls", "evaluation-seed0"]
TASKS = [
    make_dataset,
    build_graph_shards,
    link_questions,
    encode_questions_and_relations,
    train_one_explorer,
    fit_controls,
    evaluate_one_explorer,
]


@pytest.fixture
def tiny(tiny_config: RunConfig) -> Pipeline:
    """The built run of all tests; not to be changed."""
    return Pipeline(tiny_config)


def record_of(pipeline: Pipeline, key: str) -> Any:
    return read_record(pipeline.artifact(key).folder)


def json_of(pipeline: Pipeline, key: str, name: str) -> Any:
    return json.loads((pipeline.artifact(key).folder / name).read_text(encoding="utf-8"))


# The order of the stages


@pytest.mark.parametrize(
    ("flow", "keys"),
    [
        (graph_stages, KEYS[:3]),
        (encoding_stages, KEYS[:4]),
        (explorer_stages, KEYS[:5]),
        (all_stages, KEYS),
    ],
)
def test_a_flow_makes_what_it_needs_first_and_skips_what_is_there(
    tiny: Pipeline, flow: Callable[[Pipeline], list[StageOutcome]], keys: list[str]
) -> None:
    outcomes = flow(tiny)
    assert [outcome.key for outcome in outcomes] == keys
    assert not any(outcome.built for outcome in outcomes)
    assert [outcome.artifact.folder for outcome in outcomes] == [tiny.artifact(key).folder for key in keys]


def test_every_seed_is_trained_and_evaluated(tiny: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(flows.stages, "ensure", lambda pipeline, key, task, *seed: asked.append((key, *seed)))
    monkeypatch.setattr(flows.stages, "check_changes", lambda *_, **__: [])
    explorer = tiny.config.explorer.model_copy(update={"seeds": (2, 5)})
    all_stages(Pipeline(tiny.config.model_copy(update={"explorer": explorer})))
    trained, evaluated = asked[4:6], asked[7:]
    assert trained == [("explorer-seed2", 2), ("explorer-seed5", 5)]
    assert evaluated == [("evaluation-seed2", 2), ("evaluation-seed5", 5)]


def test_a_run_on_files_has_no_dataset_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.yaml").write_text(
        "dataset: {name: d, source: files, graph: {format: tsv, path: t}, questions: {format: jsonl, path: q}}\n"
        "encoder: {kind: hash}\nexplorer: {steps: 1, edge_budget: 1, epochs: 1}\n"
    )
    asked: list[str] = []
    monkeypatch.setattr(flows.stages, "ensure", lambda pipeline, key, task: asked.append(key))
    monkeypatch.setattr(flows.stages, "check_changes", lambda *_, **__: [])
    graph_stages(Pipeline(read_config(tmp_path / "run.yaml")))
    assert asked == ["graph", "questions"]


def test_a_task_runs_only_where_the_store_lacks_its_artifact(tiny_copy: RunConfig) -> None:
    calls: list[str] = []

    def task(pipeline: Pipeline) -> StageOutcome:
        calls.append("called")
        return StageOutcome("controls", Pipeline(tiny_copy).artifact("graph"), True)

    assert not ensure(Pipeline(tiny_copy), "controls", task).built
    assert calls == []
    (Pipeline(tiny_copy).artifact("controls").folder / "scores.json").unlink()
    assert ensure(Pipeline(tiny_copy), "controls", task).built
    assert calls == ["called"]


def test_prefect_neither_caches_nor_keeps_nor_repeats_what_is_not_input_and_output() -> None:
    for task in TASKS:
        assert task.cache_policy == NO_CACHE
        assert task.persist_result is False
    assert {task.name: task.retries for task in TASKS if task.retries} == {"build graph": 2, "link questions": 2}
    assert len({task.name for task in TASKS}) == len(TASKS)


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

    def write(folder: Path, recorder: Any) -> None:
        (folder / "half.json").write_text("{")
        raise InputError("no training question")

    with pytest.raises(InputError):
        run_stage(pipeline, "controls", write)
    assert [path.suffix for path in folder.parent.iterdir()] == [".lock"]
    assert pipeline.find("explorer-seed0")


def test_a_figure_that_is_no_number_stops_the_stage_where_it_happened(tiny_copy: RunConfig) -> None:
    pipeline = Pipeline(tiny_copy)
    (pipeline.artifact("controls").folder / "scores.json").unlink()

    def write(folder: Path, recorder: Any) -> None:
        recorder.metric("loss", float("nan"))

    with pytest.raises(Exception, match="loss became nan"):
        run_stage(pipeline, "controls", write)
    assert pipeline.find("controls") is None


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


def test_whoever_listens_hears_of_progress(tiny: Pipeline) -> None:
    heard: list[tuple[str, int, int]] = []
    tiny.progress("nobody", 1, 2)
    token = PROGRESS.set(lambda what, done, total: heard.append((what, done, total)))
    try:
        tiny.progress("encoding", 3, 5)
    finally:
        PROGRESS.reset(token)
    assert heard == [("encoding", 3, 5)]


# What a flow returns


def test_the_summary_has_a_row_per_seed_their_mean_and_the_controls(tiny: Pipeline) -> None:
    outcomes = all_stages(tiny)
    summary = summarise(tiny, outcomes)
    assert [row.role for row in summary.rows] == ["learned", "template control", "ceiling"]
    assert summary.built == []
    for name in ("explorer (seed 0)", "template control", "gold-chain ceiling"):
        assert name in summary.markdown
    twice = summarise(tiny, [*outcomes, StageOutcome("evaluation-seed1", evaluation(tiny), built=True)])
    assert [row.system for row in twice.rows][:3] == ["explorer (seed 0)"] * 2 + ["explorer (mean of 2 seeds)"]
    assert twice.rows[2].overall["hits1"] == pytest.approx(twice.rows[0].overall["hits1"])
    assert len(twice.rows) == 5
    assert twice.built == ["evaluation-seed1"]


def evaluation(pipeline: Pipeline) -> Artifact:
    return pipeline.artifact("evaluation-seed0")


def test_the_summary_of_a_flow_that_evaluates_nothing_has_no_report(tiny: Pipeline) -> None:
    summary = summarise(tiny, graph_stages(tiny))
    assert (summary.rows, summary.markdown, summary.name) == ((), "", "tiny")
    assert [outcome.key for outcome in summary.outcomes] == KEYS[:3]
