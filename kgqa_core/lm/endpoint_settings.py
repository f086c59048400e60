"""How a model server is reached and asked."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from kgqa_core.errors import ConfigError, shorten


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """An OpenAI-compatible HTTP endpoint: vLLM, llama.cpp, Ollama and others."""

    url: str  # with its /v1: http://127.0.0.1:8000/v1
    model: str = ""  # as the server calls it; empty: the only one that it serves
    identity: str = ""  # stands for the url in the call cache, where a model moves between hosts; say its revision too
    key_variable: str = ""  # environment variable that holds the key; empty: the server wants none
    api: Literal["chat", "completions"] = "chat"  # completions: no chat template; the only one that can score
    choices: Literal["none", "structured_outputs", "guided_choice", "grammar"] = "none"
    # ^ how a constraint with finitely many texts is passed on: vLLM from 0.12, vLLM before, llama.cpp
    beams: bool = False  # does the server search with beams (vLLM's use_beam_search)?
    log_probs: bool = True  # ask for them
    context: int = 0  # tokens of prompt and answer together; 0: as the server tells, else DEFAULT_CONTEXT
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # OpenAI's newer models: the second
    extra: Mapping[str, Any] = field(default_factory=dict)  # added to each request: chat_template_kwargs, top_k
    concurrency: int = 8  # requests at a time
    attempts: int = 5  # per request, the first included
    first_wait: float = 0.5  # seconds before the second attempt, doubled before each further one, with jitter
    longest_wait: float = 60.0  # seconds; a server that asks for more is not waited for
    connect_timeout: float = 10.0  # seconds
    read_timeout: float = 120.0  # seconds of silence; an answer is silent until it is complete
    total_timeout: float = 600.0  # seconds per attempt, however slowly the bytes come
    seed: int = 0  # of the jitter

    def __post_init__(self) -> None:
        """Refuse what no server can be asked with; raises ConfigError."""
        _check_url(self.url)
        for name in ("concurrency", "attempts"):
            _check(self, name, getattr(self, name) >= 1, "at least 1")
        for name in ("connect_timeout", "read_timeout", "total_timeout"):
            _check(self, name, 0 < getattr(self, name) < math.inf, "more than 0 seconds")
        for name in ("first_wait", "longest_wait", "context"):
            _check(self, name, 0 <= getattr(self, name) < math.inf, "0 or more")
        own = {"model", "messages", "prompt", "stream", "n"}.intersection(self.extra)
        _check(self, "extra", not own, f"without {', '.join(sorted(own))}, which are set here")

    @property
    def base(self) -> str:
        """Return the url without a slash at its end."""
        return self.url.rstrip("/")


def read_key(settings: EndpointSettings) -> str:
    """Return the key from the environment, "" where none is wanted.

    Raises:
        ConfigError: the variable is not set, or holds what cannot stand in an HTTP header.
    """
    if not settings.key_variable:
        return ""
    key = os.environ.get(settings.key_variable, "").strip()
    if not key:
        raise ConfigError(
            f"lm.key_variable = {shorten(settings.key_variable)}: this environment variable is not set. Put the key of "
            f"{settings.base} there"
        )
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the key in {settings.key_variable} holds characters that no HTTP header can have")
    return key


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError(f"lm.url = {shorten(url)} is no address such as http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            "lm.url holds a user, a password, a query or a fragment. Put the key into an environment variable and its "
            "name into lm.key_variable"
        )


def _check(settings: EndpointSettings, name: str, holds: bool, legal: str) -> None:
    if not holds:
        raise ConfigError(f"lm.{name} = {shorten(getattr(settings, name))} must be {legal}")
