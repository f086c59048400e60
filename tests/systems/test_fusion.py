"""Fusing explorer and planner: which answer set is taken, at which weight, and whether a model's word is worth it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.evaluation.metrics import check_ranking, score_predictions
from kgqa_core.systems.ours import (
    WEIGHTS,
    DevQuestion,
    Fusion,
    Option,
    agreement,
    choose_fusion,
    disagree,
    fuse,
    judge,
    options_of,
)
from kgqa_core.types import Prediction, Question

ENTITIES = st.integers(0, 8)


def asked(*golds: int, id: str = "q") -> Question:
    return Question(id, "what?", "what?", (99,), golds, "dev")


def explorer(candidates: Sequence[int], scores: Sequence[float], answers: Sequence[int], id: str = "q") -> Prediction:
    return Prediction(id, tuple(candidates), tuple(scores), tuple(answers))


@st.composite
def explored(draw: st.DrawFn) -> Prediction:
    """Any ranking, and as answers the best few of it, as a threshold takes them."""
    candidates = draw(st.lists(ENTITIES, unique=True, max_size=7))
    shares = draw(st.lists(st.sampled_from((1.0, 0.5, 0.25, 0.1)), min_size=len(candidates), max_size=len(candidates)))
    num = draw(st.integers(1, len(candidates))) if candidates else 0
    return explorer(candidates, sorted(shares, reverse=True), candidates[:num])


REACHED = st.lists(st.lists(ENTITIES, unique=True, max_size=5), max_size=4)


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[list[int]], list[float]]:
    """What each plan reaches, and the plans' probabilities, best first."""
    reached = draw(REACHED)
    raw = sorted(draw(st.lists(st.integers(1, 9), min_size=len(reached), max_size=len(reached))), reverse=True)
    return reached, [one / sum(raw) for one in raw]


def fused(found: Prediction, planned: tuple[list[list[int]], list[float]], weight: float) -> Prediction:
    reached, weights = planned
    return fuse(asked(1, 2), found, options_of(found, reached), weights, Fusion(weight))[0]


# Options


def test_options_are_the_explorers_set_and_what_plans_reach_equal_sets_once() -> None:
    found = explorer((3, 1, 2), (0.6, 0.3, 0.1), (3, 1))
    options = options_of(found, [(2,), (1, 3), (), (2,)])
    assert options == (Option((3, 1), (1,), explored=True), Option((2,), (0, 3)))
    assert options[1].probability([0.5, 0.2, 0.2, 0.1]) == pytest.approx(0.6)


def test_they_disagree_where_the_first_plan_that_reaches_anything_reaches_something_else() -> None:
    found = explorer((1, 2), (0.6, 0.4), (1,))
    assert not disagree(options_of(found, [(1,), (2,)]))
    assert disagree(options_of(found, [(2,), (1,)]))
    assert not disagree(options_of(found, [(), (1,)]))
    assert disagree(options_of(found, [(1, 2)]))
    assert not disagree(options_of(found, []))  # a planner without a plan says nothing
    assert disagree(options_of(explorer((), (), ()), [(1,)]))  # the explorer found nothing


@pytest.mark.parametrize(
    ("first", "second", "f1"), [((1, 2), (2, 1), 1), ((1,), (1, 2, 3), 0.5), ((1,), (2,), 0), ((), (1,), 0)]
)
def test_agreement_is_the_f1_of_two_sets(first: tuple[int, ...], second: tuple[int, ...], f1: float) -> None:
    assert agreement(first, second) == agreement(second, first) == f1


# Weights


@given(found=explored(), planned=plans())
def test_weight_0_is_the_explorer_alone(found: Prediction, planned: tuple[list[list[int]], list[float]]) -> None:
    """Where it answers anything: what it answers is kept, and so is the order of all candidates."""
    if found.answers:
        assert set(fused(found, planned, 0.0).answers) == set(found.answers)
        assert set(fused(found, planned, 0.0).candidates) == set(found.candidates)


@given(found=explored(), planned=plans())
def test_weight_1_is_the_planner_alone(found: Prediction, planned: tuple[list[list[int]], list[float]]) -> None:
    """What most of the plans' probability reaches, whatever the explorer answers."""
    reached, weights = planned
    mass: dict[frozenset[int], float] = {}
    for entities, weight in zip(reached, weights, strict=True):
        if entities:
            mass[frozenset(entities)] = mass.get(frozenset(entities), 0.0) + weight
    answers = fused(found, planned, 1.0).answers
    if mass:
        assert mass[frozenset(answers)] == pytest.approx(max(mass.values()))
    else:
        assert answers == found.answers


def test_a_weight_between_weighs_one_against_the_other() -> None:
    """Explorer: {1}; plans {1, 2} of .7 and {3} of .3. Scores at weight w: 1-w, 2/3 (1-w) + .7 w, .3 w."""
    found = explorer((1, 2), (0.6, 0.4), (1,))
    options = options_of(found, [(1, 2), (3,)])
    for weight, answers in ((0.0, {1}), (0.3, {1}), (0.4, {1, 2}), (1.0, {1, 2})):
        chosen = Fusion(weight).choose(found, options, [0.7, 0.3])
        assert set(chosen.entities) == answers
    assert Fusion(1.0).choose(found, options, [0.2, 0.8]).entities == (3,)


# Predictions


