"""Questions as flat arrays, and batches of them."""

from __future__ import annotations

import numpy as np

from kgqa_core.explorer.batch import explorer_golds, question_arrays
from tests.explorer.worlds import make_question

ROWS = {"who": 1, "when": 0}
QUESTIONS = [
    make_question([7, 3], [11, 2, 5], masked="who"),
    make_question([], [13], masked="when"),
    make_question([17], [], masked="who"),
]


def test_a_batch_holds_topics_and_golds_as_pairs_sorted_by_question_and_entity() -> None:
    batch = question_arrays(QUESTIONS, ROWS).batch(np.array([2, 0, 1]))
    assert batch.text.tolist() == [1, 1, 0]
    assert (batch.topic_question.tolist(), batch.topic_entity.tolist()) == ([0, 1, 1], [17, 3, 7])
    assert (batch.gold_question.tolist(), batch.gold_entity.tolist()) == ([1, 1, 1, 2], [2, 5, 11, 13])
    assert {array.dtype for array in (batch.topic_question, batch.topic_entity, batch.gold_entity)} == {
        np.dtype(np.int64)
    }


def test_a_topic_or_gold_given_twice_counts_once() -> None:
    batch = question_arrays([make_question([3, 3], [5, 5, 2], masked="who")], ROWS).batch(np.array([0]))
    assert batch.topic_entity.tolist() == [3]
    assert batch.gold_entity.tolist() == [2, 5]


def test_only_questions_with_topic_and_gold_teach() -> None:
    assert question_arrays(QUESTIONS, ROWS).teaching().tolist() == [0]


def test_no_questions_make_no_batches() -> None:
    arrays = question_arrays([], ROWS)
    assert len(arrays) == 0
    assert arrays.in_order().tolist() == []


def test_in_order_puts_equal_texts_side_by_side_and_names_the_rows() -> None:
    questions = [make_question([entity], masked="who" if entity % 2 else "when") for entity in range(7)]
    arrays = question_arrays(questions, ROWS)
    assert arrays.in_order().tolist() == [0, 2, 4, 6, 1, 3, 5]
    assert arrays.batch(arrays.in_order()).topic_entity.tolist() == arrays.in_order().tolist()


def test_a_right_claim_is_a_gold_and_a_wrong_one_teaches_nothing() -> None:
    assert explorer_golds(make_question([1], claim=5, verdict=True)) == (5,)
    assert explorer_golds(make_question([1], claim=5, verdict=False)) == ()
    assert explorer_golds(make_question([1], [2, 3], claim=5, verdict=False)) == (2, 3)  # the real answers are known
