"""Tiny language models with random weights, as ordinary transformers folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.lm.endpoint import Endpoint
from kgqa_core.lm.types import EndpointLmSection
from tests.lm.misbehaving import Open, Script, serving
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


@pytest.fixture
def server() -> Iterator[Script]:
    """A model server that does what it is told."""
    os.environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    with serving() as script:
        yield script


@pytest.fixture
def opened(server: Script) -> Open:
    """Return a function that opens the server, impatiently, with other settings."""

    def open_it(**settings: Any) -> Endpoint:
        impatient = {"first_wait": 0.01, "attempts": 3, "read_timeout": 20.0, "total_timeout": 30.0, "url": server.url}
        return Endpoint(EndpointLmSection(kind="endpoint", **{**impatient, **settings}))

    return open_it
