"""Questions as arrays, and sums into groups: torch's own and the extension's, in values and gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kgqa_core.explorer.batch import (
    QuestionArrays,
    question_arrays,
    scatter_sum,
    spread_sum,
)
from tests.explorer.worlds import make_question

ROWS = {"who": 1, "when": 0}
QUESTIONS = [
    make_question([7, 3, 7], [11, 2, 5, 2], masked="who"),  # given twice, counted once
    make_question([], [13], masked="when"),
    make_question([17], [], masked="who"),
]


def test_a_batch_holds_topics_and_golds_as_pairs_sorted_by_question_and_entity() -> None:
    arrays = question_arrays(QUESTIONS, ROWS)
    batch = arrays.batch(np.array([2, 0, 1]))
    assert batch.text.tolist() == [1, 1, 0]
    assert (batch.topic_question.tolist(), batch.topic_entity.tolist()) == ([0, 1, 1], [17, 3, 7])
    assert (batch.gold_question.tolist(), batch.gold_entity.tolist()) == ([1, 1, 1, 2], [2, 5, 11, 13])
    assert {array.dtype for array in (batch.topic_question, batch.topic_entity, batch.gold_entity)} == {
        np.dtype(np.int64)
    }
    assert arrays.teaching().tolist() == [0]  # only questions with topic and gold teach


def test_a_right_claim_is_a_gold_and_a_wrong_one_teaches_nothing() -> None:
    right = make_question([1], claim=5, verdict=True, masked="who")
    wrong = make_question([1], claim=5, verdict=False, masked="who")
    known = make_question([1], [2, 3], claim=5, verdict=False, masked="who")  # the real answers
    arrays = question_arrays([right, wrong, known], ROWS)
    assert [arrays.batch(np.array([row])).gold_entity.tolist() for row in range(3)] == [[5], [], [2, 3]]


@settings(deadline=None, derandomize=True, max_examples=100)
@given(rows=st.lists(st.integers(0, 4)), counts=st.lists(st.integers(0, 3), min_size=5, max_size=5))
def test_a_batch_has_every_topic_and_gold_of_every_row(rows: list[int], counts: list[int]) -> None:
    ptr = np.cumsum([0, *counts])
    owned = np.arange(ptr[-1]) + 2**31
    arrays = QuestionArrays(np.arange(5), ptr, owned, ptr, owned + 1, np.ones(5, dtype=bool))
    batch = arrays.batch(np.array(rows, dtype=np.int64))
    expected = [(at, place + 2**31) for at, row in enumerate(rows) for place in range(ptr[row], ptr[row + 1])]
    assert list(zip(batch.topic_question.tolist(), batch.topic_entity.tolist(), strict=True)) == expected
    assert list(zip(batch.gold_question.tolist(), (batch.gold_entity - 1).tolist(), strict=True)) == expected
    assert batch.topic_question.dtype == batch.topic_entity.dtype == np.int64


INDEX = torch.tensor([5, 0, 5, 3, 0, 5, 5, 6, 3, 0, 5])  # 11 rows; groups 1, 2 and 4 stay empty


def loop(source: Tensor, index: Tensor, num_groups: int) -> Tensor:
    total = torch.zeros((num_groups, *source.shape[1:]), dtype=source.dtype)
    for row, group in zip(source, index.tolist(), strict=True):
        total = torch.stack([held + row if at == group else held for at, held in enumerate(total)])
    return total


def assert_same(
    values: Tensor, fast: Callable[[Tensor], Tensor], slow: Callable[[Tensor], Tensor], atol: float = 1e-8
) -> Tensor:
    """Compare sums, and the gradients of a function of them; return the gradient."""
    mine, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    result, expected = fast(mine), slow(theirs)
    weight = torch.randn(result.shape, dtype=values.dtype)
    assert torch.allclose(result, expected)
    assert not result[[1, 2, 4]].any()
    (result.square() * weight).sum().backward()
    (expected.square() * weight).sum().backward()
    assert mine.grad is not None and theirs.grad is not None
    assert torch.allclose(mine.grad, theirs.grad, atol=atol)
    return mine.grad


@pytest.mark.parametrize("shape", [(11,), (11, 3), (11, 3, 2)], ids=["scalars", "vectors", "matrices"])
def test_values_and_gradients_are_those_of_a_loop(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.randn(shape, dtype=torch.float64)
    assert_same(values, lambda rows: scatter_sum(rows, INDEX, 7), lambda rows: loop(rows, INDEX, 7))
    assert not scatter_sum(torch.zeros((0, 3)), torch.zeros(0, dtype=torch.int64), 5).any()


def test_on_the_cpu_torch_serves_though_the_extension_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgqa_core.explorer.batch.has_torch_scatter", lambda: True)
    monkeypatch.setitem(sys.modules, "torch_scatter", None)  # to import it is an error
    assert scatter_sum(torch.ones(11), INDEX, 7).tolist() == [3.0, 0.0, 0.0, 2.0, 0.0, 5.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spread_rows_are_added_as_often_as_said(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    taken, times = torch.tensor([4, 0, 4, 2, 2, 0, 4, 1, 2, 0, 4]), torch.arange(11) % 4

    def slow(rows: Tensor) -> Tensor:
        return loop(torch.stack([rows[row] * n for row, n in zip(taken, times, strict=True)]), INDEX, 7)

    def fast(rows: Tensor) -> Tensor:
        return spread_sum(rows, taken, times, INDEX, 7)

    gradient = assert_same(torch.randn((5, 3), dtype=dtype), fast, slow, atol=1e-5)
    assert not gradient[3].any()  # a row that nobody takes
    none = torch.zeros(0, dtype=torch.int64)
    assert not spread_sum(torch.ones((3, 2)), none, none, none, 5).any()


def test_spreading_takes_part_in_gradients_of_rows_that_are_no_leaf() -> None:
    rows = torch.ones((2, 3), requires_grad=True)
    one = torch.tensor([1])
    spread_sum((rows * 2).T.contiguous().T, one, one * 5, one, 3).sum().backward()  # not contiguous either
    assert rows.grad is not None
    assert rows.grad.tolist() == [[0.0] * 3, [10.0] * 3]
