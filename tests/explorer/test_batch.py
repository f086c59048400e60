"""Questions as arrays; the integer tools against naive ones, whichever strategy they choose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.explorer import batch
from kgqa_core.explorer.batch import compact, contains, expand_ranges, explorer_golds, question_arrays
from tests.explorer.plain_walk import select_groups
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


quick = settings(deadline=None, derandomize=True, max_examples=100)
Group = tuple[int, float]  # edges, attention


@contextmanager
def strategy(kind: str) -> Iterator[None]:
    """Let every call use bitmaps, or none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "LARGEST_BITMAP", 0 if kind == "sort" else 1 << 28)
        patch.setattr(batch, "SMALL_BITMAP", 1 << 28)
        yield


@quick
@given(rows=st.lists(st.integers(0, 4)), counts=st.lists(st.integers(0, 3), min_size=5, max_size=5))
def test_expand_ranges_lists_every_position_of_every_row(rows: list[int], counts: list[int]) -> None:
    ptr = np.cumsum([0, *counts])
    owner, position = expand_ranges(ptr, np.array(rows, dtype=np.int64))
    expected = [(at, place) for at, row in enumerate(rows) for place in range(ptr[row], ptr[row + 1])]
    assert list(zip(owner.tolist(), position.tolist(), strict=True)) == expected
    assert owner.dtype == position.dtype == np.int64


def test_expand_ranges_of_a_32_bit_pointer_counts_in_64_bits() -> None:
    ptr = np.array([2**31 - 3, 2**31 - 1], dtype=np.int32)
    assert expand_ranges(ptr, np.array([0, 0]))[1].tolist() == [2**31 - 3, 2**31 - 2] * 2


@quick
@given(keys=st.lists(st.integers(0, 22)))
@pytest.mark.parametrize("kind", ["bitmap", "sort"])
def test_compact_numbers_the_distinct_keys_in_order(kind: str, keys: list[int]) -> None:
    with strategy(kind):
        distinct, index = compact(np.array(keys, dtype=np.int64), 23)
    assert distinct.tolist() == sorted(set(keys))
    assert [distinct[i] for i in index] == keys
    assert distinct.dtype == index.dtype == np.int64


@quick
@given(keys=st.lists(st.integers(0, 22)), members=st.lists(st.integers(0, 22)))
@pytest.mark.parametrize("kind", ["bitmap", "sort"])
def test_contains_is_membership(kind: str, keys: list[int], members: list[int]) -> None:
    with strategy(kind):
        found = contains(np.array(keys, dtype=np.int64), np.array(members, dtype=np.int64), 23)
    assert found.tolist() == [key in members for key in keys]


def test_keys_far_beyond_32_bits_need_no_bitmap() -> None:
    # 64 questions on a graph of a hundred million entities.
    bound = 64 * 100_000_000
    keys = np.array([bound - 1, 5, bound - 1, 0])
    distinct, index = compact(keys, bound)
    assert (distinct.tolist(), index.tolist()) == ([0, 5, bound - 1], [2, 1, 2, 0])
    assert contains(keys, np.array([bound - 1]), bound).tolist() == [True, False, True, False]


def test_no_bitmap_is_larger_than_the_limit_however_many_keys() -> None:
    assert batch._bitmap_pays(100, batch.SMALL_BITMAP)
    assert batch._bitmap_pays(10**7, batch.LARGEST_BITMAP)
    assert not batch._bitmap_pays(10**9, batch.LARGEST_BITMAP + 1)


def take_groups(heads: list[list[Group]], budget: int) -> list[bool]:
    """Head by head: groups by attention, then relation, while fewer edges than the budget are taken."""
    keep = []
    for groups in heads:
        taken, entered = 0, set()
        for relation in sorted(range(len(groups)), key=lambda r: (-groups[r][1], r)):
            if taken < budget:
                entered.add(relation)
                taken += groups[relation][0]
        keep += [relation in entered for relation in range(len(groups))]
    return keep


heads_of_groups = st.lists(
    st.lists(st.tuples(st.integers(1, 7), st.sampled_from([-1.5, 0.0, 0.25, 3.0])), max_size=5), max_size=5
)


@quick
@given(heads=heads_of_groups, budget=st.sampled_from([1, 2, 5, 11, 1000]))
def test_whole_groups_enter_by_attention_until_the_budget_is_taken(heads: list[list[Group]], budget: int) -> None:
    flat = [(head, *group) for head, groups in enumerate(heads) for group in groups]
    owner, size, attention = (np.array(column) for column in zip(*flat, strict=True)) if flat else (np.empty(0),) * 3
    kept = select_groups(owner.astype(np.int64), size.astype(np.int64), attention, budget)
    assert kept.tolist() == take_groups(heads, budget)


def test_the_group_that_crosses_the_budget_stays_whole_and_later_ones_stay_out() -> None:
    owner = np.zeros(4, dtype=np.int64)
    size = np.array([2, 3, 97, 1])
    attention = np.array([0.1, 0.9, 0.8, 0.2])
    assert select_groups(owner, size, attention, 5).tolist() == [False, True, True, False]
    assert select_groups(owner, size, attention, 3).tolist() == [False, True, False, False]  # 3 taken: none left


def test_groups_that_tie_enter_in_order_of_relation() -> None:
    owner = np.zeros(3, dtype=np.int64)
    assert select_groups(owner, np.array([1, 1, 1]), np.zeros(3), 2).tolist() == [True, True, False]
