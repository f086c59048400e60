"""Whole runs in which each question explores a subgraph of its own: from a file, or cut out of the graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.question_file import evaluate_file
from kgqa_core.config_base import SubgraphSection
from kgqa_core.errors import InputError
from kgqa_core.run.ask import open_answerer
from kgqa_core.run.open import graph_of, open_system, search_graph
from kgqa_core.run.pipeline import Pipeline
from tests.conftest import Build, open_run, write_jsonl
from tests.nsm import line, write_nsm

RUN = """\
dataset:
  name: nsm
  source: files
  graph: {format: nsm}
  questions: {format: nsm, files: {train: train.jsonl, dev: dev.jsonl, test: test.jsonl}}
  subgraphs: question
encoder: {kind: hash, dim: 31}
explorer: {steps: 1, width: 7, edge_budget: 5, epochs: 2, batch_size: 5}
"""
STAGES = ["graph", "subgraphs", "questions", "encodings", "explorer-seed0", "controls", "evaluation-seed0"]


def likes(split: str, number: int) -> dict[str, Any]:
    """One person likes something else in every subgraph, and every third subgraph lacks the answer."""
    tuples = [["m.ann", "likes", f"m.thing{number}"], ["m.ann", "eats", "m.soup"]]
    tuples = tuples[1:] if number % 3 == 0 else tuples
    return line(f"{split}{number}", "what does ann like", ["m.ann"], [f"m.thing{number}"], tuples)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, build_stages: Build) -> Pipeline:
    folder = tmp_path_factory.mktemp("nsm")
    for split, numbers in {"train": range(13), "dev": range(13, 17), "test": range(17, 24)}.items():
        write_nsm(folder / f"{split}.jsonl", [likes(split, number) for number in numbers])
    pipeline = open_run(folder / "nsm.yaml", RUN)
    assert build_stages(pipeline) == STAGES
    return pipeline


def read_scores(pipeline: Pipeline) -> dict[str, Any]:
    rows = json.loads((pipeline.artifact("evaluation-seed0").folder / "scores.json").read_text(encoding="utf-8"))
    return {row["role"]: row for row in rows}


def test_nobody_leaves_the_subgraph_and_every_question_is_scored(run: Pipeline) -> None:
    graph = graph_of(run)
    predictions = pq.read_table(run.artifact("evaluation-seed0").folder / "predictions.parquet").to_pylist()
    reached = {row["question_id"]: {graph.label_of(entity) for entity in row["candidate_ids"]} for row in predictions}
    inside = {
        f"test{number}": {"m.ann", "m.soup"} | ({f"m.thing{number}"} if number % 3 else set())
        for number in range(17, 24)
    }
    assert reached.keys() == inside.keys()
    assert all(reached[question] <= inside[question] for question in inside)
    assert [row["covered"] for row in predictions] == [number % 3 != 0 for number in range(17, 24)]
    scores = read_scores(run)
    assert {role: row["overall"]["n"] for role, row in scores.items()} == dict.fromkeys(scores, 7)
    assert {role: row["answerable"]["n"] for role, row in scores.items()} == dict.fromkeys(scores, 5)
    assert scores["ceiling"]["overall"]["hits1"] == pytest.approx(100 * 5 / 7)
    assert scores["ceiling"]["answerable"]["hits1"] == 100
    assert scores["template control"]["answerable"]["f1"] == 100  # "likes", followed inside the subgraph
    assert {hops: one["n"] for hops, one in scores["learned"]["by_hops"].items()} == {"1": 5, "unknown": 2}


def test_with_one_graph_for_all_the_stage_is_not_there_and_more_is_reached(run: Pipeline, build_stages: Build) -> None:
    dataset = run.config.dataset.model_copy(update={"subgraphs": SubgraphSection()})
    whole = Pipeline(run.config.model_copy(update={"dataset": dataset}))
    built = build_stages(whole)
    assert "subgraphs" not in whole.specs
    assert built == ["questions", "explorer-seed0", "controls", "evaluation-seed0"]  # the same texts: same encodings
    predictions = pq.read_table(whole.artifact("evaluation-seed0").folder / "predictions.parquet").to_pylist()
    assert min(len(row["candidate_ids"]) for row in predictions) >= 10
    assert read_scores(whole)["template control"]["overall"]["f1"] < 50  # it likes what it likes in all subgraphs


def test_a_question_in_words_explores_the_whole_graph(run: Pipeline) -> None:
    assert search_graph(run).graph.num_entities > graph_of(run).num_entities  # an ann for each question
    answer = open_answerer(run).ask("what does ann like", "m.ann")
    assert {"m.thing1", "m.thing19"} & {line.label for line in answer.candidates}
    assert open_system(run).subgraphs is not None


def test_a_file_of_the_run_can_be_scored_again_and_another_says_why_not(run: Pipeline, tmp_path: Path) -> None:
    scores = read_scores(run)
    questions = run.specs["questions"].files
    again, rejected = evaluate_file(run, questions["questions/test/test.jsonl"], controls=True)
    assert rejected.num == again["rejects"] == 0
    assert again["n"] == 7
    assert again["hits1"] == pytest.approx(scores["learned"]["overall"]["hits1"])
    assert again["controls"]["template control"]["f1"] == scores["template control"]["overall"]["f1"]
    other = write_nsm(tmp_path / "other.jsonl", [likes("other", 5)])
    with pytest.raises(InputError, match="question 'other5' has no subgraph"):
        evaluate_file(run, other)


# Cut out of the graph

CUT_RUN = """\
dataset:
  name: cut
  source: files
  graph: {format: tsv, path: triples.tsv}
  questions: {format: jsonl, path: questions}
  subgraphs: {method: pagerank, hops: 2, max_entities: 5, drop_relations: [born in]}
