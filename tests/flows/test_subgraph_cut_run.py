"""A whole run in which each question explores what was cut out of the graph around its topics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kgqa_core.config_file import read_config
from kgqa_core.run.open import graph_of, search_graph
from kgqa_core.run.pipeline import Pipeline

RUN = """\
dataset:
  name: cut
  source: files
  graph: {format: tsv, path: triples.tsv}
  questions: {format: jsonl, path: questions}
  subgraphs: {method: pagerank, hops: 2, max_entities: 5, drop_relations: [born in]}
encoder: {kind: hash, dim: 31}
explorer: {steps: 1, width: 7, edge_budget: 5, epochs: 2, batch_size: 5}
"""
STAGES = ["graph", "questions", "subgraphs", "encodings", "explorer-seed0", "controls", "evaluation-seed0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, build_stages: Callable[[Pipeline], list[str]]) -> Pipeline:
    folder = tmp_path_factory.mktemp("cut")
    triples = [f"person{one}\tlikes\tthing{one}\nperson{one}\tborn in\tbergen\n" for one in range(23)]
    (folder / "triples.tsv").write_text("".join(triples), encoding="utf-8")
    (folder / "questions").mkdir()
    for split, numbers in {"train": range(13), "dev": range(13, 17), "test": range(17, 23)}.items():
        rows = [
            {
                "id": f"q{one}",
                "question": f"what does person{one} like",
                "topics": [f"person{one}"],
                "answers": [f"thing{one}"],
            }
            for one in numbers
        ]
        rows[-1]["answers"] = ["bergen"]  # which is not in the subgraph
        lines = [json.dumps(row) + "\n" for row in rows]
        (folder / f"questions/{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "cut.yaml").write_text(RUN, encoding="utf-8")
    pipeline = Pipeline(read_config(folder / "cut.yaml", [f"runtime.home={folder / 'home'}"]))
    assert build_stages(pipeline) == STAGES
    return pipeline


def test_nobody_leaves_the_subgraph_and_every_question_is_scored(run: Pipeline) -> None:
    graph = graph_of(run)
    folder = run.artifact("evaluation-seed0").folder
    reached = {
        row["question_id"]: {graph.label_of(entity) for entity in row["candidate_ids"]}
        for row in pq.read_table(folder / "predictions.parquet").to_pylist()
    }
    assert reached == {f"q{one}": {f"person{one}", f"thing{one}"} for one in range(17, 23)}
    (learned,) = [row for row in json.loads((folder / "scores.json").read_text()) if row["role"] == "learned"]
    assert (learned["overall"]["n"], learned["answerable"]["n"]) == (6, 5)


def test_a_question_is_placed_in_its_own_subgraph(run: Pipeline) -> None:
    search = search_graph(run)
    assert search.subgraphs is not None
    blocks = pq.read_table(run.artifact("subgraphs").folder / "blocks.parquet").to_pylist()
    assert {row["num_triples"] for row in blocks} == {1}
    assert [row["holds_answer"] for row in blocks].count(False) == 3


def test_other_settings_of_the_cut_leave_graph_and_questions_alone(
    run: Pipeline, build_stages: Callable[[Pipeline], list[str]], tmp_path: Path
) -> None:
    dataset = run.config.dataset
    wider = dataset.subgraphs.model_copy(update={"drop_relations": ()})
    other = Pipeline(run.config.model_copy(update={"dataset": dataset.model_copy(update={"subgraphs": wider})}))
    assert build_stages(other)[0] == "subgraphs"
