"""Counting tokens where the server does it: vLLM and llama.cpp each in their own way."""

from __future__ import annotations

import httpx

from kgqa_core.errors import EndpointError
from kgqa_core.lm.endpoint_http import Reply, Server
from kgqa_core.lm.endpoint_request import messages, plain_text
from kgqa_core.lm.endpoint_served import root_of
from kgqa_core.lm.types import Prompt

PROBE = Prompt("a few words")


async def find_counter(server: Server, client: httpx.AsyncClient, model: str) -> str:
    """Return who counts: "vllm", "llama.cpp", or "estimate" where the server does not."""
    for counter in ("vllm", "llama.cpp"):
        if await _ask(counter, server, client, PROBE, model):
            return counter
    return "estimate"


async def count_with(counter: str, server: Server, client: httpx.AsyncClient, prompt: Prompt, model: str) -> int:
    """Return the tokens of a prompt, chat template included.

    Raises:
        EndpointError: the server counted before, and does not any more. An estimate in its place would fit other
            prompts, and what the cache holds would be asked again.
    """
    count = await _ask(counter, server, client, prompt, model)
    if not count:
        raise EndpointError(f"{root_of(server)}/tokenize does not answer any more. Start the server and run again")
    return count


async def _ask(counter: str, server: Server, client: httpx.AsyncClient, prompt: Prompt, model: str) -> int:
    """Return the server's count; 0 where it gives none."""
    url, chat = f"{root_of(server)}/tokenize", server.settings.api == "chat"
    if counter == "vllm":
        what = {"messages": messages(prompt), "add_generation_prompt": True} if chat else {"prompt": plain_text(prompt)}
        return _whole(await server.post(client, url, {"model": model, **what}), "count")
    text = plain_text(prompt)
    if chat:
        filled = await server.post(client, f"{root_of(server)}/apply-template", {"messages": messages(prompt)})
        told = filled.content.get("prompt") if isinstance(filled.content, dict) else None
        text = told if isinstance(told, str) else text
    reply = await server.post(client, url, {"content": text, "add_special": True, "parse_special": True})
    tokens = reply.content.get("tokens") if isinstance(reply.content, dict) else None
    return len(tokens) if isinstance(tokens, list) else 0


def _whole(reply: Reply, name: str) -> int:
    value = reply.content.get(name) if isinstance(reply.content, dict) and not reply.problem else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
