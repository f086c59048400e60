"""All MetaQA questions, where they are at hand (environment variable KGQA_DATA)."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from kgqa_core.graph.build import build_graph
from kgqa_core.graph.follow import follow_path, reasoning_paths
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.questions.build import QuestionReport, build_questions
from kgqa_core.questions.formats import QuestionSource
from kgqa_core.questions.link import link_topics
from kgqa_core.questions.store import read_questions
from kgqa_core.types import Question

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(
        "KGQA_DATA" not in os.environ, reason="KGQA_DATA names no folder with metaqa/1-hop/qa_train.txt"
    ),
]
Built = tuple[KnowledgeGraph, QuestionReport, list[Question]]


@pytest.fixture(scope="module")
def metaqa(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Graph, report and questions of the whole dataset."""
    folder, data = tmp_path_factory.mktemp("metaqa"), Path(os.environ["KGQA_DATA"]) / "metaqa"
    build_graph(data / "kb.txt", format="wikimovies", out_dir=folder / "graph")
    graph = open_graph(folder / "graph")
    source = QuestionSource("metaqa", data)
    report = build_questions(source, graph=graph, max_steps=3, reenter_topic=False, out_dir=folder / "questions")
    return graph, report, read_questions(folder / "questions")


def test_every_question_is_linked(metaqa: Built) -> None:
    _, report, questions = metaqa
    assert (report.num_questions, report.num_rejects) == (33_138 + 3_000 + 3_000, 0)
    sizes = Counter((question.hops, question.split) for question in questions)
    assert [sizes[hops, "train"] for hops in (1, 2, 3)] == [7_992, 12_872, 12_274]
    assert all(sizes[hops, split] == 1_000 for hops in (1, 2, 3) for split in ("dev", "test"))
    assert all(len(question.topics) == 1 and question.answers for question in questions)
    assert all(question.chain is not None and len(question.chain) == question.hops for question in questions)
    assert len({question.masked for question in questions}) == 518


def test_three_steps_reach_every_gold_of_three_hops(metaqa: Built) -> None:
    rows = {(row.hops, row.split): row for row in metaqa[1].lint.coverage}
    assert len(rows) == 9
    assert all(row.any_gold == 100 for row in rows.values())
    assert rows[3, "test"].all_golds == 100


def test_the_gold_chain_gives_exactly_the_golds_with_the_topic_masked(metaqa: Built) -> None:
    graph, _, questions = metaqa
    sample = [question for question in questions if question.hops == 3 and question.split == "test"][::5]
    assert len(sample) == 200
    chains = [(question, question.chain or ()) for question in sample]
    assert all(tuple(follow_path(graph, q.topics, chain).tolist()) == q.answers for q, chain in chains)
    free = [tuple(follow_path(graph, q.topics, c, reenter_topic=True).tolist()) == q.answers for q, c in chains]
    assert sum(free) < 150
    for question, chain in chains:
        steps = next(reasoning_paths(graph, question.topics, chain, ends=question.answers[:1]), None)
        assert steps is not None
        assert len(steps) == 3


def test_topics_are_found_without_their_brackets(metaqa: Built) -> None:
    graph, _, questions = metaqa
    sample = [question for question in questions if question.split == "test"][::7]
    right = sum(set(question.topics) <= set(link_topics(question.text, graph)) for question in sample)
    assert right >= 0.99 * len(sample)
