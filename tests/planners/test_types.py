"""Weights of plans and scores of paths sum to 1 over a question."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.instructions.plan import score_paths, weigh_plans


def test_plans_weigh_what_the_beam_gave_them():
    assert weigh_plans([math.log(0.3), math.log(0.1)]) == pytest.approx([0.75, 0.25])


def test_tiny_probabilities_are_weighed_too():
    assert weigh_plans([-2000.0, -2000.0 + math.log(3)]) == pytest.approx([0.25, 0.75])


def test_plans_without_any_probability_weigh_alike():
    assert weigh_plans([-math.inf, -math.inf]) == [0.5, 0.5]
    assert weigh_plans([]) == []


def test_a_path_scores_its_plan_times_its_entities():
    assert score_paths([0.6, 0.4], [[0.5, 0.5], []]) == pytest.approx([0.15 / 0.55, 0.4 / 0.55])


def test_entities_that_all_score_nothing_leave_the_weights_of_the_plans():
    assert score_paths([0.6, 0.2], [[0.0], [1.0, 0.0]]) == pytest.approx([0.75, 0.25])
    assert score_paths([], []) == []


@given(st.lists(st.tuples(st.floats(-50, 0), st.lists(st.floats(0, 1), max_size=3)), min_size=1, max_size=7))
def test_both_sum_to_one(paths: list[tuple[float, list[float]]]):
    weights = weigh_plans([log_prob for log_prob, _ in paths])
    scores = score_paths(weights, [entities for _, entities in paths])
    assert sum(weights) == pytest.approx(1) and sum(scores) == pytest.approx(1)
