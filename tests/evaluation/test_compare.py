"""Intervals, paired tests, and what is called better, worse or a tie, over all questions and in every bucket."""

from __future__ import annotations

import random
import tracemalloc
from itertools import product
from pathlib import Path
from statistics import fmean, quantiles

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from kgqa_core.evaluation import metrics
from kgqa_core.evaluation.compare import FLIPS, PairRow, compare_runs, holm, judge, mcnemar, randomisation_test
from kgqa_core.evaluation.metrics import (
    INTERVAL_METRICS,
    bootstrap_bounds,
    interval_figures,
    resampled_means,
    score_predictions,
)
from kgqa_core.evaluation.predictions import Source
from kgqa_core.evaluation.runs import Asked, EvaluatedRun
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
    monkeypatch.setattr(metrics, "COUNT_COST", cost)
    values = np.random.default_rng(0).normal(size=(31, 2))
    whole = bootstrap_bounds(values, resamples=100)
    monkeypatch.setattr(metrics, "CELLS_AT_ONCE", 31 * 7)
    assert np.array_equal(bootstrap_bounds(values, resamples=100), whole)


def test_drawing_questions_and_drawing_their_counts_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(2)
    values = np.stack([chance.choice([0.0, 100.0], 211), chance.choice([0.0, 40.0, 100.0], 211)], axis=1)
    found = []
    for cost in (0, 1_000):
        monkeypatch.setattr(metrics, "COUNT_COST", cost)
        found.append(bootstrap_bounds(values, resamples=20_000))
    assert found[0] == pytest.approx(found[1], abs=0.6)
    assert not np.array_equal(*found)


def test_bounds_stand_beside_their_figures_over_all_questions_or_some() -> None:
    questions = [Question(str(n), "", "", (0,), (1,), "test", hops=1 + n % 2) for n in range(40)]
    # Every fourth question is answered right: half of those of one hop.
    replies = [Prediction(str(n), (1 + n % 4,), (1.0,), (1 + n % 4,)) for n in range(40)]
    scores = score_predictions(questions, replies)
    figures = interval_figures(scores.values)
    assert list(figures) == [f"{metric}.{end}" for metric in INTERVAL_METRICS for end in ("low", "high")]
    assert figures["hits1.low"] < 25 < figures["hits1.high"]
    groups = scores.hop_groups()
    assert bootstrap_bounds(np.empty((0, 3))).tolist() == [[0, 0, 0], [0, 0, 0]]
    one = interval_figures(scores.values, groups["1"])
    assert one["f1.low"] < 50 < one["f1.high"]
    assert set(interval_figures(scores.values, groups["2"]).values()) == {0.0}


@given(st.integers(0, 400), st.integers(0, 400))
@example(0, 5000)
def test_mcnemar_is_the_exact_binomial_test(only_first: int, only_second: int) -> None:
    num = only_first + only_second
    expected = binomtest(only_first, num).pvalue if num else 1.0
    assert mcnemar(only_first, only_second) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def every_sign(differences: list[float]) -> float:
    """Return the share of all sign patterns whose sum is as far from 0 as the observed one."""
    observed = abs(sum(differences)) - 1e-9
    sums = [abs(sum(map(float.__mul__, differences, signs))) for signs in product((-1.0, 1.0), repeat=len(differences))]
    return sum(one >= observed for one in sums) / len(sums)


@given(st.lists(st.sampled_from([-100.0, -60.0, -20 / 3, 0.0, 20 / 3, 20.0, 100.0]), min_size=1, max_size=9))
def test_random_signs_come_to_what_all_signs_come_to(differences: list[float]) -> None:
    assert randomisation_test(np.array(differences)) == pytest.approx(every_sign(differences), abs=0.025)


