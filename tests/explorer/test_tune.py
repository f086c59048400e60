"""What is chosen on dev questions: the two thresholds of a checkpoint, by figures that the evaluator would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.explorer.fit import ANSWER_THRESHOLDS, ATTENTION_THRESHOLDS, choose_thresholds, measure
from kgqa_core.explorer.model import Explorer
from kgqa_core.explorer.predict import predict
from kgqa_core.explorer.train import Trainer
from kgqa_core.types import Question
from tests.explorer import films
from tests.explorer.worlds import make_question


def trained(seed: int, epochs: int) -> Explorer:
    """An explorer after some epochs on the films."""
    model = films.fresh_model(seed)
    settings = films.section(epochs=epochs)
    list(Trainer(model, [films.lessons()], settings, seed=0).steps())
    return model


def scores_of(
    model: Explorer, questions: Sequence[Question], answer_threshold: float, attention_threshold: float = 0.0
) -> dict[str, float]:
    """The evaluator's figures."""
    predictions = predict(
        model,
        films.GRAPH,
        questions,
        texts=films.TEXTS,
        text_row=films.TEXT_ROW,
        options=replace(films.OPTIONS, attention_threshold=attention_threshold),
        answer_threshold=answer_threshold,
    )
    return score_predictions(questions, predictions).summary()


@pytest.mark.parametrize(("seed", "epochs"), [(1, 3), (2, 2), (2, 3), (3, 3)])
def test_the_answer_threshold_is_the_one_of_best_f1_on_dev_nearest_to_a_half(seed: int, epochs: int) -> None:
    model, dev = trained(seed, epochs), films.questions()[::2]
    figures = measure(model, films.lessons(dev))
    expected = {threshold: scores_of(model, dev, threshold)["f1"] for threshold in ANSWER_THRESHOLDS}
    assert figures.f1 == pytest.approx(expected)
    assert len(set(expected.values())) > 1
    best = [threshold for threshold in ANSWER_THRESHOLDS if expected[threshold] >= max(expected.values()) - 0.01]
    assert abs(figures.answer_threshold - 0.5) == min(abs(threshold - 0.5) for threshold in best)
    assert figures.answer_threshold in best


@pytest.mark.parametrize(("seed", "epochs"), [(0, 2), (1, 3), (2, 30)])
def test_the_attention_threshold_is_the_largest_that_costs_nothing_on_dev(seed: int, epochs: int) -> None:
    model, dev = trained(seed, epochs), films.questions()[::2]
    attention, figures = choose_thresholds(model, films.lessons(dev))

    def sum_of(threshold: float) -> float:
        found = measure(model, films.lessons(dev), threshold)
        return found.hits1 + found.best_f1

    sums = {threshold: sum_of(threshold) for threshold in (0.0, *ATTENTION_THRESHOLDS)}
    assert attention == max(threshold for threshold, value in sums.items() if value == max(sums.values()))
    scores = scores_of(model, dev, figures.answer_threshold, attention)
    assert (scores["hits1"], scores["f1"]) == pytest.approx((figures.hits1, figures.f1[figures.answer_threshold]))


def test_an_explorer_that_learned_can_be_cut_and_one_that_knows_nothing_hardly() -> None:
    dev = films.lessons(films.questions()[::2])
    assert choose_thresholds(trained(0, 30), dev)[0] == 0.5
    knows_nothing = films.fresh_model()
    with torch.no_grad():
        knows_nothing.attend_relation.zero_()
        knows_nothing.attend_both.zero_()
        knows_nothing.attend_question.zero_()
        knows_nothing.attend_head.zero_()  # attention 0.5 everywhere: a larger threshold would leave only the topic
    assert choose_thresholds(knows_nothing, dev)[1].coverage == 100.0


def test_without_dev_answers_the_answer_threshold_is_a_half_and_nothing_is_cut() -> None:
    model = trained(0, 1)
    attention, figures = choose_thresholds(model, films.lessons([]))
    assert (attention, figures.answer_threshold, figures.hits1, figures.f1) == (0.0, 0.5, 0.0, {})
    claims = [make_question([5], masked=films.WHO, claim=films.director(5), verdict=True)]
    assert choose_thresholds(model, films.lessons(claims))[1].answer_threshold == 0.5


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_figures_while_training_are_those_of_the_evaluator(seed: int) -> None:
    model, questions = films.fresh_model(seed), films.questions()
    figures = measure(model, films.lessons(questions))
    scores = scores_of(model, questions, 0.5)
    assert (figures.hits1, figures.coverage) == pytest.approx((scores["hits1"], scores["coverage"]), abs=1e-3)