@given(found=explored(), planned=plans(), weight=st.sampled_from(WEIGHTS))
def test_every_fused_prediction_is_a_ranking_with_the_answers_first(
    found: Prediction, planned: tuple[list[list[int]], list[float]], weight: float
) -> None:
    prediction = fused(found, planned, weight)
    check_ranking(prediction)
    num = len(prediction.answers)
    assert set(prediction.candidates[:num]) == set(prediction.answers)
    assert set(prediction.candidates) == set(found.candidates) | set(prediction.answers)
    if found.answers and 0 < num < len(prediction.candidates):  # no answer ties with what was not taken
        assert prediction.scores[num - 1] > prediction.scores[num]


def test_an_answer_that_the_explorer_never_saw_stands_before_all_that_was_not_taken() -> None:
    """A tie with the explorer's best would be a coin's throw in Hits@1."""
    found = explorer((1, 2), (0.9, 0.1), (1,))
    prediction = fused(found, ([[5]], [1.0]), 1.0)
    assert prediction.candidates == (5, 1, 2)
    figures = score_predictions([asked(5)], [prediction]).summary()
    assert (figures["hits1"], figures["mean_top_tie"]) == (100, 1)


def test_candidates_that_tie_for_the_explorer_tie_still() -> None:
    found = explorer((1, 2, 3), (0.4, 0.4, 0.2), (1, 2))
    prediction = fused(found, ([[1, 2, 3]], [1.0]), 1.0)
    assert prediction.scores[0] == prediction.scores[1] > prediction.scores[2]


def test_a_gold_among_candidates_or_answers_is_covered_and_a_claim_is_judged() -> None:
    found = explorer((1,), (1.0,), (1,))
    options = options_of(found, [(5,)])
    covered = fuse(asked(5), found, options, [1.0], Fusion(1.0))[0]
    assert (covered.covered, covered.verdict) == (True, None)
    assert not fuse(asked(6), found, options, [1.0], Fusion(1.0))[0].covered
    claimed = Question("q", "is it 5?", "is it?", (99,), (5,), "dev", claim=5, verdict=True)
    assert fuse(claimed, found, options, [1.0], Fusion(1.0))[0].verdict is True
    assert fuse(claimed, found, options, [1.0], Fusion(0.0))[0].verdict is False


def test_nothing_to_fuse_leaves_what_the_explorer_found() -> None:
    nothing = Prediction("q", (), (), (), abstained=True)
    assert fuse(asked(1), nothing, (), [], Fusion(0.5)) == (nothing, None)


# Chosen on dev


def dev(*cases: tuple[int, int, int, tuple[float, float] | None]) -> list[DevQuestion]:
    """Return a dev question per (gold, explorer's answer, other plan's answer, the model's weights of the plans).

    The first plan reaches the other answer, of .6; the second what the explorer answers.
    """
    questions = []
    for number, (gold, explorers, planners, lm) in enumerate(cases):
        found = explorer((explorers,), (1.0,), (explorers,), f"q{number}")
        options = options_of(found, [(planners,), (explorers,)])
        questions.append(DevQuestion(asked(gold, id=f"q{number}"), found, options, (0.6, 0.4), lm))
    return questions


RIGHT, WRONG = 1, 2


def test_the_explorer_is_kept_where_it_is_right() -> None:
    chosen, tried = choose_fusion(dev((RIGHT, RIGHT, WRONG, None)))
    assert chosen == Fusion(0.0)  # of equals the first
    assert len(tried) == len(WEIGHTS)
    assert dict(tried)[chosen].objective == 100
    assert dict(tried)[Fusion(1.0)].objective == 0


def test_the_planner_is_believed_where_it_is_right() -> None:
    chosen, tried = choose_fusion(dev((RIGHT, WRONG, RIGHT, None), (RIGHT, WRONG, RIGHT, None)))
    assert chosen.weight > 0.5
    assert dict(tried)[chosen].objective == 100


def test_the_models_word_decides_only_where_it_is_worth_its_calls() -> None:
    """Explorer right, then planner right: only the model tells them apart."""
    both = dev((RIGHT, RIGHT, WRONG, (0.1, 0.9)), (RIGHT, WRONG, RIGHT, (0.9, 0.1)))
    chosen, tried = choose_fusion(both)
    assert chosen.decided_by == "lm"
    assert dict(tried)[chosen].asked == 1.0
    assert max(point.objective for fusion, point in tried if fusion.decided_by == "planner") == 50
    useless = dev((RIGHT, RIGHT, WRONG, (0.1, 0.9)), (RIGHT, RIGHT, WRONG, (0.1, 0.9)))
    chosen, tried = choose_fusion(useless)
    assert chosen.decided_by == "planner"
    assert dict(tried)[chosen].asked == 0.0


def test_only_questions_that_were_put_to_the_model_cost_a_call() -> None:
    _, tried = choose_fusion(dev((RIGHT, RIGHT, WRONG, (0.1, 0.9)), (RIGHT, RIGHT, RIGHT, None)))
    assert dict(tried)[Fusion(0.5, "lm")].asked == 0.5


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.integers(1, 3),
            st.integers(1, 3),
            st.one_of(st.none(), st.sampled_from(((0.9, 0.1), (0.2, 0.8)))),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_no_other_way_is_better_by_more_than_its_calls_are_worth(
    cases: list[tuple[int, int, int, tuple[float, float] | None]],
) -> None:
    questions = dev(*cases)
    chosen, tried = choose_fusion(questions)
    best = max(point.objective for _, point in tried)
    assert dict(tried)[chosen].objective >= best - 0.01
    alone = judge([one.question for one in questions], [one.explored for one in questions])
    assert dict(tried)[chosen].objective >= alone.objective  # weight 0 is among those tried