@pytest.mark.parametrize("shift", [0.0, 2.0, 4.0])
def test_drawing_how_many_signs_of_a_size_are_kept_comes_to_drawing_signs(
    shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = np.random.default_rng(7).choice([-100.0, -100 / 3, 20.0, 50.0, 100.0], size=997) + shift
    fast = randomisation_test(sizes)
    monkeypatch.setattr(metrics, "COUNT_COST", len(sizes))  # no size is frequent enough
    assert randomisation_test(sizes) == pytest.approx(fast, abs=0.02)


def test_memory_of_drawn_signs_is_bounded_and_that_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "COUNT_COST", 0)
    differences = np.random.default_rng(0).normal(0.1, size=499)
    p = randomisation_test(differences)
    monkeypatch.setattr(metrics, "CELLS_AT_ONCE", 499 * 7)
    tracemalloc.start()
    assert randomisation_test(differences) == p
    assert tracemalloc.get_traced_memory()[1] < 2**20  # bytes; all draws at once are 80 times as many
    tracemalloc.stop()


def test_no_difference_is_no_evidence_and_a_large_one_has_the_smallest_p_there_is() -> None:
    assert randomisation_test(np.zeros(5)) == randomisation_test(np.empty(0)) == 1.0
    assert randomisation_test(np.full(100, 3.0)) == 1 / (FLIPS + 1)


P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=7)


@given(P_VALUES, st.floats(0.001, 0.5))
def test_holm_rejects_what_stepping_down_rejects(p_values: list[float], alpha: float) -> None:
    rejected: set[int] = set()
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[place] * (len(p_values) - rank) > alpha:
            break
        rejected.add(place)
    assert {place for place, p in enumerate(holm(p_values)) if p <= alpha} == rejected


NUM = 120


def make_run(name: str, right: set[int], *, num: int = NUM, hops: int | None = 0, tied: int = 0) -> EvaluatedRun:
    """A run that is right on the questions ``right``; question n has n % 7 + 1 answers, and n % 4 + 1 hops.

    ``hops`` other than 0 are those of all questions. The first ``tied`` questions are answered by a tie of a gold with
    a wrong candidate, of which the gold has the smaller id.
    """
    questions = [
        Question(f"q{n:03}", "", "", (0,), tuple(range(1, n % 7 + 2)), "test", hops=n % 4 + 1 if hops == 0 else hops)
        for n in range(num)
    ]
    replies = [Prediction(one.id, (1, 99), (0.5, 0.5), (1, 99)) for one in questions[:tied]]
    for n, one in enumerate(questions[tied:], tied):
        replies.append(Prediction(one.id, (1,), (1.0,), one.answers) if n in right else Prediction(one.id, (), (), ()))
    asked = {one.id: Asked(one.text, (), frozenset(one.answers), None, None) for one in questions}
    scores = score_predictions(questions, replies)
    return EvaluatedRun(name, Path(name), Source("graph", name), asked, scores, scores.values["hits1"] > 0)


def overall(*runs: EvaluatedRun) -> PairRow:
    (row,) = [row for row in compare_runs(runs) if row.by == "all"]
    return row


def verdicts(row: PairRow) -> set[str]:
    return {found.verdict for found in row.metrics.values()}


def test_a_clear_lead_is_better_and_seen_from_the_other_side_worse() -> None:
    strong, weak = make_run("strong", set(range(100))), make_run("weak", set(range(60)))
    row = overall(strong, weak)
    assert (row.first, row.second, row.by, row.bucket, row.n) == ("strong", "weak", "all", "all", NUM)
    assert verdicts(row) == {"better"}
    hits = row.metrics["hits1"]
    assert hits.difference == pytest.approx(100 * 40 / NUM)
    assert (hits.first, hits.second) == pytest.approx((100 * 100 / NUM, 50))
    assert (hits.only_first, hits.only_second) == (40, 0)
    mirrored = overall(weak, strong)
    assert verdicts(mirrored) == {"worse"}
    for name, found in mirrored.metrics.items():
        assert found.difference == -row.metrics[name].difference
        assert found.p == row.metrics[name].p
        assert (found.low, found.high) == pytest.approx((-row.metrics[name].high, -row.metrics[name].low), abs=1.5)


def test_five_questions_that_all_went_one_way_are_still_a_tie() -> None:
    row = overall(make_run("one", set(range(65))), make_run("other", set(range(60))))
    hits = row.metrics["hits1"]
    assert (hits.low > 0, hits.p) == (True, 2 / 2**5)  # the interval alone would call it
    assert verdicts(row) == {"tie"}