encoder: {kind: hash, dim: 31}
explorer: {steps: 1, width: 7, edge_budget: 5, epochs: 2, batch_size: 5}
"""


def test_nobody_leaves_what_was_cut_and_every_question_is_scored(tmp_path: Path, build_stages: Build) -> None:
    triples = [f"person{one}\tlikes\tthing{one}\nperson{one}\tborn in\tbergen\n" for one in range(23)]
    (tmp_path / "triples.tsv").write_text("".join(triples), encoding="utf-8")
    for split, numbers in {"train": range(13), "dev": range(13, 17), "test": range(17, 23)}.items():
        said = {n: {"question": f"what does person{n} like", "topics": [f"person{n}"]} for n in numbers}
        rows = [{"id": f"q{n}", **asked, "answers": [f"thing{n}"]} for n, asked in said.items()]
        rows[-1]["answers"] = ["bergen"]  # which is not in the subgraph
        if split == "test":
            rows[-1]["question"] = "what does person2 like"  # who is not there either
        write_jsonl(tmp_path / "questions" / f"{split}.jsonl", rows)
    pipeline = open_run(tmp_path / "cut.yaml", CUT_RUN)
    assert build_stages(pipeline) == ["graph", "questions", "subgraphs", *STAGES[3:]]
    graph = graph_of(pipeline)
    folder = pipeline.artifact("evaluation-seed0").folder
    reached = {
        row["question_id"]: {graph.label_of(entity) for entity in row["candidate_ids"]}
        for row in pq.read_table(folder / "predictions.parquet").to_pylist()
    }
    assert reached == {f"q{one}": {f"person{one}", f"thing{one}"} for one in range(17, 23)}
    blocks = pq.read_table(pipeline.artifact("subgraphs").folder / "blocks.parquet").to_pylist()
    assert {row["num_triples"] for row in blocks} == {1}
    assert [row["holds_answer"] for row in blocks].count(False) == 3
    assert search_graph(pipeline).subgraphs is not None
    learned = read_scores(pipeline)["learned"]
    assert (learned["overall"]["n"], learned["answerable"]["n"]) == (6, 5)

    # Topics that are found in the text alone may lie outside a question's subgraph: they are not found there.
    linked = open_run(tmp_path / "cut.yaml", CUT_RUN + "systems: {run: [tog], answered_by: [oracle], topics: linked}\n")
    build_stages(linked)
    answered = pq.read_table(linked.artifact("system-tog-oracle-seed0").folder / "predictions.parquet").to_pylist()
    assert [row["status"] for row in answered][:-1] == ["answered"] * 5
    topics = [[graph.label_of(topic) for topic in row["topics"]] for row in answered]
    assert topics == [*([f"person{one}"] for one in range(17, 22)), []]
