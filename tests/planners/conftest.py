"""What several tests of planners share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kgqa_core.run.ask import torch_threads
from tests.loading import write_bert

WORDS = """
    [PAD] [UNK] [CLS] [SEP] [MASK] ; itself a b c d by in of the did is it one two red blue green yellow year
    who what when where which person people directed wrote written starred acted actors made film films book
""".split()  # noqa: SIM905


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small products are slower on several threads, and much slower on a busy machine."""
    with torch_threads(1):
        yield


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of 2 layers that knows ``WORDS``."""
    sizes = {"hidden_size": 22, "intermediate_size": 31, "num_hidden_layers": 2, "max_position_embeddings": 19}
    return write_bert(tmp_path_factory.mktemp("models") / "tiny-bert", WORDS, seed=5, **sizes)
