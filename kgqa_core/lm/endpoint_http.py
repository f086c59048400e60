"""One request to a model server: attempts, waits, and what each kind of failure means."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import queue
import random
import re
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar

import httpx

from kgqa_core.errors import ConfigError, EndpointError, shorten
from kgqa_core.lm.types import EndpointLmSection, Problem

MAX_BYTES = 64 * 2**20  # of a reply; no answer is that long
MAX_SAID = 10_000  # characters of an error that are looked at
MAX_WARNINGS = 20  # different messages of one server that are logged
TOO_LONG = re.compile(
    r"context.{0,20}(length|size|window)|maximum.{0,20}(context|tokens|length)|(prompt|input|messages?).{0,40}too long"
    r"|too many tokens|exceed.{0,40}token|inputs.{0,40}must (be <=|have less)",  # the last of text-generation-inference
    re.IGNORECASE | re.DOTALL,
)
RETRIED = {408, 409, 425, 429, *range(500, 600)} - {501, 505}  # statuses that may go better the next time
PASSING = ("timeout", "rate_limit", "unreachable", "bad_response")  # problems that may
OUR_FIELDS = ("temperature", "top_p", "seed", "stop", "max_tokens", "max_completion_tokens", "use_beam_search",
              "logprobs", "top_logprobs", "echo", "structured_outputs", "guided_choice", "grammar")  # fmt: skip
UNEXPECTED = re.compile(r"Unexpected fields in the request: \{'(\w+)'")  # of ``transformers serve``
T = TypeVar("T")
R = TypeVar("R")
_log = logging.getLogger(__name__)


class Reply(NamedTuple):
    """What a request came to."""

    problem: Problem  # "": content is JSON of a good status
    content: object = None
    message: str = ""  # what the server, or the network, said
    status: int = 0  # 0: no reply
    retry_after: float = 0.0  # seconds that the server asked for


class Server:
    """One server: attempts, waits, and what each kind of failure means. The key is in no text that leaves here."""

    def __init__(self, section: EndpointLmSection) -> None:
        self._section, self._warned = section, set[str]()
        self._key = os.environ.get(section.key_variable, "").strip() if section.key_variable else ""
        if section.key_variable and not (self._key and self._key.isascii() and self._key.isprintable()):
            raise ConfigError(
                f"lm.key_variable = {shorten(section.key_variable)}: this environment variable is not set, or holds "
                f"characters that no HTTP header can have. Put the key of {section.url} there"
            )
        plain = section.url.startswith("http:")  # certificates are read once, which takes longer than a request
        self._trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else httpx.create_ssl_context()

    def each(self, items: Sequence[T], work: Callable[[httpx.AsyncClient, T], Awaitable[R]]) -> Iterator[R]:
        """Yield what ``work`` returns of each item as it comes, ``concurrency`` at a time; raise what it raises.

        The requests have an event loop in a thread of their own, so it does not matter whether the caller has one.
        A caller that stops early cancels them, and waits until they are gone.
        """
        section, left, emitted = self._section, iter(items), queue.SimpleQueue[tuple[bool, Any]]()  # (at the end?, …)

        async def worker(client: httpx.AsyncClient) -> None:
            for item in left:  # shared: each takes the next that nobody has
                emitted.put((False, await work(client, item)))

        async def run() -> None:
            client = httpx.AsyncClient(
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
                timeout=httpx.Timeout(section.read_timeout, connect=section.connect_timeout, pool=None),
                verify=self._trust,
                limits=httpx.Limits(max_connections=section.concurrency),
                follow_redirects=False,  # they would carry the key away
            )
            async with client, asyncio.TaskGroup() as group:
                for _ in range(min(section.concurrency, len(items))):
                    group.create_task(worker(client))

        loop = asyncio.new_event_loop()
        task = loop.create_task(run())

        def target() -> None:
            problem: BaseException | None = None
            try:
                loop.run_until_complete(task)
            except BaseException as raised:  # handed on to the caller's thread
                problem = raised.exceptions[0] if isinstance(raised, BaseExceptionGroup) else raised
            loop.close()
            emitted.put((True, problem))

        thread = threading.Thread(target=target, name="kgqa-requests", daemon=True)
        thread.start()
        try:
            while not (got := emitted.get())[0]:
                yield got[1]
            if got[1] is not None:
                raise got[1]
        finally:
            with contextlib.suppress(RuntimeError):  # it is over already
                loop.call_soon_threadsafe(task.cancel)
            thread.join()

    async def request(self, client: httpx.AsyncClient, path: str, body: dict[str, Any] | None = None) -> Reply:
        """POST ``body``, or GET where there is none, until it goes well, makes no sense, or the attempts are used up.

        ``path`` is below ``lm.url``, or a whole address. Raises EndpointError where no prompt could get a good reply.
        """
        section, url = self._section, path if "://" in path else self._section.url + path
        for attempt in range(1, section.attempts + 1):
            reply = await self._attempt(client, url, body)
            wait = min(section.first_wait * 2.0 ** min(attempt - 1, 99), section.longest_wait)
            wait = max(wait * random.uniform(0.5, 1), reply.retry_after)  # chance keeps clients apart
            if reply.problem not in PASSING or attempt == section.attempts or wait > section.longest_wait:
                break
            await asyncio.sleep(wait)
        if reply.problem and reply.message not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(reply.message)
            _log.warning("%s: %s (%s)", url, reply.problem, reply.message)
        return reply

    async def _attempt(self, client: httpx.AsyncClient, url: str, body: dict[str, Any] | None) -> Reply:
        begun, raw = False, bytearray()
        method, content = ("GET", None) if body is None else ("POST", json.dumps(body).encode("ascii"))
        try:
            async with (
                asyncio.timeout(self._section.total_timeout),
                client.stream(method, url, content=content, headers={"Content-Type": "application/json"}) as response,
            ):
                begun = True
                if "," in response.headers.get("content-encoding", ""):  # packed twice, a few kB unpack to gigabytes
                    return Reply("bad_response", message="a reply that is packed more than once")
                async for part in response.aiter_bytes():
                    raw += part
                    if len(raw) > MAX_BYTES:
                        return Reply("bad_response", message=f"a reply of more than {MAX_BYTES} bytes")
                if len(self._key) >= 12:  # some servers repeat it; a short one ("EMPTY") may be part of an answer
                    raw = raw.replace(self._key.encode(), b"***")
                return self._judge(response, bytes(raw))
        except httpx.ConnectTimeout:
            return Reply("unreachable", message=f"no connection within {self._section.connect_timeout:g} s")
        except (httpx.TimeoutException, TimeoutError):
            return Reply("timeout", message="no complete reply in time")
        except (httpx.TransportError, httpx.DecodingError) as problem:
            halfway = begun and isinstance(problem, httpx.DecodingError | httpx.RemoteProtocolError | httpx.ReadError)
            said = self._clean(str(problem)) if str(problem) else type(problem).__name__
            return Reply("bad_response" if halfway else "unreachable", message=said)

    def _judge(self, response: httpx.Response, raw: bytes) -> Reply:
        """Say what a complete reply means; raises EndpointError for a wrong key, address or parameter."""
        status, url, variable = response.status_code, self._section.url, self._section.key_variable
        try:
            content = json.loads(raw)
        except (ValueError, RecursionError):
            content = None
        if status == 200 and content is not None and not dig(content, "error"):  # some gateways say it so
            return Reply("", content, status=status)
        said, param, code = error_of(content)
        no_json = f"no JSON but {shorten(raw[:80].decode('utf-8', 'replace'))}"
        message = self._clean(f"HTTP {status}: {no_json if content is None else said}")
        if 200 <= status < 300:
            return Reply("bad_response", None, message, status)
        if status in (401, 402, 403) or (status == 429 and "insufficient_quota" in code):
            cure = f"Check the key in the environment variable {variable}"
            if not variable:
                cure = "No key was sent: name the environment variable that holds it in lm.key_variable"
            raise EndpointError(f"{url} refuses us: {message}. {cure}")
        if status in (300, 301, 302, 303, 307, 308, 405):
            target = self._clean(response.headers.get("location", ""))
            raise EndpointError(
                f"{url} is not the address of an OpenAI-compatible API: {message} {target}. Set lm.url to one that "
                "ends in /v1"
            )
        if status == 413 or (status in (400, 422, 500) and TOO_LONG.search(f"{said[:MAX_SAID]} {code[:MAX_SAID]}")):
            return Reply("too_long", content, message, status)
        if status in RETRIED:
            problem: Problem = "rate_limit" if status == 429 else "timeout" if status in (408, 504) else "bad_response"
            return Reply(problem, content, message, status, _retry_after(response.headers.get("retry-after", "")))
        if param.split(".")[0] in (*OUR_FIELDS, *self._section.extra):
            raise EndpointError(
                f"{url} does not take the parameter {self._clean(param)}: {message}. Legal ways around: lm.log_probs: "
                "false, lm.sampling: false, lm.limit_field, lm.choices: none, lm.beams: false, or another lm.extra"
            )
        return Reply("refused", content, message, status)

    def _clean(self, text: str) -> str:
        """Return a text of the server's for logs and errors: shortened, and without the key, should it repeat it."""
        return shorten(text.replace(self._key, "***") if self._key else text)


