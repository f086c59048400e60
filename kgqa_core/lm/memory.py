"""Batches of similar lengths, made smaller when memory runs out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from kgqa_core.errors import KgqaError

Item = TypeVar("Item")
Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class DoesNotFit(KgqaError):
    """Memory does not hold a batch of one."""


class Batcher:
    """Runs a function over batches of rows of similar lengths.

    What memory did not hold is remembered as a number of cells (rows x longest length), so that later batches of long
    rows start smaller and those of short rows stay full.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._cells: int | None = None  # None: memory has sufficed so far

    def map(
        self,
        items: Sequence[Item],
        lengths: Sequence[int],
        run: Callable[[list[Item]], list[Result]],
        *,
        width: int = 1,
    ) -> list[Result]:
        """Return ``run``'s result for each item, in the items' order; longest go first, each becomes ``width`` rows.

        Raises:
            DoesNotFit: memory does not hold a batch of one.
        """
        order = sorted(range(len(items)), key=lambda row: (-lengths[row], row))
        results: dict[int, Result] = {}
        start = 0
        while start < len(order):
            rows = order[start : start + self._fitting(lengths[order[start]], width)]
            done = _attempt(run, [items[row] for row in rows])
            if done is None:
                self._shrink(len(rows), lengths[rows[0]], width)
                continue
            results.update(zip(rows, done, strict=True))
            start += len(rows)
        return [results[row] for row in range(len(items))]

    def _fitting(self, longest: int, width: int) -> int:
        most = self._batch_size
        if self._cells is not None:
            most = min(most, self._cells // max(1, longest))
        return max(1, most // width)

    def _shrink(self, num_items: int, longest: int, width: int) -> None:
        if num_items == 1:
            raise DoesNotFit(
                f"memory does not hold a single prompt of {longest} tokens with its answer. Use a smaller model, "
                "a shorter dtype, quantisation, fewer beams or a lower max_new_tokens"
            )
        self._cells = num_items // 2 * width * max(1, longest)
        _log.warning("out of memory with %d prompts of up to %d tokens: going on with half", num_items, longest)


def _attempt(run: Callable[[list[Item]], list[Result]], batch: list[Item]) -> list[Result] | None:
    """Return what ``run`` gives, or None where memory ran out; by then whatever the attempt held is free again."""
    import torch

    try:
        return run(batch)
    except (torch.OutOfMemoryError, DoesNotFit):  # the latter of a batch inside this one
        pass
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # how the CPU's allocator says it
            raise
    if torch.cuda.is_available():
        gc.collect()  # cycles that hold tensors
        torch.cuda.empty_cache()
    return None
