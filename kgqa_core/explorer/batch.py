"""Questions as arrays, and sums of rows into groups by back ends with equal values and gradients.

A *node* is one entity inside one question; a *group* is every edge of one (head entity, relation), stored side by
side in the graph's CSR. ``python -m benchmarks scatter`` decides which back end is the default where.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgqa_core.graph.csr import compiled, expand_ranges
from kgqa_core.graph.kg import golds_of
from kgqa_core.types import Question

Int = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Batch:
    """B questions; topics and golds are (question, entity) pairs, sorted by both."""

    text: Int  # [B] row of each question's text in the table of encodings
    topic_question: Int  # [T] 0..B-1
    topic_entity: Int  # [T]
    gold_question: Int  # [A] 0..B-1
    gold_entity: Int  # [A]

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True, slots=True)
class QuestionArrays:
    """All Q questions of a split in flat arrays, from which batches are gathered."""

    text: Int  # [Q]
    topic_ptr: Int  # [Q+1] question i owns topic_entity[topic_ptr[i]:topic_ptr[i + 1]], ascending
    topic_entity: Int
    gold_ptr: Int  # [Q+1] the same for golds
    gold_entity: Int
    has_answers: Bool  # [Q] false for a claim whose real answers are unknown: it counts for Hits@1, not for F1

    def __len__(self) -> int:
        return len(self.text)

    def batch(self, rows: Int) -> Batch:
        """Gather the questions ``rows`` into one batch."""
        owned = []
        for pointer, entity in ((self.topic_ptr, self.topic_entity), (self.gold_ptr, self.gold_entity)):
            starts, ends = pointer[rows], pointer[rows + 1]
            owned += [np.repeat(np.arange(len(rows)), ends - starts), entity[expand_ranges(starts, ends)]]
        return Batch(self.text[rows], *owned)

    def teaching(self) -> Int:
        """Return the rows that can be learned from: those with a topic and a gold."""
        return np.flatnonzero((np.diff(self.topic_ptr) > 0) & (np.diff(self.gold_ptr) > 0))


def question_arrays(
    questions: Sequence[Question], text_row: dict[str, int], *, mask_topics: bool = True
) -> QuestionArrays:
    """Flatten linked questions; ``text_row``: the row of each text, as an explorer reads it, among the encodings."""

    def flatten(groups: Iterable[Iterable[int]]) -> tuple[Int, Int]:
        owned = [sorted(set(group)) for group in groups]  # a topic given twice would send its messages twice
        entities = [entity for group in owned for entity in group]
        return np.cumsum([0, *map(len, owned)], dtype=np.int64), np.array(entities, dtype=np.int64)

    return QuestionArrays(
        np.array([text_row[question.asked(mask_topics)] for question in questions], dtype=np.int64),
        *flatten(question.topics for question in questions),
        *flatten(golds_of(question, reenter_topic=True) for question in questions),
        np.array([bool(question.answers) for question in questions], dtype=bool),
    )


@cache
def has_torch_scatter() -> bool:
    """Say whether the optional extra ``torch-scatter`` is importable."""
    try:
        import torch_scatter  # noqa: F401
    except (ImportError, OSError):  # OSError: built for another torch
        return False
    return True


def scatter_sum(source: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """Return [num_groups, ...] the sums of the rows of ``source`` [n, ...] by their group ``index`` [n] int64.

    torch's own ``index_add`` serves CPU tensors, where it is 2-3 times faster; torch-scatter serves the rest where
    it is installed.
    """
    if source.is_cuda and has_torch_scatter():
        import torch_scatter

        result: Tensor = torch_scatter.scatter_add(source, index, dim=0, dim_size=num_groups)
        return result
    return source.new_zeros((num_groups, *source.shape[1:])).index_add(0, index, source)


def spread_sum(source: Tensor, taken: Tensor, times: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """Add ``times[i]`` times row ``taken[i]`` of ``source`` to group ``index[i]``: a sparse matrix times ``source``.

    On CPU compiled, without the [n, D] copies that gathering first would write and read again. ``source`` is [m, D],
    the others [n] int64, in any order; the result is [num_groups, D].
    """
    if source.is_cuda:
        return scatter_sum(source.index_select(0, taken) * times[:, None], index, num_groups)
    result: Tensor = _SpreadSum.apply(source, taken.numpy(), times.numpy(), index.numpy(), num_groups)  # type: ignore[no-untyped-call]
    return result


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


@partial(compiled, fastmath={"contract"})
def add_rows(source: Any, taken: Any, times: Any, index: Any, result: npt.NDArray[np.floating[Any]]) -> None:
    """Add ``times[i] * source[taken[i]]`` to ``result[index[i]]`` for all i, in order."""
    width = source.shape[1]
    for entry in range(len(taken)):
        row, group, factor = taken[entry], index[entry], source.dtype.type(times[entry])
        for column in range(width):
            result[group, column] += factor * source[row, column]
