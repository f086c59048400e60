"""Paired tests: against scipy, against every sign there is, and Holm's method step by step."""

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import binomtest

from kgqa_core.evaluation import intervals as significance
from kgqa_core.evaluation.intervals import holm, mcnemar, randomisation_test


@given(st.integers(0, 400), st.integers(0, 400))
@example(0, 5000)
def test_mcnemar_is_the_exact_binomial_test(only_first: int, only_second: int) -> None:
    num = only_first + only_second
    expected = binomtest(only_first, num).pvalue if num else 1.0
    assert mcnemar(only_first, only_second) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_mcnemar_by_hand() -> None:
    assert mcnemar(0, 0) == mcnemar(1, 0) == mcnemar(3, 3) == 1.0
    assert mcnemar(5, 0) == 2 / 2**5
    assert mcnemar(1, 5) == 2 * (1 + 6) / 2**6


def every_sign(differences: list[float]) -> float:
    """Return the share of all sign patterns whose sum is as far from 0 as the observed one."""
    observed = abs(sum(differences)) - 1e-9
    sums = [abs(sum(map(float.__mul__, differences, signs))) for signs in product((-1.0, 1.0), repeat=len(differences))]
    return sum(one >= observed for one in sums) / len(sums)


@given(st.lists(st.sampled_from([-100.0, -60.0, -20 / 3, 0.0, 20 / 3, 20.0, 100.0]), min_size=1, max_size=9))
def test_random_signs_come_to_what_all_signs_come_to(differences: list[float]) -> None:
    assert randomisation_test(np.array(differences)) == pytest.approx(every_sign(differences), abs=0.025)


@pytest.mark.parametrize(("only_first", "only_second"), [(9, 2), (30, 14), (500, 430)])
def test_on_yes_or_no_figures_it_is_mcnemars_test(only_first: int, only_second: int) -> None:
    differences = np.repeat([100.0, -100.0, 0.0], [only_first, only_second, 77])
    assert randomisation_test(differences) == pytest.approx(mcnemar(only_first, only_second), abs=0.01)


@pytest.mark.parametrize("shift", [0.0, 2.0, 4.0])
def test_drawing_how_many_signs_of_a_size_are_kept_comes_to_drawing_signs(
    shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = np.random.default_rng(7).choice([-100.0, -100 / 3, 20.0, 50.0, 100.0], size=997) + shift
    fast = randomisation_test(sizes)
    monkeypatch.setattr(significance, "COUNT_COST", len(sizes))  # no size is frequent enough
    assert randomisation_test(sizes) == pytest.approx(fast, abs=0.02)


def test_no_difference_is_no_evidence_and_a_large_one_has_the_smallest_p_there_is() -> None:
    assert randomisation_test(np.zeros(5)) == randomisation_test(np.empty(0)) == 1.0
    assert randomisation_test(np.full(100, 3.0), flips=999) == 1 / 1000


P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=7)


@given(P_VALUES, st.floats(0.001, 0.5))
def test_holm_rejects_what_stepping_down_rejects(p_values: list[float], alpha: float) -> None:
    rejected: set[int] = set()
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[place] * (len(p_values) - rank) > alpha:
            break
        rejected.add(place)
    assert {place for place, p in enumerate(holm(p_values)) if p <= alpha} == rejected


@given(P_VALUES)
def test_holm_lies_between_no_correction_and_bonferronis(p_values: list[float]) -> None:
    for p, corrected in zip(p_values, holm(p_values), strict=True):
        assert p <= corrected <= min(1.0, len(p_values) * p)


def test_one_test_needs_no_correction() -> None:
    assert holm([0.03]) == [0.03]
    assert holm([]) == []
