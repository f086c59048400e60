"""What several tests of planners share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kgqa_core.run.ask import torch_threads

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
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=22,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=31,
        max_position_embeddings=19,
    )
    BertModel(config).save_pretrained(folder)
    BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)}).save_pretrained(folder)
    return folder
