"""What a process keeps between two chunks of questions: one system, of the data that the chunk is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kgqa_core.config import RunConfig
from kgqa_core.run import compare as module
from kgqa_core.run.compare import cached_bench, close_bench


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Open nothing; tell what is opened and closed."""
    told: list[str] = []

    @contextmanager
    def open_nothing(pipeline: Any, key: str) -> Iterator[object]:
        told.append(f"open {key}")
        yield object()
        told.append(f"close {key}")

    monkeypatch.setattr(module, "open_bench", open_nothing)
    monkeypatch.setattr(module, "read_asked", lambda pipeline: [])
    yield told
    close_bench()


def test_a_system_is_opened_once_per_data_and_closed_before_the_next(tiny_config: RunConfig, told: list[str]) -> None:
    config = tiny_config.model_dump_json()
    first = cached_bench(config, "tog", "f1")
    assert cached_bench(config, "tog", "f1") == first
    assert told == ["open tog"]
    cached_bench(config, "cot", "f2")
    assert told == ["open tog", "close tog", "open cot"]
    old, _ = cached_bench(config, "tog", "of the old graph")
    new, _ = cached_bench(config, "tog", "of the new graph")  # in a worker that outlives the run
    assert old is not new
    close_bench()
    close_bench()
    assert told[3:] == ["close cot", *["open tog", "close tog"] * 2]


def test_what_cannot_be_opened_is_not_kept(
    tiny_config: RunConfig, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pipeline: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(module, "read_asked", fail)
        with pytest.raises(ZeroDivisionError):
            cached_bench(tiny_config.model_dump_json(), "tog", "f1")
    cached_bench(tiny_config.model_dump_json(), "tog", "f1")
    assert told.count("open tog") == 2
