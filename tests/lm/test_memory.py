"""When memory runs out, batches get smaller and the results stay the same."""

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
        self.cells = cells
        self.batches: list[list[int]] = []  # that fitted
        self.num_failed = 0

    def run(self, batch: list[int]) -> list[str]:
        if len(batch) * max(batch) > self.cells:
            self.num_failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.batches.append(batch)
        return [f"<{length}>" for length in batch]


LENGTHS = [3, 100, 5, 90, 4, 80, 2, 70]


def test_results_come_in_the_order_of_the_items_and_the_longest_go_first() -> None:
    memory = Memory(10**6)
    assert Batcher(3).map(LENGTHS, LENGTHS, memory.run) == [f"<{length}>" for length in LENGTHS]
    assert memory.batches == [[100, 90, 80], [70, 5, 4], [3, 2]]


def test_batches_are_halved_until_they_fit_and_short_rows_stay_many() -> None:
    memory = Memory(200)
    assert Batcher(8).map(LENGTHS, LENGTHS, memory.run) == [f"<{length}>" for length in LENGTHS]
    assert memory.batches == [[100, 90], [80, 70], [5, 4, 3, 2]]
    assert memory.num_failed == 2


def test_what_did_not_fit_is_remembered() -> None:
    memory, batcher = Memory(200), Batcher(8)
    batcher.map(LENGTHS, LENGTHS, memory.run)
    batcher.map(LENGTHS, LENGTHS, memory.run)
    assert memory.num_failed == 2


def test_beams_count_as_rows() -> None:
    memory = Memory(10**6)
    Batcher(6).map(LENGTHS, LENGTHS, memory.run, width=3)
    assert [len(batch) for batch in memory.batches] == [2, 2, 2, 2]
    Batcher(2).map(LENGTHS, LENGTHS, memory.run, width=3)
    assert len(memory.batches[-1]) == 1


def test_one_prompt_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(KgqaError, match="single prompt of 100 tokens"):
        Batcher(8).map(LENGTHS, LENGTHS, Memory(50).run)


def test_other_errors_pass() -> None:
    def fail(batch: list[int]) -> list[str]:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        Batcher(8).map(LENGTHS, LENGTHS, fail)


def test_generation_and_scores_survive_a_small_memory(qwen2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [Prompt("film " * number) for number in range(1, 12)]
    options = [["drama", "Heat", "Michael Mann", "x"]] * len(prompts)
    decoding = Decoding(max_new_tokens=5, method="beam", num_beams=2)
    roomy = open_local(qwen2)
    expected = [texts[0].text for texts in roomy.generate(prompts, decoding)], roomy.score(prompts, options)
    model = open_local(qwen2)
    forward = model.model.forward
    failures = []

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
