"""Tiny language models with random weights, as ordinary transformers folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lm.tiny_models import CHATML, LLAMA_2, make_examples, make_gpt2, make_llama, make_qwen2, write_examples


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama without chat template: SentencePiece-like tokens, which put a blank before a text."""
    return make_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def llama_chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a template that knows no system turn."""
    return make_llama(tmp_path_factory.mktemp("models") / "llama-chat", template=LLAMA_2)


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 with a chat template: byte-level tokens, two tokens that end a text."""
    return make_qwen2(tmp_path_factory.mktemp("models") / "qwen2", template=CHATML)


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2: learned positions, one token that begins and ends a text."""
    return make_gpt2(tmp_path_factory.mktemp("models") / "gpt2")


@pytest.fixture(scope="session", params=["llama", "qwen2", "gpt2"])
def any_model(request: pytest.FixtureRequest) -> Any:
    """Each of the architectures."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def instructions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of instruction data."""
    return write_examples(tmp_path_factory.mktemp("instructions") / "instructions.parquet", make_examples())
