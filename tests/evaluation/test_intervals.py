"""Bootstrap intervals: against a loop that really draws questions, and against the binomial distribution."""

import random
from statistics import fmean, quantiles

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from kgqa_core.evaluation import intervals
from kgqa_core.evaluation.intervals import INTERVAL_METRICS, bootstrap_bounds, interval_figures, resampled_means
from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.types import Prediction, Question

PERCENT = st.sampled_from([0.0, 20.0, 100 / 3, 50.0, 100.0])


def draw_questions(values: list[float], *, resamples: int) -> tuple[float, float]:
    """Bootstrap one question at a time; returns the 2.5th and the 97.5th percentile of the means."""
    chance = random.Random(7)
    means = [fmean(chance.choices(values, k=len(values))) for _ in range(resamples)]
    cuts = quantiles(means, n=40, method="inclusive")
    return cuts[0], cuts[-1]


@pytest.mark.parametrize("values", [[0.0] * 7 + [100.0] * 23, [0.0, 100 / 3, 50.0, 50.0, 100.0] * 11, [10.0, 90.0]])
def test_bounds_are_those_of_drawing_one_question_at_a_time(values: list[float]) -> None:
    slow = draw_questions(values, resamples=20_000)
    fast = bootstrap_bounds(np.array([values]).T, resamples=20_000)[:, 0]
    assert fast == pytest.approx(slow, abs=1.5)  # 20,000 draws place a percentile about this well


@pytest.mark.parametrize(("num", "right"), [(41, 37), (199, 61), (1009, 1000), (5003, 2500)])
def test_bounds_of_yes_or_no_figures_are_quantiles_of_the_binomial(num: int, right: int) -> None:
    values = np.repeat([[100.0], [0.0]], [right, num - right], axis=0)
    low, high = np.round(bootstrap_bounds(values)[:, 0] * num / 100, 3)
    assert binom.ppf(0.015, num, right / num) <= low <= binom.ppf(0.035, num, right / num)
    assert binom.ppf(0.965, num, right / num) <= high <= binom.ppf(0.985, num, right / num)


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    chance = np.random.default_rng(3)
    samples = [100.0 * chance.binomial(1, 0.7, size=(211, 1)) for _ in range(300)]
    bounds = [bootstrap_bounds(sample, resamples=400, seed=seed)[:, 0] for seed, sample in enumerate(samples)]
    assert 0.92 < fmean(low <= 70 <= high for low, high in bounds) < 0.98


@given(st.lists(st.tuples(PERCENT, PERCENT, PERCENT), min_size=1, max_size=23), st.randoms())
def test_bounds_hold_the_mean_whatever_the_order_of_the_questions(
    rows: list[tuple[float, ...]], shuffler: random.Random
) -> None:
    values = np.array(rows)
    low, high = bootstrap_bounds(values, resamples=200)
    assert (values.min(axis=0) - 1e-6 <= low).all() and (high <= values.max(axis=0) + 1e-6).all()
    assert (low <= values.mean(axis=0) + 1e-6).all() and (values.mean(axis=0) - 1e-6 <= high).all()
    shuffler.shuffle(rows)
    assert np.array_equal(bootstrap_bounds(np.array(rows), resamples=200), np.stack([low, high]))


def test_columns_see_the_same_resamples() -> None:
    values = np.array([[0.0, 100.0], [100.0, 0.0], [100.0, 0.0]])
    means = resampled_means(values, resamples=50)
    assert means.sum(axis=1) == pytest.approx(100)


@pytest.mark.parametrize("cost", [0, 1_000])
def test_memory_is_bounded_and_that_changes_nothing(cost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "COUNT_COST", cost)
    values = np.random.default_rng(0).normal(size=(31, 2))
    whole = bootstrap_bounds(values, resamples=100)
    monkeypatch.setattr(intervals, "CELLS_AT_ONCE", 31 * 7)
    assert np.array_equal(bootstrap_bounds(values, resamples=100), whole)


def test_drawing_questions_and_drawing_their_counts_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(2)
    values = np.stack([chance.choice([0.0, 100.0], 211), chance.choice([0.0, 40.0, 100.0], 211)], axis=1)
    found = []
    for cost in (0, 1_000):
        monkeypatch.setattr(intervals, "COUNT_COST", cost)
        found.append(bootstrap_bounds(values, resamples=20_000))
    assert found[0] == pytest.approx(found[1], abs=0.6)
    assert not np.array_equal(*found)


def test_no_questions_have_an_interval_of_zeros() -> None:
    assert bootstrap_bounds(np.empty((0, 3))).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_bounds_stand_beside_their_figures_over_all_questions_or_some() -> None:
    questions = [Question(str(n), "", "", (0,), (1,), "test", hops=1 + n % 2) for n in range(40)]
    right = [Prediction(str(n), (1,), (1.0,), (1,)) for n in range(0, 40, 4)]  # half of the questions of one hop
    scores = score_predictions(questions, right)
    figures = interval_figures(scores.values)
    assert list(figures) == [f"{metric}.{end}" for metric in INTERVAL_METRICS for end in ("low", "high")]
    assert figures["hits1.low"] < 25 < figures["hits1.high"]
    groups = scores.hop_groups()
    one = interval_figures(scores.values, groups["1"])
    assert one["f1.low"] < 50 < one["f1.high"]
    assert set(interval_figures(scores.values, groups["2"]).values()) == {0.0}
