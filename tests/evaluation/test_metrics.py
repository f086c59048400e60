"""Metrics of one question: strict ones against an oracle that shuffles the ties, published ones in exact fractions."""

import os
import re
import string
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, permutations, product
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.score import score_file, summarise_rog
from kgqa_core.errors import InputError
from kgqa_core.evaluation.metrics import (
    METRICS,
    ROG_METRICS,
    answer_bucket,
    hop_bucket,
    is_rog_hit,
    normalise_name,
    normalise_published,
    score_predictions,
    score_rog_question,
)
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
    st.lists(st.integers(0, 3), min_size=1, max_size=6).map(sorted), st.sets(st.integers(0, 7), min_size=1, max_size=4)
)
def test_hits_equal_the_mean_over_all_orders_of_ties(levels: list[int], golds: set[int]) -> None:
    scores = {entity: 0.5 / (1 + level) for entity, level in enumerate(levels)}
    found = summarise(ask(*sorted(golds)), reply(scores))
    for k in (1, 3, 10):
        assert found[f"hits{k}"] == pytest.approx(100 * shuffled_hits(levels, golds, k))
    assert found["mean_top_tie"] == levels.count(levels[0])


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


def test_empty_predictions_count_as_zero_in_the_denominator() -> None:
    questions = [ask(1, id="right"), ask(1, id="empty")]
    right = replace(reply({1: 1.0}, (1,), id="right"), covered=True)
    found = score_predictions(questions, [right, reply({}, id="empty")])
    assert found.question_ids == ("right", "empty")
    assert found.values["hits1"].tolist() == [100, 0]
    summary = found.summary()
    assert summary.pop("n") == 2
    assert summary.pop("mean_top_tie") == 0.5
    assert set(summary.values()) == {50}
    assert score_predictions([], []).summary() == {"n": 0, **dict.fromkeys(METRICS, 0.0)}


def test_figures_break_down_by_hops_and_by_the_number_of_answers_in_order() -> None:
    cases = {"a": (11, 10), "b": (1, None), "c": (4, 2), "d": (2, 2), "e": (5, 1)}
    questions = [ask(*range(size), id=id, hops=hops) for id, (size, hops) in cases.items()]
    questions.append(replace(claim(0, True), id="only a claim"))
    scores = score_predictions(questions, [reply({1: 1.0} if one.id == "c" else {}, id=one.id) for one in questions])
    by_hops, by_answers = (
        {name: scores.summary(chosen) for name, chosen in groups.items()}
        for groups in (scores.hop_groups(), scores.answer_groups())
    )
    assert [(hops, part["n"], part["hits1"]) for hops, part in by_hops.items()] == [
        ("1", 1, 0), ("2", 2, 50), ("10", 1, 0), ("unknown", 2, 0),
    ]  # fmt: skip
    assert [(bucket, part["n"], part["hits1"]) for bucket, part in by_answers.items()] == [
        ("0", 1, 0), ("1", 1, 0), ("2-4", 2, 50), ("5-9", 1, 0), (">=10", 1, 0),
    ]  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from([None, 1, 2, 3, 7]), st.booleans()), min_size=1))
def test_groups_share_out_the_questions_and_their_means_add_up(cases: list[tuple[int, int | None, bool]]) -> None:
    questions = [ask(*range(size), id=str(place), hops=hops) for place, (size, hops, _) in enumerate(cases)]
    replies = [reply({0: 1.0} if right else {}, id=str(place)) for place, (_, _, right) in enumerate(cases)]
    scores = score_predictions(questions, replies)
    for groups in (scores.hop_groups(), scores.answer_groups()):
        assert (np.sum(list(groups.values()), axis=0) == 1).all()
        parts = [scores.summary(chosen) for chosen in groups.values()]
        for name in METRICS:
            mean = sum(part["n"] * part[name] for part in parts) / len(cases)
            assert mean == pytest.approx(scores.summary()[name])


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
    ("prediction", "words"),
    [
        (Prediction("q", (1, 2), (1.0,), ()), "2 candidates but 1 scores"),
        (Prediction("q", (1, 1), (1.0, 1.0), ()), "the same candidate twice"),
        (Prediction("q", (1, 2), (0.1, 0.2), ()), "scores that increase"),
        (Prediction("q", (1,), (float("nan"),), ()), "not numbers"),
        (Prediction("q", (1, 2), (0.1, float("nan")), ()), "not numbers"),
    ],
)
def test_malformed_predictions_are_named(prediction: Prediction, words: str) -> None:
    with pytest.raises(InputError, match=words):
        summarise(ask(1), prediction)


