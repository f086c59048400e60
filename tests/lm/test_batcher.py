"""Batches as large as memory holds: halved where they do not fit, and what did not fit is remembered."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from kgqa_core.errors import KgqaError
from kgqa_core.lm.generate import Batcher
from kgqa_core.lm.local import open_local
from kgqa_core.lm.types import Decoding, Prompt


class Memory:
    """Holds so many cells; a batch takes rows x its longest."""

    def __init__(self, cells: int) -> None:
        self.cells, self.num_failed = cells, 0
        self.batches: list[list[int]] = []  # that fitted

    def run(self, batch: list[int]) -> list[str]:
        if len(batch) * max(batch) > self.cells:
            self.num_failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.batches.append(batch)
        return [f"<{length}>" for length in batch]


LENGTHS = [3, 100, 5, 90, 4, 80, 2, 70]


@pytest.mark.parametrize(
    ("cells", "size", "width", "batches", "num_failed"),
    [
        (10**6, 3, 1, [[100, 90, 80], [70, 5, 4], [3, 2]], 0),  # the longest go first
        (200, 8, 1, [[100, 90], [80, 70], [5, 4, 3, 2]], 2),  # halved until they fit; short rows stay many
        (10**6, 6, 3, [[100, 90], [80, 70], [5, 4], [3, 2]], 0),  # beams count as rows
        (10**6, 2, 3, [[length] for length in (100, 90, 80, 70, 5, 4, 3, 2)], 0),
    ],
)
def test_batches_are_as_large_as_memory_holds_and_results_in_the_order_of_the_items(
    cells: int, size: int, width: int, batches: list[list[int]], num_failed: int
) -> None:
    memory, batcher = Memory(cells), Batcher(size)
    for _ in range(2):  # what did not fit is remembered
        assert batcher.map(LENGTHS, LENGTHS, memory.run, width=width) == [f"<{length}>" for length in LENGTHS]
    assert (memory.batches[: len(batches)], memory.num_failed) == (batches, num_failed)


def test_one_prompt_that_does_not_fit_is_an_error_and_other_errors_pass() -> None:
    with pytest.raises(KgqaError, match="single prompt of 100 tokens"):
        Batcher(8).map(LENGTHS, LENGTHS, Memory(50).run)
    with pytest.raises(RuntimeError, match="division"):
        Batcher(8).map(LENGTHS, LENGTHS, lambda batch: (_ for _ in ()).throw(RuntimeError("division")))


def test_generation_and_scores_survive_a_small_memory(qwen2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [Prompt("film " * number) for number in range(1, 12)]
    options = [["drama", "Heat", "Michael Mann", "x"]] * len(prompts)
    decoding = Decoding(max_new_tokens=5, method="beam", num_beams=2)
    model = open_local(qwen2)
    expected = [texts[0].text for texts in model.generate(prompts, decoding)], model.score(prompts, options)
    forward, failures = model.model.forward, []

    def short_of_memory(*args: Any, **kwargs: Any) -> Any:
        if kwargs["attention_mask"].numel() > 100:
            failures.append(kwargs["attention_mask"].shape)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(*args, **kwargs)

    short_of_memory.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(model.model, "forward", short_of_memory)
    assert [texts[0].text for texts in model.generate(prompts, decoding)] == expected[0]
    for scores, known in zip(model.score(prompts, options), expected[1], strict=True):
        assert scores == pytest.approx(known, abs=1e-4)
    assert failures
