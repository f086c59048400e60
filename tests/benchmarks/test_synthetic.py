"""Synthetic graphs and questions: the same every time, skewed, and their answers right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.scaling_build import build_one
from benchmarks.synthetic import MAX_ANSWERS, draw_questions, draw_triples, follow, relation_label, write_triples
from kgqa_core.graph.kg import KnowledgeGraph, open_graph

COUNT, NUM_RELATIONS = 5003, 41


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeGraph:
    folder = tmp_path_factory.mktemp("synthetic")
    write_triples(draw_triples(COUNT, num_relations=NUM_RELATIONS), folder / "triples.tsv")
    built = build_one(str(folder / "triples.tsv"), str(folder / "graph"))
    assert built["triples"] <= COUNT and built["megabytes"] > 0 and built["build"] > 0
    return open_graph(folder / "graph")


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("first", 3), ("again", 3), ("other", 5)):
        write_triples(draw_triples(COUNT, num_relations=NUM_RELATIONS, seed=seed), tmp_path / name)
    first, again, other = ((tmp_path / name).read_bytes() for name in ("first", "again", "other"))
    assert first == again != other


def test_every_relation_has_words_of_its_own() -> None:
    assert len({relation_label(number) for number in range(4000)}) == 4000


def test_few_entities_have_most_of_the_edges(graph: KnowledgeGraph) -> None:
    degree = np.sort(np.diff(graph.edge_ptr[graph.group_ptr]))
    assert degree[-1] > 10 * degree.mean()
    assert np.median(degree) < degree.mean()


def test_every_question_is_answered_by_its_chain(graph: KnowledgeGraph) -> None:
    questions = draw_questions(graph, num_chains=7, per_chain=5, hops=2)
    assert questions == draw_questions(graph, num_chains=7, per_chain=5, hops=2)
    assert 7 <= len(questions) <= 35 and len({question.id for question in questions}) == len(questions)
    for question in questions:
        first, second = question.chain or ()
        (topic,) = question.topics
        ends = {int(end) for middle in graph.neighbors(topic, first) for end in graph.neighbors(int(middle), second)}
        assert set(question.answers) <= ends - {topic}
        assert 0 < len(question.answers) <= MAX_ANSWERS


def test_the_topic_is_not_walked_through_again(graph: KnowledgeGraph) -> None:
    relation = int(graph.group_relation[0])
    there_and_back = follow(graph, 0, (relation, (relation + graph.num_relations) % graph.identity))
    assert there_and_back is not None and 0 not in there_and_back