def test_buckets() -> None:
    answers = {0: "0", 1: "1", 2: "2-4", 4: "2-4", 5: "5-9", 9: "5-9", 10: ">=10", 997: ">=10"}
    assert {num: answer_bucket(num) for num in answers} == answers
    hops = {1: "1", 2: "2", 3: ">=3", 7: ">=3", None: "unknown"}
    assert {num: hop_bucket(num) for num in hops} == hops


NAMES = st.sampled_from(["Rome", "the Rome", "a", "!", "Roman Empire", "Tirana", "Iran", "", "none", "x y", "É."])


def plain(text: str) -> str:
    """Normalise character by character and word by word, without regular expressions."""
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(word for word in kept.split() if word not in {"a", "an", "the"})


def oracle(prediction: str | Sequence[str], golds: Sequence[str]) -> list[Fraction]:
    """Work out the six shares of one question in exact arithmetic."""
    if isinstance(prediction, str):
        lines = prediction.strip().split("\n")
    else:
        lines = sorted(set(prediction), key=lambda line: (-list(prediction).count(line), list(prediction).index(line)))
    whole, first = plain(" ".join(lines)), plain(lines[0]) if lines else ""
    found = sum(1 for gold in golds if plain(gold) in whole)
    accuracy = Fraction(found, len(golds))
    precision = Fraction(found, len(lines)) if lines else Fraction(0)
    recall = accuracy if lines else Fraction(0)
    f1 = 2 * precision * recall / (precision + recall) if found and lines else Fraction(0)
    hit1 = Fraction(any(plain(gold) in first for gold in golds))
    return [accuracy, Fraction(found > 0), hit1, f1, precision, recall]


@given(st.lists(NAMES, max_size=4), st.lists(NAMES, max_size=3))
def test_a_hit_that_is_seen_at_once_is_one(names: list[str], golds: list[str]) -> None:
    assert is_rog_hit(names, golds) == bool(golds and oracle(names, golds)[1])


def score(prediction: str | list[str], golds: list[str]) -> dict[str, float]:
    return dict(zip(ROG_METRICS, score_rog_question(prediction, golds), strict=True))


