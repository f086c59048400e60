"""Hops of questions whose dataset does not say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.coverage import fill_hops
from kgqa_core.types import Question


def entity(films: KnowledgeGraph, label: str) -> int:
    found = films.ids_of_label(label)
    assert found is not None
    return found


def ask(films: KnowledgeGraph, topic: str, *golds: str) -> Question:
    ids = tuple(sorted(entity(films, gold) for gold in golds))
    return Question(f"{topic}-{golds}", "", "", (entity(films, topic),), ids, "test")


@pytest.mark.parametrize(
    ("topic", "golds", "hops"),
    [
        ("f1", ["p1"], 1),
        ("p1", ["f2"], 1),  # against the direction that is stored
        ("p2", ["p1"], 2),
        ("p2", ["1958"], 4),  # p2 - f1 - p1 - f2 - 1958
        ("f1", ["1958", "f2", "p2"], 1),  # the nearest gold counts
        ("f1", ["1958", "f2"], 2),
        ("f1", ["1998"], None),  # no path at all
        ("f1", [], None),
    ],
)
def test_the_shortest_path_to_any_gold(films: KnowledgeGraph, topic: str, golds: list[str], hops: int | None) -> None:
    (question,) = fill_hops([ask(films, topic, *golds)], films, reenter_topic=False)
    assert question.hops == hops


def test_what_the_dataset_says_comes_first_then_the_gold_chain(films: KnowledgeGraph) -> None:
    plain = ask(films, "f1", "p1")
    given, chained = replace(plain, hops=3, chain=(0,)), replace(plain, chain=(0, 3))
    assert fill_hops([given], films, reenter_topic=False) == [given]
    assert [question.hops for question in fill_hops([chained, plain], films, reenter_topic=False)] == [2, 1]


def test_a_gold_that_is_the_topic_is_reached_only_where_topics_may_be_reentered(films: KnowledgeGraph) -> None:
    question = ask(films, "f1", "f1")
    assert fill_hops([question], films, reenter_topic=False)[0].hops is None
    assert fill_hops([question], films, reenter_topic=True)[0].hops == 2
