"""Evidence paths: the strongest edge into each candidate, step by step back to a topic."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings

from kgqa_core.evaluation.predictions import render_path
from kgqa_core.explorer.explore import Exploration, StepTrace
from kgqa_core.explorer.predict import as_stored, backtrack
from kgqa_core.types import Step
from tests.explorer.oracle import backtrack_one, explore_one
from tests.explorer.worlds import World, make_model, worlds

R = 3  # relations; 3..5 walk them backwards, 6 is identity
ARROW = (0, 6, 0, 0.0)  # an identity edge of no weight, from and to node 0


def trace(heads: list[int], edges: list[tuple[int, int, int, float]]) -> StepTrace:
    """One step: the entities before it, and (head node, relation, target node, attention) of its edges."""
    head, relation, target, attention = zip(*edges, strict=True)
    return StepTrace(
        head=np.array(head),
        target=np.array(target),
        relation=np.array(relation),
        attention=np.array(attention, dtype=np.float32),
        head_entity=np.array(heads),
    )


def found(entities: list[int], *traces: StepTrace) -> Exploration:
    """The outcome of one question."""
    each = np.arange(len(entities))
    return Exploration(each * 0, np.array(entities), each, torch.zeros(len(entities)), traces=list(traces))


def test_the_path_runs_from_the_topic_along_the_strongest_edges() -> None:
    # 11 -> {13, 17} -> 19; the edge from 17 is the stronger one of the two into 19.
    first = trace([11], [ARROW, (0, 0, 1, 0.5), (0, 1, 2, -0.5)])
    second = trace([11, 13, 17], [ARROW, (1, 2, 1, 0.1), (2, 0, 1, 0.2)])
    assert backtrack(found([11, 19], first, second), np.array([1]), num_relations=R) == [
        (Step(11, 1, 17), Step(17, 0, 19))
    ]


def test_a_step_walked_backwards_is_shown_as_the_stored_triple() -> None:
    only = trace([11], [ARROW, (0, R + 2, 1, 0.5)])
    assert backtrack(found([11, 13], only), np.array([1]), num_relations=R) == [(Step(13, 2, 11, reverse=True),)]
    assert as_stored(5, 2, 7, R) == Step(5, 2, 7)
    assert as_stored(5, R + 2, 7, R) == Step(7, 2, 5, reverse=True)


def test_identity_steps_are_left_out_and_a_topic_has_the_empty_path() -> None:
    first = trace([11], [ARROW, (0, 0, 1, 0.5)])
    second = trace([11, 13], [ARROW, (1, 2 * R, 1, 0.9), (0, 1, 1, 0.8)])
    found_two_steps = found([11, 13], first, second)
    assert backtrack(found_two_steps, np.array([0, 1]), num_relations=R) == [(), (Step(11, 0, 13),)]


def test_ties_go_to_the_smaller_head_then_the_smaller_relation() -> None:
    # Nodes 0 and 1 are entities 17 and 13: the tie is between entities, not between node numbers.
    start = trace([17, 13], [(0, 2 * R, 0, 0.0), (1, 2 * R, 1, 0.0)])
    tied = trace([17, 13], [(0, 0, 0, 0.5), (1, 2, 0, 0.5), (1, 1, 0, 0.5), (1, 0, 0, 0.4)])
    assert backtrack(found([19], start, tied), np.array([0]), num_relations=R) == [(Step(13, 1, 19),)]


def test_several_candidates_may_share_a_path_and_come_in_the_order_asked() -> None:
    first = trace([11], [ARROW, (0, 0, 1, 0.5), (0, 0, 2, 0.5)])
    paths = backtrack(found([11, 13, 17], first), np.array([2, 0, 2, 1]), num_relations=R)
    assert paths == [(Step(11, 0, 17),), (), (Step(11, 0, 17),), (Step(11, 0, 13),)]
    assert backtrack(found([11, 13, 17], first), np.zeros(0, dtype=np.int64), num_relations=R) == []


def test_paths_read_in_walking_order() -> None:
    path = (Step(2, 1, 0, reverse=True), Step(2, 0, 1))
    text = render_path(path, entity_names=["Ann", "1999", "Ash"], relation_labels=["release_year", "starred_actors"])
    assert text == "(Ash, starred_actors, Ann) → (Ash, release_year, 1999)"
    assert render_path((), entity_names=[], relation_labels=[]) == ""


@settings(deadline=None, derandomize=True, max_examples=60)
@given(world=worlds())
def test_every_path_is_stored_triples_that_lead_from_a_topic_to_the_candidate(world: World) -> None:
    exploration = world.explore(make_model(steps=world.steps, seed=world.seed), trace=True)
    num_relations = len(world.relation_vectors)
    paths = backtrack(exploration, np.arange(len(exploration.entity)), num_relations=num_relations)
    for question, candidate, path in zip(exploration.question, exploration.entity, paths, strict=True):
        here = (path[0].tail if path[0].reverse else path[0].head) if path else candidate
        assert here in world.questions[question].topics
        for step in path:
            assert (step.head, step.relation, step.tail) in world.triples
            assert here == (step.tail if step.reverse else step.head)
            here = step.head if step.reverse else step.tail
        assert here == candidate
        assert len(path) <= world.steps


@settings(deadline=None, derandomize=True, max_examples=60)
@given(world=worlds(equal_texts=False, num_questions=1))
def test_paths_are_those_of_the_oracle(world: World) -> None:
    model, num_relations = make_model(steps=world.steps, seed=world.seed), len(world.relation_vectors)
    (question,) = world.questions
    walk = explore_one(
        model,
        world.triples,
        topics=question.topics,
        question_vector=world.question_vectors[int(question.masked)],
        relation_vectors=world.relation_vectors,
        edge_budget=world.edge_budget,
        reenter_topic=world.reenter_topic,
    )
    exploration = world.explore(model, trace=True)
    paths = backtrack(exploration, np.arange(len(exploration.entity)), num_relations=num_relations)
    for candidate, path in zip(exploration.entity.tolist(), paths, strict=True):
        edges = backtrack_one(walk, candidate, 2 * num_relations)
        assert path == tuple(as_stored(*edge, num_relations) for edge in edges)
