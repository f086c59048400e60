"""Stages in their order, each made only where it is missing, each with a record of what it measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import prefect
import pyarrow.parquet as pq
import pytest
from prefect.cache_policies import NO_CACHE
from prefect.states import Failed

from flows.summary import graph_facts, question_facts, summarise
from kgqa_core.config import RunConfig
from kgqa_core.errors import InputError
from kgqa_core.run import open as opening
from kgqa_core.run.cluster import chunk_mapper
from kgqa_core.run.ensure import ensure
from kgqa_core.run.open import open_system
from kgqa_core.run.pipeline import Pipeline, StageOutcome
from kgqa_core.run.stages import known_stages
from kgqa_core.systems.etd import ExplorerSystem
from kgqa_core.tracking import read_record
from kgqa_core.types import Question
from tasks.runtime import StageTasks, run_as_task

R = TypeVar("R")
KEYS = ["dataset", "graph", "questions", "encodings", "explorer-seed0", "controls", "evaluation-seed0"]


def record_of(pipeline: Pipeline, key: str) -> Any:
    return read_record(pipeline.artifact(key).folder)


def json_of(pipeline: Pipeline, key: str, name: str) -> Any:
    return json.loads((pipeline.artifact(key).folder / name).read_text(encoding="utf-8"))


# The order of the stages


@pytest.mark.parametrize(("goal", "num"), [("questions", 3), (KEYS[4], 5), (KEYS[6], 7)])
def test_what_a_goal_needs_is_made_first_and_what_is_there_is_skipped(pipeline: Pipeline, goal: str, num: int) -> None:
    outcomes = ensure(pipeline, [goal])
    assert [(outcome.key, outcome.built) for outcome in outcomes] == [(key, False) for key in KEYS[:num]]
    assert [outcome.artifact.folder for outcome in outcomes] == [pipeline.artifact(key).folder for key in KEYS[:num]]


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
        if task.retries:  # only a disk may be in a better mood soon
            failures = (OSError("no space"), InputError("no such line"))
            assert [task.retry_condition_fn(task, None, Failed(data=one)) for one in failures] == [True, False]
    assert any(task.retries for task in made)
    names = {stage.title: f"{stage.name}-{{seed}}" for stage in known_stages().values()}
    assert {task.name: task.task_run_name.format() for task in made} == names  # no two kinds of one name
    retried = {"parse dump", "read topics", "build graph", "build subgraphs", "link questions", "find supervision"}
    assert {task.name: task.retries for task in made if task.retries} == dict.fromkeys(retried, 2)


@pytest.mark.slow
def test_each_stage_is_shown_once_as_made_or_as_there_and_noted_as_soon_as_it_is(
    tiny_copy: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a run makes its stages in two goes, as one does that starts from a release."""
    there, made, noted = list[str](), list[tuple[str, str, bool]](), list[list[tuple[str, bool]]]()

    def make(work: Callable[[], R], *, title: str, key: str, io: bool) -> R:
        made.append((title, key, io))
        return work()

    def note(stages: Sequence[StageOutcome]) -> None:
        noted.append([(outcome.key, outcome.built) for outcome in stages])

    monkeypatch.setattr("tasks.runtime.show_cached", lambda *, key, **_: there.append(key))
    monkeypatch.setattr("tasks.runtime.run_as_task", make)
    for key in ("controls", "questions"):  # it reads them
        (Pipeline(tiny_copy).artifact(key).folder / "manifest.json").unlink()
    worker: Any = StageTasks(SimpleNamespace(has=note))  # type: ignore[arg-type]
    first, second = Pipeline(tiny_copy), Pipeline(tiny_copy)
    ensure(first, ["questions"], worker=worker.begin(first, ["questions"]))
    assert noted[-1] == [("dataset", False), ("graph", False), ("questions", True)]
    ended = worker.end(ensure(second, KEYS, worker=worker.begin(second, KEYS)))
    assert noted[-1] == [(outcome.key, outcome.built) for outcome in ended]
    assert [outcome.key for outcome in ended if outcome.built] == ["questions", "controls"]
    assert made == [("link questions", "questions", True), ("fit controls", "controls", False)]
    assert sorted(there) == sorted({*KEYS} - {"questions", "controls"})


# What a stage writes down about itself


@pytest.mark.parametrize("key", KEYS)
def test_every_artifact_holds_the_record_of_its_making(pipeline: Pipeline, key: str) -> None:
    record, artifact = record_of(pipeline, key), pipeline.artifact(key)
    assert record.stage == artifact.recipe.stage
    assert record.fingerprint == artifact.fingerprint
    own = key.partition("-")[2] == "seed0"
    assert (record.system, record.seed) == (("explorer", 0) if own else (None, None))
    for name, value in artifact.recipe.config.items():
        assert record.params[name] == (value if isinstance(value, str | int | float | bool | None) else str(value))
    assert record.started_ms <= record.ended_ms


