"""The published evaluator's figures, against an oracle written from its description and the authors' own output."""

import os
import re
import string
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.evaluation.rog import (
    ROG_METRICS,
    RogTally,
    is_rog_hit,
    score_rog,
    score_rog_question,
    split_prediction,
)
from kgqa_core.evaluation.score import score_file

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
    return dict(zip(ROG_METRICS, score_rog_question(split_prediction(prediction), golds), strict=True))


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
    assert list(score_rog(pairs).values()) == pytest.approx(expected, rel=1e-12)


def test_gold_is_found_inside_a_longer_word_and_across_lines() -> None:
    assert score("Tirana", ["Iran"])["hit1"] == 1
    crossing = score("New\nYork", ["New York"])
    assert (crossing["hit"], crossing["hit1"]) == (1, 0)


def test_gold_of_only_punctuation_or_articles_is_always_found() -> None:
    assert score("no idea", ["!?"])["accuracy"] == 1
    assert score("", ["The"])["hit1"] == 1


def test_precision_passes_one_when_one_line_holds_two_golds() -> None:
    figures = score("Rome and Paris", ["Rome", "Paris"])
    assert figures["precision"] == 2
    assert figures["f1"] == pytest.approx(4 / 3)


def test_text_is_stripped_and_an_empty_one_is_one_empty_line() -> None:
    assert split_prediction("\nRome\n\nParis \n") == ["Rome", "", "Paris"]
    assert split_prediction("") == [""]


def test_list_keeps_distinct_lines_most_frequent_first() -> None:
    assert split_prediction(["x", "y", "z", "y", "z"]) == ["y", "z", "x"]
    assert split_prediction([]) == []


def test_empty_list_misses_all_but_accuracy_and_hit_of_empty_golds() -> None:
    assert score([], ["!"]) == {"accuracy": 1, "hit": 1, "hit1": 1, "f1": 0, "precision": 0, "recall": 0}


def test_question_without_golds_scores_zero_and_stays_in_the_denominator() -> None:
    assert score_rog([("Rome", []), ("Rome", ["Rome"])]) == dict.fromkeys(ROG_METRICS, 50.0)


def test_sums_are_taken_left_to_right() -> None:
    """Compensated summation (``sum`` from Python 3.12 on) gives another last digit than the published figures."""
    tally = RogTally()
    for _ in range(3):
        tally.add("\n".join("abcdefghij"), ["b"])  # precision 0.1
    assert tally.summary()["precision"] == (0.1 + 0.1 + 0.1) * 100 / 3
    assert tally.summary()["precision"] != 10.0


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
