"""Paired comparison: what is called better, worse or a tie, over all questions and in every bucket."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from kgqa_core.errors import InputError
from kgqa_core.evaluation.compare import PairRow, compare_in_scope, compare_runs, comparison_scopes, judge
from kgqa_core.evaluation.intervals import INTERVAL_METRICS
from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.evaluation.predictions import Source
from kgqa_core.evaluation.runs import Asked, EvaluatedRun
from kgqa_core.types import Prediction, Question

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
    replies = [Prediction(questions[n].id, (1,), (1.0,), questions[n].answers) for n in sorted(right) if n >= tied]
    replies += [Prediction(questions[n].id, (1, 99), (0.5, 0.5), (1, 99)) for n in range(tied)]
    asked = {one.id: Asked(one.text, (), frozenset(one.answers), None, None) for one in questions}
    scores = score_predictions(questions, replies)
    return EvaluatedRun(name, Path(name), Source("graph", name), asked, scores, scores.values["hits1"] > 0)


def overall(*runs: EvaluatedRun) -> PairRow:
    (row,) = compare_in_scope(runs, next(comparison_scopes(runs)))
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


def test_a_lead_within_noise_is_a_tie() -> None:
    row = overall(make_run("one", set(range(63))), make_run("other", set(range(10, 70))))
    assert row.metrics["hits1"].difference > 0
    assert verdicts(row) == {"tie"}


def test_five_questions_that_all_went_one_way_are_still_a_tie() -> None:
    """The interval alone would call it: hardly any resample misses all five."""
    row = overall(make_run("one", set(range(65))), make_run("other", set(range(60))))
    assert row.metrics["hits1"].low > 0
    assert row.metrics["hits1"].p == 2 / 2**5
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


def test_the_interval_is_that_of_drawing_questions_with_both_their_answers() -> None:
    one, other = make_run("one", set(range(0, 90))), make_run("other", set(range(30, 100)))
    found = overall(one, other).metrics["f1"]
    chance = random.Random(5)
    pairs = list(zip(one.scores.values["f1"], other.scores.values["f1"], strict=True))
    draws = [fmean(a - b for a, b in chance.choices(pairs, k=NUM)) for _ in range(4000)]
    assert (found.low, found.high) == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=1.5)


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


def test_one_bucket_needs_no_breakdown() -> None:
    rows = compare_runs([make_run("one", {1}, hops=2), make_run("other", {2}, hops=2)])
    assert {row.by for row in rows} == {"all", "answers"}


def test_hops_that_only_one_run_knows_are_believed() -> None:
    rows = compare_runs([make_run("one", {1}, hops=None), make_run("other", {2})])
    assert [row.bucket for row in rows if row.by == "hops"] == ["1", "2", ">=3"]
    rows = compare_runs([make_run("one", {1}, hops=None), make_run("other", {2}, hops=None)])
    assert not [row for row in rows if row.by == "hops"]


def test_runs_on_another_graph_are_refused() -> None:
    one, other = make_run("one", {1}), make_run("other", {1})
    with pytest.raises(InputError, match="graphs differ"):
        compare_runs([one, replace(other, source=Source("another", "other"))])


def test_rows_are_plain_enough_for_json() -> None:
    rows = compare_runs([make_run("one", {1}), make_run("other", {2})])
    assert json.loads(json.dumps([asdict(row) for row in rows]))[0]["metrics"]["f1"]["verdict"] == "tie"


@pytest.mark.parametrize(
    ("p", "low", "high", "verdict"),
    [
        (0.01, 0.5, 2.0, "better"),
        (0.01, -2.0, -0.5, "worse"),
        (0.05, 0.5, 2.0, "tie"),
        (0.01, 0.0, 2.0, "tie"),
        (0.01, -2.0, 0.0, "tie"),
    ],
)
def test_a_verdict_needs_test_and_interval(p: float, low: float, high: float, verdict: str) -> None:
    assert judge(p, low, high) == verdict


def test_chance_alone_is_hardly_ever_called_a_difference() -> None:
    chance = random.Random(1)
    called = 0
    for _ in range(100):
        one, other = ({n for n in range(NUM) if chance.random() < 0.7} for _ in range(2))
        called += overall(make_run("one", one), make_run("other", other)).metrics["hits1"].verdict != "tie"
    assert called <= 8
