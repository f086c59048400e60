"""Strict metrics: against an oracle that really shuffles the ties, and case by case as documentation."""

from dataclasses import replace
from itertools import chain, permutations, product
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import InputError
from kgqa_core.evaluation.metrics import METRICS, expected_hit, score_predictions
from kgqa_core.types import Prediction, Question, Step

PATH = (Step(head=0, relation=0, tail=1),)


def ask(*golds: int, id: str = "q", hops: int | None = None) -> Question:
    return Question(id=id, text="", masked="", topics=(99,), answers=golds, split="test", hops=hops)


def reply(scores: dict[int, float], answers: tuple[int, ...] | None = None, *, id: str = "q") -> Prediction:
    """Return a prediction; None: all candidates are answers."""
    return Prediction(id, tuple(scores), tuple(scores.values()), tuple(scores) if answers is None else answers)


def claim(entity: int, verdict: bool, *golds: int) -> Question:
    return replace(ask(*golds), claim=entity, verdict=verdict)


def summarise(question: Question, prediction: Prediction) -> dict[str, float]:
    return score_predictions([question], [prediction]).summary()


def shuffled_hits(levels: list[int], golds: set[int], k: int) -> float:
    """Average hit@k over every order of the candidates 0.. that keeps equal levels together, best level first."""
    groups = [[entity for entity, own in enumerate(levels) if own == level] for level in sorted(set(levels))]
    orders = (list(chain(*order)) for order in product(*(list(permutations(group)) for group in groups)))
    return fmean(bool(golds & set(order[:k])) for order in orders)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6).map(sorted),
    st.sets(st.integers(0, 7), min_size=1, max_size=4),
)
def test_hits_equal_the_mean_over_all_orders_of_ties(levels: list[int], golds: set[int]) -> None:
    scores = {entity: 0.5 / (1 + level) for entity, level in enumerate(levels)}
    found = summarise(ask(*sorted(golds)), reply(scores))
    for k in (1, 3, 10):
        assert found[f"hits{k}"] == pytest.approx(100 * shuffled_hits(levels, golds, k))
    assert found["mean_top_tie"] == levels.count(levels[0])


@pytest.mark.parametrize(("tied", "golds", "places"), [(5, 2, 3), (7, 1, 7), (3, 0, 2), (11, 5, 1)])
def test_expected_hit_counts_orders(tied: int, golds: int, places: int) -> None:
    orders = [min(order[:golds], default=tied) < places for order in permutations(range(tied), golds)]
    assert expected_hit(tied, golds, places) == pytest.approx(fmean(orders))


def test_who_answers_nothing_hits_nothing_whatever_was_found_on_the_way() -> None:
    found = summarise(ask(2), replace(reply({2: 0.0, 3: 0.0}, ()), covered=True))
    assert (found["hits1"], found["hits10"], found["mean_top_tie"], found["coverage"]) == (0, 0, 0, 100)


@given(st.sets(st.integers(0, 9), max_size=6), st.sets(st.integers(0, 9), max_size=6))
def test_set_metrics_are_bounded_and_symmetric(answers: set[int], golds: set[int]) -> None:
    found = summarise(ask(*sorted(golds)), reply({}, tuple(answers)))
    mirrored = summarise(ask(*sorted(answers)), reply({}, tuple(golds)))
    assert all(0 <= found[name] <= 100 for name in METRICS)
    assert found["precision"] == mirrored["recall"]
    assert found["f1"] == mirrored["f1"]
    assert (found["em"] == 100) is bool(answers and answers == golds)


def test_set_metrics_by_hand() -> None:
    found = summarise(ask(2, 3, 5), reply({}, (3, 5, 7, 11, 13)))
    assert (found["precision"], found["recall"]) == (pytest.approx(40), pytest.approx(200 / 3))
    assert found["f1"] == pytest.approx(50)


def test_scores_within_the_tolerance_of_the_first_of_a_group_tie() -> None:
    close = {1: 0.5, 2: 0.5 * (1 - 0.9e-4), 3: 0.5 * (1 - 1.8e-4)}
    found = summarise(ask(2), reply(close))
    assert found["mean_top_tie"] == 2  # the third is close to the second, not to the first
    assert found["hits1"] == 50


@given(st.floats(0.01, 1.0), st.floats(0.999, 1.001))
def test_ties_are_the_same_before_and_after_rounding_to_32_bits(first: float, near: float) -> None:
    exact = (first, first * (1 - 1e-4 * near))
    rounded = tuple(np.float32(exact).astype(float).tolist())
    assert len({summarise(ask(2), reply({1: a, 2: b}))["hits1"] for a, b in (exact, rounded)}) == 1


def test_missing_and_empty_predictions_count_as_zero_in_the_denominator() -> None:
    questions = [ask(1, id="right"), ask(1, id="empty"), ask(1, id="missing")]
    right = replace(reply({1: 1.0}, (1,), id="right"), covered=True)
    found = score_predictions(questions, [reply({}, id="empty"), right])
    assert found.question_ids == ("right", "empty", "missing")
    assert found.values["hits1"].tolist() == [100, 0, 0]
    summary = found.summary()
    assert summary.pop("n") == 3
    assert summary.pop("mean_top_tie") == pytest.approx(1 / 3)
    assert list(summary.values()) == pytest.approx([100 / 3] * len(summary))