def _retry_after(value: str) -> float:
    """Return the seconds that a Retry-After header asks for, in either of its forms; 0 where it says nothing."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(ValueError, OverflowError):  # of a time zone that is none
        moment = parsedate_to_datetime(value)
        return max(0.0, moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - time.time())
    return 0.0


def error_of(content: object) -> tuple[str, str, str]:
    """Return the message of an error reply, the parameter that it names, and its code and type; "" where none."""
    error = content if dig(content, "error") is None else dig(content, "error")
    message = str(error if isinstance(error, str) else dig(error, "message") or dig(error, "detail") or "")
    told = [dig(error, "param"), dig(error, "detail", 0, "loc", 1)]  # the second of FastAPI: ["body", NAME, …]
    told += UNEXPECTED.findall(message)
    param = next((one for one in told if isinstance(one, str) and one), "")
    return message, param, f"{dig(error, 'code')} {dig(error, 'type')}"


def dig(content: Any, *path: str | int) -> Any:
    """Return what stands at ``path`` in any JSON; None where something else stands on the way."""
    for step in path:
        if isinstance(step, str):
            content = content.get(step) if isinstance(content, dict) else None
        else:
            content = content[step] if isinstance(content, list) and len(content) > step else None
    return content


def whole(value: object) -> int | None:
    """Return a number of things; None where it is none, or so large that a sum of them could not be stored."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
