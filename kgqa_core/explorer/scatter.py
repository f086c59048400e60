"""Sum rows into groups: one signature per sum, back ends with equal values and gradients.

``scatter_sum`` adds rows as they come; ``spread_sum`` adds few rows many times, as a state class receives its messages.
``python -m benchmarks scatter`` decides which back end is the default where.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit
from torch import Tensor


@cache
def has_torch_scatter() -> bool:
    """Say whether the optional extra ``torch-scatter`` is importable."""
    try:
        import torch_scatter  # noqa: F401
    except (ImportError, OSError):  # OSError: built for another torch
        return False
    return True


def scatter_sum(source: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """Add the rows of ``source`` that share a group.

    torch's own ``index_add`` serves CPU tensors, where it is 2-3 times faster; torch-scatter serves the rest where
    it is installed.

    Args:
        source: [n, ...] rows.
        index: [n] int64 group of each row, ``0..num_groups-1``, in any order.
        num_groups: number of rows of the result; a group without rows is zero.

    Returns:
        [num_groups, ...].
    """
    if source.is_cuda and has_torch_scatter():
        return scatter_sum_extension(source, index, num_groups)
    return scatter_sum_torch(source, index, num_groups)


def scatter_sum_torch(source: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """``scatter_sum`` by torch's own ``index_add``."""
    return source.new_zeros((num_groups, *source.shape[1:])).index_add(0, index, source)


def scatter_sum_extension(source: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """``scatter_sum`` by the torch-scatter extension."""
    import torch_scatter

    result: Tensor = torch_scatter.scatter_add(source, index, dim=0, dim_size=num_groups)
    return result


def spread_sum(source: Tensor, taken: Tensor, times: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """Add ``times[i]`` times row ``taken[i]`` of ``source`` to group ``index[i]``: a sparse matrix times ``source``.

    On CPU compiled, without the [n, D] copies that gathering first would write and read again.

    Args:
        source: [m, D] rows.
        taken: [n] int64 row of each entry.
        times: [n] int64 factor of each entry.
        index: [n] int64 group of each entry, ``0..num_groups-1``, in any order.
        num_groups: number of rows of the result; a group without entries is zero.

    Returns:
        [num_groups, D].
    """
    if source.is_cuda:
        return spread_sum_torch(source, taken, times, index, num_groups)
    result: Tensor = _SpreadSum.apply(source, taken.numpy(), times.numpy(), index.numpy(), num_groups)  # type: ignore[no-untyped-call]
    return result


def spread_sum_torch(source: Tensor, taken: Tensor, times: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """``spread_sum`` by gathering, multiplying and ``scatter_sum``."""
    return scatter_sum(source.index_select(0, taken) * times[:, None], index, num_groups)


class _SpreadSum(torch.autograd.Function):
    """``spread_sum`` on CPU; its gradient is the same sum with rows and groups exchanged."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, taken: Any, times: Any, index: Any, num_groups: int) -> Tensor:
        ctx.entries, ctx.num_rows = (taken, times, index), len(source)
        return _spread(source, taken, times, index, num_groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        taken, times, index = ctx.entries
        return _spread(gradients[0], index, times, taken, ctx.num_rows), None, None, None, None


def _spread(source: Tensor, taken: Any, times: Any, index: Any, num_groups: int) -> Tensor:
    result = source.new_zeros((num_groups, source.shape[1]))
    add_rows(source.detach().contiguous().numpy(), taken, times, index, result.numpy())
    return result


@njit(cache=True, nogil=True, fastmath={"contract"})
def add_rows(source: Any, taken: Any, times: Any, index: Any, result: npt.NDArray[np.floating[Any]]) -> None:
    """Add ``times[i] * source[taken[i]]`` to ``result[index[i]]`` for all i, in order."""
    width = source.shape[1]
    for entry in range(len(taken)):
        row, group, factor = taken[entry], index[entry], source.dtype.type(times[entry])
        for column in range(width):
            result[group, column] += factor * source[row, column]
