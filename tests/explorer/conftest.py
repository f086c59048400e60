"""What the explorer's tests share."""

from collections.abc import Iterator

import pytest

from kgqa_core.run.ask import torch_threads


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Let torch have one thread, as by default: with tensors this small, a second one only waits."""
    with torch_threads(1):
        yield
