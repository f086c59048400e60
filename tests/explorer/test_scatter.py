"""Sums into groups: torch's own and the extension's, in values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kgqa_core.explorer.batch import (
    has_torch_scatter,
    scatter_sum,
    scatter_sum_extension,
    scatter_sum_torch,
    spread_sum,
)

needs_extension = pytest.mark.skipif(
    not has_torch_scatter(), reason="the optional extra torch-scatter is not installed"
)
back_ends = pytest.mark.parametrize(
    "back_end", [scatter_sum, scatter_sum_torch, pytest.param(scatter_sum_extension, marks=needs_extension)]
)
BackEnd = Callable[[Tensor, Tensor, int], Tensor]

INDEX = torch.tensor([5, 0, 5, 3, 0, 5, 5, 6, 3, 0, 5])  # 11 rows; groups 1, 2 and 4 stay empty


def loop(source: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """One row after the other."""
    total = torch.zeros((num_groups, *source.shape[1:]), dtype=source.dtype)
    for row, group in zip(source, index.tolist(), strict=True):
        total = torch.stack([held + row if at == group else held for at, held in enumerate(total)])
    return total


@back_ends
@pytest.mark.parametrize("shape", [(11,), (11, 3), (11, 3, 2)], ids=["scalars", "vectors", "matrices"])
def test_values_and_gradients_are_those_of_a_loop(back_end: BackEnd, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.randn(shape, dtype=torch.float64)
    mine, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    weight = torch.randn((7, *shape[1:]), dtype=torch.float64)
    result, expected = back_end(mine, INDEX, 7), loop(theirs, INDEX, 7)
    assert torch.allclose(result, expected)
    assert not result[[1, 2, 4]].any()
    (result.square() * weight).sum().backward()
    (expected.square() * weight).sum().backward()
    assert mine.grad is not None and theirs.grad is not None
    assert torch.allclose(mine.grad, theirs.grad)


@back_ends
def test_no_rows_leave_every_group_zero(back_end: BackEnd) -> None:
    empty = back_end(torch.zeros((0, 3)), torch.zeros(0, dtype=torch.int64), 5)
    assert empty.shape == (5, 3)
    assert not empty.any()


def test_on_the_cpu_torch_serves_though_the_extension_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgqa_core.explorer.batch.has_torch_scatter", lambda: True)
    monkeypatch.setattr("kgqa_core.explorer.batch.scatter_sum_extension", None)
    assert scatter_sum(torch.ones(11), INDEX, 7).tolist() == [3.0, 0.0, 0.0, 2.0, 0.0, 5.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spread_rows_are_added_as_often_as_said(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values, weight = torch.randn((5, 3), dtype=dtype), torch.randn((7, 3), dtype=dtype)
    taken, times = torch.tensor([4, 0, 4, 2, 2, 0, 4, 1, 2, 0, 4]), torch.arange(11) % 4
    mine, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    result = spread_sum(mine, taken, times, INDEX, 7)
    expected = loop(torch.stack([theirs[row] * n for row, n in zip(taken, times, strict=True)]), INDEX, 7)
    assert torch.allclose(result, expected.to(dtype))
    assert not result[[1, 2, 4]].any()
    (result.square() * weight).sum().backward()
    (expected.square() * weight).sum().backward()
    assert mine.grad is not None and theirs.grad is not None
    assert torch.allclose(mine.grad, theirs.grad, atol=1e-5)
    assert not mine.grad[3].any()  # a row that nobody takes


def test_spreading_nothing_leaves_every_group_zero() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert not spread_sum(torch.ones((3, 2)), none, none, none, 5).any()


def test_spreading_takes_part_in_gradients_of_rows_that_are_no_leaf() -> None:
    rows = torch.ones((2, 3), requires_grad=True)
    one = torch.tensor([1])
    spread_sum((rows * 2).T.contiguous().T, one, one * 5, one, 3).sum().backward()  # not contiguous either
    assert rows.grad is not None
    assert rows.grad.tolist() == [[0.0] * 3, [10.0] * 3]
