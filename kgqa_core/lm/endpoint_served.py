"""Which model a server serves, and how much it can read."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import httpx

from kgqa_core.errors import EndpointError, nearest, shorten
from kgqa_core.lm.endpoint_http import Reply, Server

DEFAULT_CONTEXT = 4096  # tokens, where nobody says: what Ollama gives
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Served:
    """The model that is asked."""

    model: str  # its id
    name: str  # id and what the server says that it is made of
    context: int  # tokens of prompt and answer together
    ids: tuple[str, ...]  # of all models there; empty: the server has no list


async def ask_served(server: Server, client: httpx.AsyncClient) -> Served:
    """Ask ``/models``.

    Raises:
        EndpointError: nobody answers, or not as such an API does; the model is not served; none is named and there are
            several.
    """
    settings = server.settings
    reply = await server.get(client, f"{settings.base}/models")
    if reply.status == 404 and settings.model and not _is_page(reply):
        return Served(settings.model, settings.model, DEFAULT_CONTEXT, ())
    entries = _entries(reply.content)
    if reply.problem or entries is None:
        raise EndpointError(
            f"{settings.base}/models: {reply.problem or 'not a list of models'} ({reply.message or 'HTTP 200'}). Is "
            "the server running, and does lm.url end in /v1 as it should? (With lm.model, lm.identity and lm.context "
            "set it need not list its models.)"
        )
    ids = tuple(str(entry["id"]) for entry in entries)
    if not settings.model and len(ids) == 1:
        chosen = entries[0]
    elif settings.model in ids:
        chosen = entries[ids.index(settings.model)]
    else:
        near = nearest(settings.model, ids) or [one for one in ids if one.split(":")[0] == settings.model]
        hint = f"; did you mean {near[0]}?" if near else ""
        raise EndpointError(
            f"lm.model = {shorten(settings.model)} is not served by {settings.base}. Served: "
            f"{shorten(', '.join(ids)) if ids else 'nothing'}{hint}"
        )
    return Served(str(chosen["id"]), _name(chosen), await _context(server, client, chosen), ids)


async def _context(server: Server, client: httpx.AsyncClient, entry: dict[str, Any]) -> int:
    """Return what the server says of the context: vLLM in its list, llama.cpp in ``/props``."""
    told = entry.get("max_model_len")
    if told is None and entry.get("owned_by") == "llamacpp":
        props = (await server.get(client, f"{root_of(server)}/props")).content
        defaults = props.get("default_generation_settings") if isinstance(props, dict) else None
        told = defaults.get("n_ctx") if isinstance(defaults, dict) else None
    if isinstance(told, int) and not isinstance(told, bool) and told > 0:
        return told
    if not server.settings.context:
        _log.warning(
            "%s does not say how many tokens it takes; %d are assumed: set lm.context",
            server.settings.base,
            DEFAULT_CONTEXT,
        )
    return DEFAULT_CONTEXT


def root_of(server: Server) -> str:
    """Return the address above ``/v1``, where servers keep what is their own."""
    return server.settings.base.removesuffix("/v1")


def _entries(content: object) -> list[dict[str, Any]] | None:
    data = content.get("data") if isinstance(content, dict) else None
    if not isinstance(data, list):
        return None
    return [entry for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _name(entry: dict[str, Any]) -> str:
    """Return id, weights and, for an adapter, base: what vLLM tells as ``root`` and ``parent``."""
    parts = [entry["id"], entry.get("root"), entry.get("parent")]
    return " ".join(dict.fromkeys(part for part in parts if isinstance(part, str) and part))


def _is_page(reply: Reply) -> bool:
    return reply.content is None