@given(
    st.lists(
        st.tuples(
            st.one_of(st.lists(NAMES, max_size=5), st.lists(NAMES, max_size=5).map("\n".join)),
            st.lists(NAMES, min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=7,
    )
)
def test_equals_exact_oracle(pairs: list[tuple[str | list[str], list[str]]]) -> None:
    shares = [oracle(prediction, golds) for prediction, golds in pairs]
    expected = [float(100 * sum(column) / len(pairs)) for column in zip(*shares, strict=True)]
    assert list(summarise_rog([score_rog_question(*pair) for pair in pairs]).values()) == pytest.approx(
        expected, rel=1e-12
    )


def test_what_the_published_evaluator_does_beyond_reason() -> None:
    assert score("Tirana", ["Iran"])["hit1"] == 1  # a gold inside a longer word
    crossing = score("New\nYork", ["New York"])  # or across lines
    assert (crossing["hit"], crossing["hit1"]) == (1, 0)
    assert score("no idea", ["!?"])["accuracy"] == 1  # a gold of only punctuation or articles
    assert score("", ["The"])["hit1"] == 1
    figures = score("Rome and Paris", ["Rome", "Paris"])  # two golds in one line
    assert (figures["precision"], figures["f1"]) == (2, pytest.approx(4 / 3))
    assert score([], ["!"]) == {"accuracy": 1, "hit": 1, "hit1": 1, "f1": 0, "precision": 0, "recall": 0}


@pytest.mark.parametrize(
    ("prediction", "num_lines", "first"),
    [
        ("\nRome\n\nParis \n", 3, "Rome"),  # stripped, and an empty line is a line
        ("", 1, ""),
        (["x", "y", "z", "y", "z"], 3, "y"),  # distinct lines, the most frequent first
    ],
)
def test_a_prediction_is_cut_into_lines(prediction: str | list[str], num_lines: int, first: str) -> None:
    figures = score(prediction, ["!", first])  # "!" is found everywhere
    assert (figures["precision"], figures["hit1"]) == (2 / num_lines, 1)


def test_question_without_golds_scores_zero_and_stays_in_the_denominator() -> None:
    shares = [score_rog_question("Rome", []), score_rog_question("Rome", ["Rome"])]
    assert summarise_rog(shares) == dict.fromkeys(ROG_METRICS, 50.0)
    assert summarise_rog([]) == dict.fromkeys(ROG_METRICS, 0.0)


def test_sums_are_taken_left_to_right() -> None:
    """Compensated summation (``sum`` from Python 3.12 on) gives another last digit than the published figures."""
    shares = [score_rog_question("\n".join("abcdefghij"), ["b"])] * 3  # precision 0.1
    assert summarise_rog(shares)["precision"] == (0.1 + 0.1 + 0.1) * 100 / 3 != 10.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Matrix", "matrix"),
        ("An apple, a day.", "apple day"),
        ("Theatre", "theatre"),
        ("U.S.A.", "usa"),
        ("$ !?", ""),
        ("A", ""),
        ("Fifty/Fifty", "fiftyfifty"),
        ("¿Qué?", "¿qué"),  # only ASCII punctuation goes
        ("<pad> Rome <pad>", "pad rome pad"),  # the brackets are gone before the published code looks for them
    ],
)
def test_published_normalisation(text: str, expected: str) -> None:
    assert normalise_published(text) == expected


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("Rome ", "rome", True),
        ("New\u00a0York", "new  york", True),
        ("Cafe\u0301", "café", True),
        ("Straße", "STRASSE", True),
        ("It", "It!", False),
        ("The Thing", "Thing", False),
        ("U.S.A.", "USA", False),
    ],
)
def test_strict_equality_keeps_what_tells_entities_apart(one: str, other: str, equal: bool) -> None:
    assert (normalise_name(one) == normalise_name(other)) is equal


@pytest.mark.realdata
@pytest.mark.skipif("KGQA_DATA" not in os.environ, reason="KGQA_DATA does not name the folder of real data")
def test_authors_printed_figures_are_reproduced_to_the_last_digit() -> None:
    folders = sorted((Path(os.environ["KGQA_DATA"]) / "peer_predictions").iterdir())
    assert folders
    for folder in folders:
        printed = re.findall(r"(\w+): ([\d.]+)", (folder / "eval_result.txt").read_text(encoding="utf-8"))
        ours = score_file(folder / "predictions.jsonl")
        assert {name.lower(): text for name, text in printed} == {name: str(v) for name, v in ours["rog"].items()}
        assert ours["n"] == 1628
        assert ours["strict"]["hits1"] < ours["rog"]["hit1"]
        assert ours["strict"]["f1"] < ours["rog"]["f1"]


def test_a_prediction_for_another_question_is_an_error_and_no_low_score() -> None:
    asked = [ask(1, id="a"), ask(2, id="b")]
    with pytest.raises(InputError, match="question 'b' stands in place of 'a'"):
        score_predictions(asked, [reply({2: 1.0}, id="b"), reply({1: 1.0}, id="a")])
