"""Which answers to keep back: the curve and its area against slow oracles, thresholds from dev, and calibration."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.trust import calibrate, risk_coverage
from kgqa_core.evaluation.metrics import calibration_error, risk_area, trust_figures

LEVELS = st.sampled_from([0.1, 0.5, 0.9, np.nan])
ANSWERS = st.lists(st.tuples(LEVELS, st.booleans()), min_size=1, max_size=6)


def columns(answers: list[tuple[float, bool]]) -> tuple[np.ndarray, np.ndarray]:
    told, right = zip(*answers, strict=True)
    return np.array(told, dtype=float), np.array(right, dtype=float)


@given(ANSWERS)
def test_the_area_is_the_mean_over_all_orders_that_falling_confidence_allows(answers: list[tuple[float, bool]]) -> None:
    told = [(-1.0 if np.isnan(level) else level, float(right)) for level, right in answers]
    areas = []
    for order in permutations(told):
        if all(first[0] >= second[0] for first, second in pairwise(order)):
            wrong = np.cumsum([1 - right for _, right in order])
            areas.append(100 * np.mean(wrong / np.arange(1, len(order) + 1)))
    assert risk_area(*columns(answers)) == pytest.approx(np.mean(areas))


@given(ANSWERS, st.floats(0, 1))
def test_a_threshold_gives_what_counting_gives(answers: list[tuple[float, bool]], threshold: float) -> None:
    given_ = [right for level, right in answers if level >= threshold]
    coverage, risk = risk_coverage(*columns(answers)).at(threshold)
    assert coverage == pytest.approx(100 * len(given_) / len(answers))
    assert risk == pytest.approx(100 * (1 - sum(given_) / len(given_)) if given_ else 0)


@given(ANSWERS, st.floats(0, 100))
def test_the_point_chosen_covers_most_of_all_that_risk_no_more(answers: list[tuple[float, bool]], risk: float) -> None:
    curve = risk_coverage(*columns(answers))
    best = max((share for share, wrong in zip(curve.coverage, curve.risk, strict=True) if wrong <= risk), default=None)
    chosen = curve.least(risk)
    assert (None if chosen is None else curve.coverage[chosen]) == best


def test_an_answer_of_which_nobody_told_how_sure_it_is_comes_last_and_may_be_right() -> None:
    """A server may tell log-probabilities of some texts alone; all answers given, the risk is that of all."""
    told, right = np.array([0.9, np.nan, np.nan]), np.array([1.0, 1.0, 0.0])
    assert trust_figures(told, right)["aurc"] == pytest.approx(100 * (0 + (1 / 2) / 2 + 1 / 3) / 3)
    assert trust_figures(told, right)["aurc_best"] == pytest.approx(100 * (0 + 0 + 1 / 3) / 3)


def test_perfect_confidence_has_the_least_area_and_useless_one_that_of_chance() -> None:
    right = np.array([1.0, 1.0, 1.0, 0.0])
    assert risk_area(right, right) == pytest.approx(100 * (0 + 0 + 0 + 1 / 4) / 4)
    assert risk_area(np.full(4, 0.3), right) == pytest.approx(25)


def test_calibration_mends_overconfidence() -> None:
    """Answers at 0.99 and 0.9 that are right 70 and 40 times in 100 are told so, within Platt's smoothing."""
    told = np.repeat([0.99, 0.9], 1000)
    right = np.concatenate([np.arange(1000) < 700, np.arange(1000) < 400]).astype(float)
    assert calibration_error(told, right) == pytest.approx(100 * (0.29 + 0.5) / 2)
    fitted = calibrate(told, right)
    assert fitted.probability(np.array([0.99, 0.9])) == pytest.approx([0.7, 0.4], abs=0.01)
    assert calibration_error(fitted.probability(told), right) < 1


@pytest.mark.parametrize("hits", [0.0, 1.0])
def test_calibration_stays_finite_where_all_are_right_or_wrong(hits: float) -> None:
    fitted = calibrate(np.array([0.2, 0.5, 0.99, np.nan]), np.full(4, hits))
    assert abs(fitted.probability(np.array([0.5]))[0] - hits) < 0.5
    assert np.isfinite([fitted.slope, fitted.offset]).all()