def test_a_run_against_itself_is_a_tie_with_nothing_between() -> None:
    one = make_run("one", set(range(50)))
    for row in compare_runs([one, one]):
        for found in row.metrics.values():
            assert (found.difference, found.low, found.high, found.p, found.verdict) == (0, 0, 0, 1, "tie")


def test_luck_with_entity_ids_among_ties_makes_nothing_better() -> None:
    """The pick is right on every tie, the figure counts half: the pick alone would be called better."""
    tied = make_run("tied", set(), tied=100)
    half = make_run("half", set(range(0, 100, 2)))
    hits = overall(tied, half).metrics["hits1"]
    assert hits.difference == 0
    assert hits.p < 1e-6
    assert hits.verdict == "tie"


@settings(max_examples=40)
@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_figures_and_p_are_those_of_plain_counting(one: set[int], other: set[int]) -> None:
    runs = make_run("one", one, num=31), make_run("other", other, num=31)
    hits = overall(*runs).metrics["hits1"]
    only_one, only_other = len(one - other), len(other - one)
    assert hits.difference == pytest.approx(100 * (len(one) - len(other)) / 31, abs=1e-5)
    either = only_one + only_other
    assert hits.p == pytest.approx(binomtest(only_one, either).pvalue if either else 1.0)
    assert hits.p_holm == hits.p
    assert hits.low - 1e-5 <= hits.difference <= hits.high + 1e-5


def test_several_runs_are_compared_pair_by_pair_and_pay_for_it() -> None:
    runs = [make_run("a", set(range(68))), make_run("b", set(range(60))), make_run("c", set(range(62)))]
    rows = [row for row in compare_runs(runs) if row.by == "all"]
    assert [(row.first, row.second) for row in rows] == [("a", "b"), ("a", "c"), ("b", "c")]
    hits = [row.metrics["hits1"] for row in rows]
    assert [found.p for found in hits] == [2 / 2**8, 2 / 2**6, 2 / 2**2]
    assert [found.p_holm for found in hits] == pytest.approx([3 * 2 / 2**8, 2 * 2 / 2**6, 2 / 2**2])
    assert [found.verdict for found in hits] == ["better", "tie", "tie"]  # alone, the second would be better
    assert overall(runs[0], runs[2]).metrics["hits1"].verdict == "better"


def test_every_bucket_has_its_own_comparison_and_they_share_out_the_questions() -> None:
    rows = compare_runs([make_run("one", set(range(0, 100, 2))), make_run("other", set())])
    assert [(row.by, row.bucket) for row in rows] == [
        ("all", "all"),
        *(("hops", bucket) for bucket in ("1", "2", ">=3")),
        *(("answers", bucket) for bucket in ("1", "2-4", "5-9")),
    ]
    for by in ("hops", "answers"):
        parts = [row for row in rows if row.by == by]
        assert sum(row.n for row in parts) == NUM
        for metric in INTERVAL_METRICS:
            whole = sum(row.n * row.metrics[metric].difference for row in parts) / NUM
            assert whole == pytest.approx(rows[0].metrics[metric].difference, abs=1e-5)
    by_hops = {row.bucket: row.metrics["hits1"].verdict for row in rows if row.by == "hops"}
    assert by_hops == {"1": "better", "2": "tie", ">=3": "better"}  # even questions have an odd number of hops


def test_hops_that_only_one_run_knows_are_believed() -> None:
    rows = compare_runs([make_run("one", {1}, hops=None), make_run("other", {2})])
    assert [row.bucket for row in rows if row.by == "hops"] == ["1", "2", ">=3"]
    rows = compare_runs([make_run("one", {1}, hops=None), make_run("other", {2}, hops=None)])
    assert not [row for row in rows if row.by == "hops"]  # and one bucket needs no breakdown


def test_a_verdict_needs_test_and_interval() -> None:
    found = [
        judge(*one) for one in ((0.01, 0.5, 2.0), (0.01, -2.0, -0.5), (0.05, 0.5, 2.0), (0.01, 0, 2), (0.01, -2, 0))
    ]
    assert found == ["better", "worse", "tie", "tie", "tie"]
