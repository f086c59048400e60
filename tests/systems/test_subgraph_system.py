"""Exploring one's block is exploring a graph that holds nothing but the question's own triples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.errors import InputError
from kgqa_core.graph.build import build_graph
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.questions.coverage import fill_hops, find_answerable, gold_hops
from kgqa_core.systems.controls import answer_by_path, follow_gold_chains
from kgqa_core.systems.etd import ExplorerSystem
from kgqa_core.types import Prediction, Question
from tests.loading import load_question_file, searched
from tests.nsm import ROWS, write_nsm
from tests.systems.conftest import untrained

World = tuple[ExplorerSystem, list[Question]]


@pytest.fixture
def world(rows: tuple[SearchGraph, list[Question]]) -> World:
    walk, questions = rows
    return replace(untrained(walk.entities, steps=2, batch_size=3), subgraphs=walk.subgraphs), questions


def in_labels(prediction: Prediction, graph: KnowledgeGraph) -> dict[str, Any]:
    """Return what a prediction says, whatever the ids of its graph: tied candidates in order of label."""
    label, relation = graph.label_of, graph.relation_names
    ranked = zip(prediction.candidates, prediction.scores, strict=True)
    return {
        "ranked": sorted((-round(score, 6), label(entity)) for entity, score in ranked),
        "answers": {label(entity) for entity in prediction.answers},
        "paths": [
            [(label(step.head), relation[step.relation], label(step.tail), step.reverse) for step in path]
            for path in prediction.paths
        ],
        "covered": prediction.covered,
    }


def alone(row: dict[str, Any], folder: Path) -> tuple[KnowledgeGraph, Question]:
    """Build the graph of one question's own triples, and link the question to it."""
    build_graph(write_nsm(folder / "one.jsonl", [row]), format="nsm", out_dir=folder / "graph")
    graph = open_graph(folder / "graph")
    (question,), _ = load_question_file(folder / "one.jsonl", format="nsm", graph=graph)
    return graph, question


def test_a_block_is_explored_like_a_graph_of_its_own(world: World, tmp_path: Path) -> None:
    system, questions = world
    together = system.answer(questions)
    for row, asked, prediction in zip(ROWS, questions, together, strict=True):
        if not row["subgraph"]["tuples"]:  # no graph is without a triple; the topic alone is reached
            assert in_labels(prediction, system.graph)["answers"] == {"m.zoe"}
            continue
        (tmp_path / row["id"]).mkdir()
        graph, question = alone(row, tmp_path / row["id"])
        # Relations have other ids there, but the same texts. The texts of other lines' answers are no names there.
        (expected,) = untrained(graph, steps=2, batch_size=3).answer([replace(question, masked=asked.masked)])
        assert in_labels(prediction, system.graph) == in_labels(expected, graph)


def test_a_question_needs_a_topic_and_a_subgraph(world: World) -> None:
    system, questions = world
    assert not system.answer([questions[5]])[0].candidates
    with pytest.raises(InputError, match="question 'asked' has no subgraph, and this run explores nothing else"):
        system.answer([replace(questions[0], id="asked")])


def test_hops_and_what_is_answerable_are_those_of_the_block(world: World) -> None:
    system, questions = world
    search = searched(system.graph, 3, subgraphs=system.subgraphs)
    placed = search.place(questions)
    hops = [found.tolist() for found in gold_hops(placed, search, max_steps=3)]
    assert hops == [[2], [-1, 1], [-1], [1], [], [-1], [-1], [-1, 1]]
    filled = [question.hops for question in fill_hops(questions, search)]
    assert filled == [2, 1, None, 1, *[None] * 3, 1]
    answerable = find_answerable(placed, search.graph)
    assert answerable.tolist() == [True, True, False, True, False, True, False, True]
    in_the_whole_graph = find_answerable(questions, system.graph)
    assert in_the_whole_graph.tolist() == [True, True, False, True, False, True, True, True]


def test_the_controls_stay_inside_too(world: World) -> None:
    system, questions = world
    assert system.subgraphs is not None
    rows, graph = [*map(system.subgraphs.to_rows, questions)], system.subgraphs.graph
    search, likes = SearchGraph(graph, system.graph, system.subgraphs, 2, False), graph.relation_names.index("likes")
    inside = answer_by_path(search, rows[1], (likes,))
    assert [system.graph.label_of(int(system.subgraphs.entity[row])) for row in inside.answers] == ["m.rock"]
    _, ceiling = follow_gold_chains(search, rows)
    assert [prediction.covered for prediction in ceiling] == [True, True, False, True, *[False] * 3, True]
