"""What training minimises, that it is repeatable, and that it learns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from kgqa_core.errors import KgqaError
from kgqa_core.explorer.batch import QuestionArrays, question_arrays
from kgqa_core.explorer.explore import Exploration
from kgqa_core.explorer.model import Explorer
from kgqa_core.explorer.predict import top_hits
from kgqa_core.explorer.train import TrainSettings, TrainStep, batch_loss, gold_mask, train_explorer
from tests.explorer import films
from tests.explorer.worlds import make_batch, make_question

SETTINGS = TrainSettings(epochs=1, batch_size=11, learning_rate=0.01, warmup_steps=3, seed=0)


def arrays() -> QuestionArrays:
    """All questions on the films."""
    return question_arrays(films.questions(), films.TEXT_ROW)


def train(model: Explorer, questions: QuestionArrays, settings: TrainSettings = SETTINGS) -> list[TrainStep]:
    """Train and return what was reported."""
    steps: list[TrainStep] = []
    train_explorer(
        model, films.GRAPH, questions, texts=films.TEXTS, options=films.OPTIONS, settings=settings, on_step=steps.append
    )
    return steps


def weights_of(model: Explorer) -> bytes:
    """All weights, bit by bit."""
    return b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())


def candidates(scores: list[list[float]]) -> Exploration:
    """Questions whose candidates are entities 0, 1, 2... with these scores, each a class of its own."""
    question = np.repeat(np.arange(len(scores)), [len(group) for group in scores])
    entity = np.concatenate([np.arange(len(group)) for group in scores])
    logits = torch.tensor([score for group in scores for score in group], dtype=torch.float64, requires_grad=True)
    return Exploration(question, entity, np.arange(len(entity)), logits)


def test_the_target_is_uniform_over_the_golds_that_were_reached() -> None:
    found = candidates([[0.0, 1.0, 2.0], [3.0, 3.0], [1.0, 5.0, 0.0]])
    batch = make_batch(
        [
            make_question([0], [0, 2, 96], masked="0"),  # 96 was not reached: half of the target for each of the others
            make_question([0], [], masked="0"),  # no gold
            make_question([0], [1], masked="0"),
        ],
        {"0": 0},
    )
    loss, num_covered = batch_loss(found, batch, 97)
    first = np.log(np.exp([0.0, 1.0, 2.0]).sum()) - (0.0 + 2.0) / 2
    third = np.log(np.exp([1.0, 5.0, 0.0]).sum()) - 5.0
    assert loss.item() == pytest.approx((first + third) / 2)
    assert num_covered == 2


def test_a_question_that_reached_no_gold_moves_no_weight() -> None:
    found = candidates([[0.0, 1.0], [2.0, 3.0]])
    batch = make_batch([make_question([0], [1], masked="0"), make_question([0], [5], masked="0")], {"0": 0})
    loss, _ = batch_loss(found, batch, 97)
    loss.backward()
    assert found.class_score.grad is not None
    assert found.class_score.grad[2:].tolist() == [0.0, 0.0]
    assert found.class_score.grad[:2].abs().min() > 0


def test_a_batch_without_any_reached_gold_has_a_loss_of_zero_and_no_nan() -> None:
    found = candidates([[0.0, -200.0], [2.0]])
    loss, num_covered = batch_loss(found, make_batch([make_question([0], [5])] * 2, {"what of [topic]": 0}), 97)
    assert (loss.item(), num_covered) == (0.0, 0)
    loss.backward()
    assert found.class_score.grad is not None
    assert not found.class_score.grad.any()


def test_a_gold_of_vanishing_probability_has_a_finite_loss() -> None:
    found = candidates([[0.0, -1e6, 1e6]])
    loss, _ = batch_loss(found, make_batch([make_question([0], [1])], {"what of [topic]": 0}), 97)
    assert loss.item() == pytest.approx(2e6)


def test_golds_are_matched_per_question() -> None:
    found = candidates([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    batch = make_batch([make_question([0], [2], masked="0"), make_question([0], [0, 1], masked="0")], {"0": 0})
    assert gold_mask(found, batch, 3).tolist() == [False, False, True, True, True, False]


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Let torch have two threads, as a configuration may say."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("merge", [True, False], ids=["merged", "plain"])
def test_the_same_seed_gives_the_same_weights_bit_by_bit(merge: bool) -> None:
    # Wide enough that torch uses both threads where it can.
    results = set()
    for _ in range(3):
        model = films.fresh_model(width=127)
        train_explorer(
            model,
            films.GRAPH,
            arrays(),
            texts=films.TEXTS,
            options=replace(films.OPTIONS, merge=merge),
            settings=replace(SETTINGS, batch_size=69),
        )
        results.add(weights_of(model))
    assert len(results) == 1


def test_another_seed_gives_other_weights() -> None:
    orders = []
    for seed in (0, 1):
        model = films.fresh_model()
        train(model, arrays(), replace(SETTINGS, seed=seed))
        orders.append(weights_of(model))
    assert orders[0] != orders[1]


def test_two_relation_texts_that_decide_the_answer_are_learned_to_the_last_question() -> None:
    model = films.fresh_model()
    steps = train(model, arrays(), replace(SETTINGS, epochs=30))
    assert np.mean([step.loss for step in steps[-7:]]) < 0.5 * np.mean([step.loss for step in steps[:7]])
    assert top_hits(
        model, films.GRAPH, films.questions(), texts=films.TEXTS, text_row=films.TEXT_ROW, options=films.OPTIONS
    ) == (100.0, 100.0)


def test_every_step_reports_where_it_stands() -> None:
    steps = train(films.fresh_model(), arrays(), replace(SETTINGS, epochs=2))
    num_steps = 2 * 7  # 69 questions in batches of 11
    assert [step.step for step in steps] == list(range(1, num_steps + 1))
    assert {step.num_steps for step in steps} == {num_steps}
    assert [step.epoch for step in steps] == [1] * 7 + [2] * 7
    assert {step.coverage for step in steps} == {100.0}
    assert all(0 < step.classes_per_node <= 1 and step.edges_per_question > 1 for step in steps)


def test_the_learning_rate_warms_up_and_falls_to_almost_nothing() -> None:
    rates = [step.learning_rate for step in train(films.fresh_model(), arrays(), replace(SETTINGS, epochs=2))]
    expected = [0.01 * min(1, (step + 1) / 3) * (1 - step / 14) for step in range(14)]
    assert rates == pytest.approx(expected)


def test_an_epoch_sees_every_question_once_in_another_order() -> None:
    seen: list[list[int]] = []
    model, questions = films.fresh_model(), arrays()

    class Spy(QuestionArrays):
        """Notes which rows are asked for."""

        def batch(self, rows: np.ndarray) -> object:  # type: ignore[override]
            seen.append(rows.tolist())
            return questions.batch(rows)

    spy = Spy(questions.text, questions.topic_ptr, questions.topic_entity, questions.gold_ptr, questions.gold_entity)
    train(model, spy, replace(SETTINGS, epochs=2))
    first, second = ([row for rows in seen[start : start + 7] for row in rows] for start in (0, 7))
    assert sorted(first) == sorted(second) == list(range(69))
    assert first != second


def test_questions_without_topics_or_golds_are_left_out() -> None:
    useless = [make_question([], [3], masked=films.WHO), make_question([5], [], masked=films.WHO)]
    steps = train(films.fresh_model(), question_arrays(useless * 7, films.TEXT_ROW))
    assert steps == []
    mixed = question_arrays([*useless, films.questions()[0]], films.TEXT_ROW)
    (only,) = train(films.fresh_model(), mixed)
    assert only.coverage == 100.0


def test_a_step_without_reached_golds_changes_nothing() -> None:
    # Not even by the momentum of the steps before it.
    three_steps_away = make_question([0], [films.director(22)], masked=films.WHO)
    questions = question_arrays([films.questions()[0], three_steps_away], films.TEXT_ROW)
    model = films.fresh_model()
    weights, moved = [weights_of(model)], []

    def compare(step: TrainStep) -> None:
        weights.append(weights_of(model))
        moved.append((step.coverage, weights[-1] != weights[-2]))

    train_explorer(
        model,
        films.GRAPH,
        questions,
        texts=films.TEXTS,
        options=films.OPTIONS,
        settings=replace(SETTINGS, epochs=3, batch_size=1),
        on_step=compare,
    )
    assert sorted(moved) == [(0.0, False)] * 3 + [(100.0, True)] * 3


def test_training_that_diverged_stops_and_names_the_setting() -> None:
    model = films.fresh_model()
    with torch.no_grad():
        model.project.weight.fill_(torch.inf)
    with pytest.raises(KgqaError, match=r"diverged.*lower explorer\.learning_rate"):
        train(model, arrays())


def test_epochs_are_told_one_by_one() -> None:
    epochs: list[int] = []
    seconds = train_explorer(
        films.fresh_model(),
        films.GRAPH,
        arrays(),
        texts=films.TEXTS,
        options=films.OPTIONS,
        settings=replace(SETTINGS, epochs=3),
        on_epoch=epochs.append,
    )
    assert epochs == [1, 2, 3]
    assert seconds > 0
