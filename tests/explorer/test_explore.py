"""The fast explorer against the slow oracle: the same nodes, scores and gradients, merged or not."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kgqa_core.explorer.explore import (
    Exploration,
    ExploreOptions,
    TooManyEdges,
    explore,
    gold_mask,
    logit,
    loss_sum,
)
from kgqa_core.explorer.model import Texts
from tests.explorer.oracle import Edge, loss_of
from tests.explorer.plain_walk import plainly, walked_edges
from tests.explorer.worlds import (
    Way,
    World,
    make_batch,
    make_graph,
    make_model,
    make_question,
    star,
    unit_vectors,
    walks_of,
    worlds,
)

both_ways = pytest.mark.parametrize("way", [nullcontext, plainly], ids=["merged", "plain"])
TOLERANCE = 1e-9  # both run in double precision; the promise is 1e-5


def scores_of(found: Exploration) -> dict[tuple[int, int], float]:
    """(question, entity) -> logit."""
    values = found.class_score[torch.from_numpy(found.node_class)].tolist()
    return dict(zip(zip(found.question.tolist(), found.entity.tolist(), strict=True), values, strict=True))


def edges_of(world: World, found: Exploration) -> list[Counter[Edge]]:
    """Per step, the edges walked by all questions together."""
    return [Counter(walked_edges(world.graph, trace, world.batch, world.options)) for trace in found.traces]


@settings(max_examples=60)
@given(world=worlds(), threshold=st.sampled_from([0.0, 0.0, 0.0, 0.3, 0.45, 0.5, 0.55, 0.7]))
@both_ways
def test_nodes_edges_and_scores_are_those_of_the_oracle(way: Way, world: World, threshold: float) -> None:
    walks = walks_of(world, make_model(steps=world.steps, seed=world.seed), threshold)
    attention = [weight for walk in walks for step in walk.steps for weight in step.values()]
    assume(all(abs(weight - logit(threshold)) > 1e-6 for weight in attention))  # on the edge, rounding decides
    found = world.explore(
        make_model(steps=world.steps, seed=world.seed), way=way, attention_threshold=threshold, trace=True
    )
    expected = {(at, entity): score.item() for at, walk in enumerate(walks) for entity, score in walk.scores.items()}
    assert scores_of(found) == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)
    assert len(scores_of(found)) == len(found.entity)  # each entity once per question
    assert found.question.tolist() == sorted(found.question.tolist())
    for step, edges in enumerate(edges_of(world, found)):
        assert edges == sum((Counter(walk.steps[step].keys()) for walk in walks), Counter())


@settings(max_examples=25)
@given(world=worlds())
@both_ways
def test_loss_and_gradients_are_those_of_the_oracle(way: Way, world: World) -> None:
    slow, fast = (make_model(steps=world.steps, seed=world.seed) for _ in range(2))
    walks = walks_of(world, slow)
    expected = loss_of(walks, [question.answers for question in world.questions])
    total, covered = loss_sum(world.explore(fast, way=way), world.batch, world.num_entities)
    assert covered.tolist() == [
        bool(walk.scores.keys() & set(question.answers)) for walk, question in zip(walks, world.questions, strict=True)
    ]
    if not covered.any():
        return
    loss = total / covered.sum()
    assert loss.item() == pytest.approx(expected.item(), rel=TOLERANCE)
    expected.backward()
    loss.backward()
    largest = max(float(weight.grad.abs().max()) for weight in slow.parameters() if weight.grad is not None)
    for (name, weight), wanted in zip(fast.named_parameters(), slow.parameters(), strict=True):
        given_grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        wanted_grad = torch.zeros_like(weight) if wanted.grad is None else wanted.grad
        assert (given_grad - wanted_grad).abs().max() <= TOLERANCE * max(1.0, largest), name


@settings(max_examples=20)
@given(world=worlds())
def test_single_precision_stays_within_1e_5(world: World) -> None:
    exact = scores_of(world.explore(make_model(steps=world.steps, seed=world.seed)))
    single = replace(
        world, relation_vectors=world.relation_vectors.float(), question_vectors=world.question_vectors.float()
    )
    for way in (nullcontext, plainly):
        rounded = scores_of(single.explore(make_model(steps=world.steps, seed=world.seed).float(), way=way))
        assert rounded == pytest.approx(exact, rel=1e-5, abs=1e-5)


def test_merging_computes_one_state_for_all_leaves_of_a_hub() -> None:
    world = star(97)
    model = make_model(steps=3)
    merged, plain = (world.explore(model, way=way, trace=True) for way in (nullcontext, plainly))
    # The topic; its two films; the hub; and in the third step every other film, all in the same state.
    assert [len(trace.nodes.entity) for trace in merged.traces] == [1, 3, 4]
    assert [len(trace.nodes.class_question) for trace in merged.traces] == [1, 2, 3]
    assert [len(trace.nodes.class_question) for trace in plain.traces] == [1, 3, 4]
    assert merged.counts == {"nodes": 3 + 4 + 99, "classes": 2 + 3 + 4, "edges": plain.counts["edges"]}
    assert plain.counts["classes"] == plain.counts["nodes"] == merged.counts["nodes"]
    assert scores_of(merged) == pytest.approx(scores_of(plain), rel=TOLERANCE)


@both_ways
def test_a_step_too_large_for_memory_is_refused_unless_it_is_of_one_question(way: Way) -> None:
    world, model = star(97), make_model(steps=3)
    two = replace(world, questions=world.questions * 2)
    assert len(two.explore(model, way=way, max_edges=214).entity) == 2 * 99
    with pytest.raises(TooManyEdges, match="214 edges in one step, 213 are allowed"):
        two.explore(model, way=way, max_edges=213)
    assert len(world.explore(model, way=way, max_edges=1).entity) == 99


@both_ways
def test_questions_without_topics_have_no_candidates(way: Way) -> None:
    nowhere, somewhere = make_question([], [5], masked="0"), make_question([0], [5], masked="0")
    for questions in ([nowhere], [somewhere, nowhere], [nowhere, somewhere, nowhere]):
        world = replace(star(5), questions=questions)
        model = make_model(steps=3)
        found = world.explore(model, way=way)
        assert set(found.question.tolist()) == {at for at, question in enumerate(questions) if question is somewhere}
        probability = np.bincount(found.question, weights=found.log_probability(len(questions)).exp().detach().numpy())
        assert probability[probability > 0] == pytest.approx(1.0)  # a softmax per question
        loss, covered = loss_sum(found, world.batch, world.num_entities)
        loss.backward()
        assert covered.tolist() == [question is somewhere for question in questions]
        assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())


def test_a_hub_of_thousands_stays_finite_in_single_precision() -> None:
    world = star(5003)
    world = replace(
        world,
        relation_vectors=world.relation_vectors.float(),
        question_vectors=world.question_vectors.float(),
        questions=[make_question([1], [0], masked="0")],  # from the hub to its leaves, and all of them back to it
        reenter_topic=True,
        steps=4,
    )
    model = make_model(steps=4).float()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(7)  # far larger than training leaves them
    found = world.explore(model)
    loss, _ = loss_sum(found, world.batch, world.num_entities)
    loss.backward()
    assert found.class_score.abs().max() > 1e5  # exp() of it is infinite
    assert found.log_probability(1).isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


@both_ways
def test_the_budget_orders_relations_though_a_hub_drowns_them(way: Way) -> None:
    # A head with a huge state adds so much to Eq. 1 that all of its relations round to one value. Which relation is
    # preferred does not depend on the head, so what a head with a small state prefers must be preferred here too.
    preferred = set()
    for seed in range(5):
        world = replace(
            star(3),
            triples=[(0, relation, 1 + relation) for relation in range(5)],
            num_entities=6,
            relation_vectors=unit_vectors(5, seed=seed, dtype=torch.float32),
            question_vectors=unit_vectors(1, seed=7, dtype=torch.float32),
            edge_budget=1,
        )
        reached = []
        for size in (1.0, 1e12):
            model = make_model(steps=1).float()
            with torch.no_grad():
                model.attend_head.fill_(size)
            reached.append(sorted(world.explore(model, way=way).entity.tolist()))
        assert reached[0] == reached[1]
        preferred.add(tuple(reached[0]))
    assert len(preferred) > 1  # so it was not always the first relation


@pytest.mark.parametrize("num_relations", [2, 3, 7, 13, 19])
def test_relations_of_equal_text_tie_to_the_last_bit_and_enter_by_id(num_relations: int) -> None:
    # All relations share one text, so only the first may enter under a budget of one edge. Without care it is another
    # one: a matrix product rounds the same row differently at different places.
    for width in (5, 17, 64):
        model = make_model(steps=1, width=width).float()
        found = explore(
            model,
            make_graph([(0, r, 1 + r) for r in range(num_relations)], num_entities=23, num_relations=num_relations),
            make_batch([make_question([0])], {"what of [topic]": 0}),
            texts=Texts(
                unit_vectors(1, dtype=torch.float32), unit_vectors(1, dtype=torch.float32)[[0] * num_relations]
            ),
            options=ExploreOptions(edge_budget=1),
        )
        assert sorted(found.entity.tolist()) == [0, 1]


# ------ What training minimises.


def candidates(scores: list[list[float]]) -> Exploration:
    """Questions whose candidates are entities 0, 1, 2... with these scores, each a class of its own."""
    question = np.repeat(np.arange(len(scores)), [len(group) for group in scores])
    entity = np.concatenate([np.arange(len(group)) for group in scores])
    logits = torch.tensor([score for group in scores for score in group], dtype=torch.float64, requires_grad=True)
    return Exploration(question, entity, np.arange(len(entity)), logits)


def test_the_target_is_uniform_over_the_golds_that_were_reached() -> None:
    found = candidates([[0.0, 1.0, 2.0], [3.0, 3.0], [1.0, 5.0, 0.0]])
    batch = make_batch(
        [
            make_question([0], [0, 2, 96], masked="0"),  # 96 was not reached: half of the target for each of the others
            make_question([0], [], masked="0"),  # no gold
            make_question([0], [1], masked="0"),
        ],
        {"0": 0},
    )
    loss, covered = loss_sum(found, batch, 97)
    first = np.log(np.exp([0.0, 1.0, 2.0]).sum()) - (0.0 + 2.0) / 2
    third = np.log(np.exp([1.0, 5.0, 0.0]).sum()) - 5.0
    assert loss.item() == pytest.approx(first + third)
    assert covered.tolist() == [True, False, True]
    per_answer, _ = loss_sum(found, batch, 97, per_answer=True)
    log_p = [np.log(np.exp([0.0, 1.0, 2.0]).sum()) - score for score in (0.0, 2.0)] + [third]
    assert per_answer.item() == pytest.approx(2 / 3 * sum(log_p))  # three terms, 1.5 golds per question


def test_a_question_that_reached_no_gold_moves_no_weight() -> None:
    found = candidates([[0.0, 1.0], [2.0, 3.0]])
    batch = make_batch([make_question([0], [1], masked="0"), make_question([0], [5], masked="0")], {"0": 0})
    loss_sum(found, batch, 97)[0].backward()
    assert found.class_score.grad is not None
    assert (found.class_score.grad != 0).tolist() == [True, True, False, False]


def test_a_batch_without_any_reached_gold_has_a_loss_of_zero_and_no_nan() -> None:
    found = candidates([[0.0, -200.0], [2.0]])
    loss, covered = loss_sum(found, make_batch([make_question([0], [5])] * 2, {"what of [topic]": 0}), 97)
    assert (loss.item(), covered.tolist()) == (0.0, [False, False])
    far = make_batch([make_question([0], [1])], {"what of [topic]": 0})  # a gold of vanishing probability
    assert loss_sum(candidates([[0.0, -1e6, 1e6]]), far, 97)[0].item() == pytest.approx(2e6)
    loss.backward()
    assert found.class_score.grad is not None
    assert not found.class_score.grad.any()


@pytest.mark.parametrize("num_entities", [7, 100_000_000])  # with a bitmap of all entities, and without
def test_golds_far_beyond_a_bitmap_are_found_as_well(num_entities: int) -> None:
    entity = np.array([num_entities - 1, 5, 0, num_entities - 1])
    found = Exploration(np.array([0, 0, 1, 63]), entity, np.arange(4), torch.zeros(4))
    golds = [make_question([0], [num_entities - 1] if at == 63 else [5], masked="0") for at in range(64)]
    assert gold_mask(found, make_batch(golds, {"0": 0}), num_entities).tolist() == [False, True, False, True]