def test_figures_break_down_by_hops_in_order_with_unknown_last() -> None:
    questions = [ask(1, id="a", hops=10), ask(1, id="b"), ask(1, id="c", hops=2), ask(1, id="d", hops=2)]
    scores = score_predictions(questions, [reply({1: 1.0}, id="c")])
    found = {hops: scores.summary(chosen) for hops, chosen in scores.hop_groups().items()}
    assert list(found) == ["2", "10", "unknown"]
    assert [part["n"] for part in found.values()] == [2, 1, 1]
    assert [part["hits1"] for part in found.values()] == [50, 0, 0]


def test_figures_break_down_by_the_number_of_answers() -> None:
    sizes = {"a": 11, "b": 1, "c": 4, "d": 2, "e": 5}
    questions = [ask(*range(size), id=id) for id, size in sizes.items()]
    questions.append(replace(claim(0, True), id="only a claim"))
    scores = score_predictions(questions, [reply({1: 1.0}, id="c")])
    found = {bucket: scores.summary(chosen) for bucket, chosen in scores.answer_groups().items()}
    assert {bucket: part["n"] for bucket, part in found.items()} == {"0": 1, "1": 1, "2-4": 2, "5-9": 1, ">=10": 1}
    assert list(found) == ["0", "1", "2-4", "5-9", ">=10"]
    assert found["2-4"]["hits1"] == 50
    assert found["2-4"]["mean_top_tie"] == 0.5


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from([None, 1, 2, 3, 7]), st.booleans()), min_size=1))
def test_groups_share_out_the_questions_and_their_means_add_up(cases: list[tuple[int, int | None, bool]]) -> None:
    questions = [ask(*range(size), id=str(place), hops=hops) for place, (size, hops, _) in enumerate(cases)]
    replies = [reply({0: 1.0}, (0,), id=str(place)) for place, (_, _, right) in enumerate(cases) if right]
    scores = score_predictions(questions, replies)
    for groups in (scores.hop_groups(), scores.answer_groups()):
        assert (np.sum(list(groups.values()), axis=0) == 1).all()
        parts = [scores.summary(chosen) for chosen in groups.values()]
        for name in METRICS:
            mean = sum(part["n"] * part[name] for part in parts) / len(cases)
            assert mean == pytest.approx(scores.summary()[name])


def test_no_questions_give_zeros() -> None:
    assert score_predictions([], []).summary() == {"n": 0, **dict.fromkeys(METRICS, 0.0)}


@pytest.mark.parametrize(
    ("question", "prediction", "right"),
    [
        # a true claim needs the claimed entity among the answers, and a path to it
        (claim(1, True, 1), Prediction("q", (1,), (1.0,), (1,), (PATH,), verdict=True), True),
        (claim(1, True, 1), Prediction("q", (0, 1), (0.5, 0.5), (0, 1), ((), PATH), verdict=True), True),
        (claim(1, True, 1), Prediction("q", (1,), (1.0,), (1,), ((),), verdict=True), False),
        (claim(1, True, 1), Prediction("q", (0, 1), (0.5, 0.5), (0, 1), (PATH,), verdict=True), False),
        (claim(1, True, 1), Prediction("q", (1,), (1.0,), (), (PATH,), verdict=True), False),
        (claim(1, True), Prediction("q", (), (), (), verdict=True), False),
        # a false claim needs answers that show otherwise
        (claim(1, False, 2), Prediction("q", (2,), (1.0,), (2,), (PATH,), verdict=False), True),
        (claim(1, False, 2), Prediction("q", (1, 2), (0.5, 0.5), (1, 2), (PATH, PATH), verdict=False), False),
        (claim(1, False, 2), Prediction("q", (2,), (1.0,), (2,), verdict=False), False),
        (claim(1, False), Prediction("q", (), (), (), verdict=False), False),
        # and the verdict has to be right, whatever the answers
        (claim(1, False, 1), Prediction("q", (1,), (1.0,), (1,), (PATH,), verdict=True), False),
        (claim(1, True, 1), Prediction("q", (1,), (1.0,), (1,), (PATH,)), False),
    ],
)
def test_true_false_questions_need_verdict_and_evidence(
    question: Question, prediction: Prediction, right: bool
) -> None:
    found = summarise(question, prediction)
    assert {found[name] for name in METRICS if name not in {"coverage", "mean_top_tie"}} == {100.0 * right}


@pytest.mark.parametrize(
    ("predictions", "words"),
    [
        ([reply({}, id="q"), reply({}, id="q")], "'q' has two predictions"),
        ([reply({}, id="other")], "answer none of the 1 questions, first 'other'"),
        ([Prediction("q", (1, 2), (1.0,), ())], "2 candidates but 1 scores"),
        ([Prediction("q", (1, 1), (1.0, 1.0), ())], "the same candidate twice"),
        ([Prediction("q", (1, 2), (0.1, 0.2), ())], "scores that increase"),
        ([Prediction("q", (1,), (float("nan"),), ())], "not numbers"),
        ([Prediction("q", (1, 2), (0.1, float("nan")), ())], "not numbers"),
    ],
)
def test_malformed_predictions_are_named(predictions: list[Prediction], words: str) -> None:
    with pytest.raises(InputError, match=words):
        score_predictions([ask(1)], predictions)