def test_records_have_the_counts_curves_and_figures_of_the_reports(pipeline: Pipeline) -> None:
    counts, graph = json_of(pipeline, "graph", "graph.json"), record_of(pipeline, "graph")
    assert [graph.metrics[name] - counts[name] for name in ("num_entities", "num_triples")] == [0, 0]
    assert graph.tables == {"rejects": "rejects.parquet"}
    questions = pq.read_table(pipeline.artifact("questions").folder / "questions.parquet").to_pylist()
    recorded = record_of(pipeline, "questions").metrics
    assert recorded["num_questions"] == len(questions)
    for split in ("train", "dev", "test"):
        assert recorded[f"num_{split}"] == sum(question["split"] == split for question in questions)
    rows = pq.read_metadata(pipeline.artifact("encodings").folder / "encodings.parquet").num_rows
    assert record_of(pipeline, "encodings").metrics == {"num_texts": rows, "encoding_dim": 31}
    assert {"train.loss", "train.learning_rate", "dev.hits1"} <= set(record_of(pipeline, "explorer-seed0").curves)
    learned, *controls = json_of(pipeline, "evaluation-seed0", "scores.json")
    scores = record_of(pipeline, "evaluation-seed0")
    assert learned["overall"].items() <= scores.metrics.items()
    assert scores.metrics["hits1.hop1"] == learned["by_hops"]["1"]["hits1"]
    assert scores.metrics["f1.answers2-4"] == learned["by_answers"]["2-4"]["f1"]
    assert scores.metrics["em.answers10-up"] == learned["by_answers"][">=10"]["em"]
    assert {"mean_top_tie", "hits1.low", "hits1.high", "f1.low", "em.high"} <= learned["overall"].keys()
    assert scores.tables == {"predictions": "predictions.parquet"}
    assert controls == json_of(pipeline, "controls", "scores.json")
    assert record_of(pipeline, "controls").metrics["template_control.hits1"] == controls[0]["overall"]["hits1"]


# The stages in use


def test_a_trained_explorer_answers_and_a_small_graph_is_parsed_in_this_process(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    card = open_system(pipeline).card
    assert (card.encoder, card.width, card.steps, card.edge_budget) == ("hash-v1-d31", 7, 2, 5)
    (tmp_path / "triples.tsv").write_text("a\tb\tc\n")
    for name in ("triples.tsv", "missing.tsv"):  # that one is reported where it is read
        with chunk_mapper(pipeline, [tmp_path / name]) as map_chunks:
            assert map_chunks is map


def test_the_compiled_walk_is_loaded_by_a_question_that_walks_before_time_is_taken(
    tiny_copy: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation, asked = tiny_copy.evaluation.model_copy(update={"evidence_paths": 2}), list[tuple[int, bool]]()
    real_answer, real_read = ExplorerSystem.answer, opening.read_with_hops

    def answer(system: ExplorerSystem, questions: Sequence[Question], *given: Any, **how: Any) -> Any:
        asked.append((sum(bool(one.topics) for one in questions), "cost" in how))
        return real_answer(system, questions, *given, **how)

    def read(*given: Any) -> list[Question]:
        first, *others = real_read(*given)
        return [replace(first, topics=()), *others]

    monkeypatch.setattr(ExplorerSystem, "answer", answer)
    monkeypatch.setattr(opening, "read_with_hops", read)
    ensure(Pipeline(tiny_copy.model_copy(update={"evaluation": evaluation})), [KEYS[-1]])
    assert asked[0] == (1, False) and all(measured for _, measured in asked[1:])


# What a flow returns


def test_the_summary_has_a_row_per_seed_their_mean_and_the_controls(pipeline: Pipeline) -> None:
    outcomes = ensure(pipeline, pipeline.specs)
    summary = summarise(pipeline, outcomes)
    assert [row.role for row in summary.rows] == ["learned", "template control", "ceiling"]
    assert summary.built == []
    for name in ("explorer (seed 0)", "template control", "gold-chain ceiling"):
        assert name in summary.markdown
    twice = summarise(
        pipeline, [*outcomes, StageOutcome("evaluation-seed1", pipeline.artifact("evaluation-seed0"), built=True)]
    )
    assert [row.system for row in twice.rows][:3] == ["explorer (seed 0)"] * 2 + ["explorer (mean of 2 seeds)"]
    assert twice.rows[2].overall["hits1"] == pytest.approx(twice.rows[0].overall["hits1"])
    assert len(twice.rows) == 5
    assert twice.built == ["evaluation-seed1"]
    data = summarise(pipeline, outcomes[:3])
    assert (data.rows, data.markdown, data.name) == ((), "", "tiny")


GRAPH = {"num_entities": 12345, "num_relations": 7, "num_triples": 54321, "kinds": {"entity": 12000, "cvt": 345}}
HOPS = [{"hop": 0, "num_entities": 3, "num_triples": 0}, {"hop": 1, "num_entities": 11, "num_triples": 1300}]


def test_the_facts_of_a_graph_and_its_questions_are_told_in_words() -> None:
    assert list(graph_facts(GRAPH, {"hops": HOPS, "num_topics": 5, "num_topics_missing": 2, "num_hubs": 0})) == [
        ("graph", "12,345 entities (12,000 named, 345 CVT nodes), 7 relations, 54,321 triples"),
        ("  step 1", "11 new entities, 1,300 new triples"),
        ("  topics", "2 of 5 are not in the dump"),
    ]
    plain = list(graph_facts({**GRAPH, "kinds": None}, {}))
    assert plain == [("graph", "12,345 entities, 7 relations, 54,321 triples")]
    rows = [{"split": "dev", "num_questions": num, "any_gold": share} for num, share in ((30, 50.0), (10, 10.0))]
    asked = list(question_facts({"max_steps": 3, "coverage": rows}))
    assert asked == [("questions, dev", "40; an answer within 3 steps for 40.0 %")]
