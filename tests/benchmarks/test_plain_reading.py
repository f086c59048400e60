"""The plain reading that ours is timed against: it must be right, or the comparison means nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from benchmarks.plain_reading import EdgeList, PlainExplorer, expand, keep_strongest, make_pairs
from benchmarks.workload import WHOLE
from tests.explorer.worlds import DIM, World, make_graph, make_model, worlds

CHAIN = [(0, 0, 1), (1, 1, 2), (2, 0, 3), (0, 1, 4), (4, 0, 3)]


@pytest.mark.slow
@settings(max_examples=5)
@given(worlds(num_questions=1))
def test_unpruned_it_reaches_the_explorers_candidates(world: World) -> None:
    (question,) = world.questions
    found = world.explore(make_model(steps=world.steps), edge_budget=WHOLE, reenter_topic=True)
    plain = PlainExplorer(DIM, width=3, steps=world.steps)
    pairs = make_pairs([(question, 0)], {question.text: world.question_vectors[0].float()})
    _, entity, _ = plain(EdgeList.of(world.graph), pairs, world.relation_vectors.float(), WHOLE)
    assert sorted(entity.tolist()) == sorted(found.entity.tolist())


def test_an_entitys_edges_are_those_of_both_directions_and_the_identity() -> None:
    edges = EdgeList.of(make_graph(CHAIN, num_entities=5, num_relations=2))
    head, relation, tail = expand(edges, torch.tensor([3, 1]))
    assert list(zip(head.tolist(), relation.tolist(), tail.tolist(), strict=True)) == [
        (0, 2, 2),
        (0, 2, 4),
        (0, 4, 3),
        (1, 1, 2),
        (1, 2, 0),
        (1, 4, 1),
    ]


def test_the_strongest_edges_of_each_head_are_kept_and_its_identity() -> None:
    head = torch.tensor([0, 0, 0, 0, 1, 1])
    logits = torch.tensor([0.1, 0.3, 0.2, -9.0, 0.5, -9.0])
    is_identity = torch.tensor([False, False, False, True, False, True])
    assert keep_strongest(logits, head, is_identity, 2).tolist() == [1, 2, 3, 4, 5]
    assert keep_strongest(logits, head, is_identity, 1).tolist() == [1, 3, 4, 5]
