"""An OpenAI-compatible HTTP endpoint: vLLM, llama.cpp, Ollama and others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from kgqa_core.config_base import ModelSection
from kgqa_core.errors import ConfigError, shorten
from kgqa_core.lm.backends import Machine, Weights

if TYPE_CHECKING:
    from kgqa_core.lm.types import LanguageModel

ANSWERS = {"kind", "model", "identity", "api", "choices", "beams", "context", "extra"}
"""Settings of an endpoint that may change what it says; the others are about how it is reached."""


def _address(url: str) -> str:
    """Return the address of a server without a slash at its end.

    Raises:
        ConfigError: a part of it may be a secret, which pydantic's own error would repeat; or it is no address.
    """
    if any(sign in url for sign in "@?#"):
        raise ConfigError(
            "lm.url holds a user, a password, a query or a fragment. Put the key into an environment variable and its "
            "name into lm.key_variable"
        )
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError(f"lm.url = {shorten(url)} is no address such as http://127.0.0.1:8000/v1")
    return url.rstrip("/")


def _additions(extra: dict[str, Any]) -> dict[str, Any]:
    own = {"model", "messages", "prompt", "stream", "n"}.intersection(extra)
    if own:
        raise ValueError(f"must be without {', '.join(sorted(own))}, which are set here")
    return extra


class EndpointLmSection(ModelSection):
    """An OpenAI-compatible HTTP endpoint: vLLM, llama.cpp, Ollama and others."""

    kind: Literal["endpoint"]
    url: Annotated[str, AfterValidator(_address)]  # with its /v1: http://127.0.0.1:8000/v1
    model: str = ""  # as the server calls it; empty: the only one that it serves
    identity: str = ""  # stands for the url in the call store, where a model moves between hosts; say its revision too
    key_variable: str = ""  # environment variable that holds the key; empty: the server wants none
    api: Literal["chat", "completions"] = "chat"  # completions: no chat template; the only one that can score
    choices: Literal["none", "structured_outputs", "guided_choice", "grammar"] = "none"  # how constraints are passed on
    beams: bool = False  # does the server search with beams (vLLM's use_beam_search)?
    log_probs: bool = True  # ask for them
    context: Annotated[int, Field(ge=0)] = 0  # tokens of prompt and answer; 0: as the server tells
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra: Annotated[dict[str, Any], AfterValidator(_additions)] = Field(default_factory=dict)
    # ^ added to each request: chat_template_kwargs, top_k
    concurrency: Annotated[int, Field(ge=1)] = 8  # requests at a time
    attempts: Annotated[int, Field(ge=1)] = 5  # per request, the first included
    first_wait: Annotated[float, Field(ge=0)] = (
        0.5  # seconds before the second attempt, doubled before each further one
    )
    longest_wait: Annotated[float, Field(ge=0)] = 60.0  # seconds; a server that asks for more is not waited for
    connect_timeout: Annotated[float, Field(gt=0)] = 10.0  # seconds
    read_timeout: Annotated[float, Field(gt=0)] = 120.0  # seconds of silence
    total_timeout: Annotated[float, Field(gt=0)] = 600.0  # seconds per attempt, however slowly the bytes come


class Served:
    """Asks it over HTTP."""

    section = EndpointLmSection
    is_made_here = False
    is_tunable = False

    def recipe(self, section: EndpointLmSection) -> dict[str, Any]:
        """Return what may change what it says; how it is reached does not."""
        return section.model_dump(mode="json", include=ANSWERS)

    def weights(self, section: EndpointLmSection, made: Path | None) -> None:
        """Return None: it is elsewhere."""

    def open(self, section: EndpointLmSection, weights: Weights | None, machine: Machine) -> LanguageModel:
        """Connect to it."""
        from kgqa_core.lm.endpoint import Endpoint

        return Endpoint(section)

    def facts(self, section: EndpointLmSection, weights: Weights | None, machine: Machine) -> dict[str, Any]:
        """Ask what it serves."""
        from kgqa_core.lm.endpoint import Endpoint

        model = Endpoint(section)
        return {"kind": section.kind, "url": section.url, "served": model.model, "context": model.context}

    def price_name(self, section: EndpointLmSection) -> str:
        """Return the model's name."""
        return section.model


BACKEND = Served()
