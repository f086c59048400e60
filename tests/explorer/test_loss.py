"""What training minimises."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kgqa_core.explorer.explore import Exploration, gold_mask, loss_sum
from tests.explorer.worlds import make_batch, make_question


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
    loss, covered = loss_sum(found, batch, 97)
    first = np.log(np.exp([0.0, 1.0, 2.0]).sum()) - (0.0 + 2.0) / 2
    third = np.log(np.exp([1.0, 5.0, 0.0]).sum()) - 5.0
    assert loss.item() == pytest.approx(first + third)
    assert covered.tolist() == [True, False, True]
    per_answer, _ = loss_sum(found, batch, 97, per_answer=True)
    log_p = [np.log(np.exp([0.0, 1.0, 2.0]).sum()) - score for score in (0.0, 2.0)] + [third]
    assert per_answer.item() == pytest.approx(2 / 3 * sum(log_p))  # three terms, 1.5 golds per question


def test_a_question_that_reached_no_gold_moves_no_weight() -> None:
    found = candidates([[0.0, 1.0], [2.0, 3.0]])
    batch = make_batch([make_question([0], [1], masked="0"), make_question([0], [5], masked="0")], {"0": 0})
    loss, _ = loss_sum(found, batch, 97)
    loss.backward()
    assert found.class_score.grad is not None
    assert found.class_score.grad[2:].tolist() == [0.0, 0.0]
    assert found.class_score.grad[:2].abs().min() > 0


def test_a_batch_without_any_reached_gold_has_a_loss_of_zero_and_no_nan() -> None:
    found = candidates([[0.0, -200.0], [2.0]])
    loss, covered = loss_sum(found, make_batch([make_question([0], [5])] * 2, {"what of [topic]": 0}), 97)
    assert (loss.item(), covered.tolist()) == (0.0, [False, False])
    loss.backward()
    assert found.class_score.grad is not None
    assert not found.class_score.grad.any()


def test_a_gold_of_vanishing_probability_has_a_finite_loss() -> None:
    found = candidates([[0.0, -1e6, 1e6]])
    loss, _ = loss_sum(found, make_batch([make_question([0], [1])], {"what of [topic]": 0}), 97)
    assert loss.item() == pytest.approx(2e6)


def test_golds_are_matched_per_question() -> None:
    found = candidates([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    batch = make_batch([make_question([0], [2], masked="0"), make_question([0], [0, 1], masked="0")], {"0": 0})
    assert gold_mask(found, batch, 3).tolist() == [False, False, True, True, True, False]
