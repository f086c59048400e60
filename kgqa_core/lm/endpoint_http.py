"""One request to a model server: attempts, waits, and what each kind of failure means."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import ssl
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from kgqa_core.errors import EndpointError, shorten
from kgqa_core.lm.endpoint_reply import code_of, message_of
from kgqa_core.lm.endpoint_settings import EndpointSettings
from kgqa_core.lm.types import Problem

MAX_BYTES = 64 * 2**20  # of a reply; no answer is that long
TOO_LONG = re.compile(
    r"context.{0,20}(length|size|window)|maximum.{0,20}(context|tokens|length)|(prompt|input|messages?).{0,40}too long"
    r"|too many tokens|exceed.{0,40}token",
    re.IGNORECASE | re.DOTALL,
)
RETRIED = frozenset({408, 409, 425, 429, *range(500, 600)} - {501, 505})
TIMED_OUT = frozenset({408, 504})
OUR_FIELDS = (
    "seed",
    "logprobs",
    "top_logprobs",
    "top_p",
    "temperature",
    "stop",
    "max_tokens",
    "use_beam_search",
    "echo",
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request came to."""

    problem: Problem  # "": content is JSON of a good status
    content: object = None
    message: str = ""  # what the server, or the network, said
    status: int = 0  # 0: no reply
    retry_after: float = 0.0  # seconds that the server asked for

    @property
    def again(self) -> bool:
        """Return whether another attempt may go better."""
        return self.problem in ("timeout", "rate_limit", "unreachable", "bad_response")


@dataclass(slots=True)
class Server:
    """A server as one process sees it. The key is in no text that leaves here."""

    settings: EndpointSettings
    key: str = field(repr=False)
    traffic: Counter[str] = field(default_factory=Counter)  # requests, retries, and replies by problem
    _warned: set[str] = field(default_factory=set)
    _context: ssl.SSLContext | None = None

    def client(self) -> httpx.AsyncClient:
        """Return a client with our timeouts and headers; redirects would carry the key away: none is followed."""
        settings = self.settings
        return httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
            timeout=httpx.Timeout(
                settings.read_timeout, connect=settings.connect_timeout, write=settings.read_timeout, pool=None
            ),
            verify=self._trust(),
            limits=httpx.Limits(max_connections=settings.concurrency),
            follow_redirects=False,
        )

    def _trust(self) -> ssl.SSLContext:
        """Return whose certificates count, read once: it takes longer than a request. Plain HTTP needs none."""
        if self._context is None:
            plain = self.settings.url.startswith("http:")
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else httpx.create_ssl_context()
        return self._context

    async def get(self, client: httpx.AsyncClient, url: str) -> Reply:
        """Return the reply to a GET."""
        return await self._request(client, "GET", url, None)

    async def post(self, client: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> Reply:
        """Return the reply to a POST of JSON."""
        return await self._request(client, "POST", url, json.dumps(body).encode("ascii"))

    async def _request(self, client: httpx.AsyncClient, method: str, url: str, body: bytes | None) -> Reply:
        """Try until it goes well, makes no sense to go on, or the attempts are used up."""
        number = self.traffic["requests"]
        self.traffic["requests"] += 1
        for attempt in range(1, self.settings.attempts + 1):
            reply = await self._attempt(client, method, url, body)
            self.traffic[reply.problem or "good"] += 1
            wait = self._wait(reply, number, attempt)
            if not reply.again or attempt == self.settings.attempts or wait > self.settings.longest_wait:
                break
            self.traffic["retries"] += 1
            await asyncio.sleep(wait)
        if reply.problem and reply.message not in self._warned and len(self._warned) < 20:
            self._warned.add(reply.message)
            _log.warning("%s: %s (%s)", url, reply.problem, reply.message)
        return reply

    def _wait(self, reply: Reply, number: int, attempt: int) -> float:
        """Return the seconds before the next attempt: doubled each time, half of it chance, at least as asked for."""
        chance = random.Random(f"{self.settings.seed}:{number}:{attempt}").random()
        wait: float = min(self.settings.first_wait * 2.0 ** (attempt - 1), self.settings.longest_wait)
        return max(wait * (0.5 + chance / 2), reply.retry_after)

    async def _attempt(self, client: httpx.AsyncClient, method: str, url: str, body: bytes | None) -> Reply:
        begun = False
        try:
            async with (
                asyncio.timeout(self.settings.total_timeout),
                client.stream(method, url, content=body, headers={"Content-Type": "application/json"}) as response,
            ):
                begun = True
                raw = bytearray()
                async for part in response.aiter_bytes():
                    raw += part
                    if len(raw) > MAX_BYTES:
                        return Reply(
                            "bad_response", None, f"a reply of more than {MAX_BYTES} bytes", response.status_code
                        )
                return self._judge(response, bytes(raw))
        except httpx.ConnectTimeout:
            return Reply("unreachable", None, f"no connection within {self.settings.connect_timeout:g} s")
        except (httpx.TimeoutException, TimeoutError):
            return Reply("timeout", None, "no complete reply in time")
        except (httpx.DecodingError, httpx.RemoteProtocolError, httpx.ReadError) as problem:
            said = self.clean(str(problem)) or type(problem).__name__
            return Reply("bad_response" if begun else "unreachable", None, said)
        except httpx.TransportError as problem:
            return Reply("unreachable", None, self.clean(str(problem)) or type(problem).__name__)

    def _judge(self, response: httpx.Response, raw: bytes) -> Reply:
        """Say what a complete reply means.

        Raises:
            EndpointError: no prompt could get a good reply: a wrong key or address, a parameter that is not taken.
        """
        status = response.status_code
        try:
            content = json.loads(raw)
        except (ValueError, RecursionError):
            content = None
        if status == 200 and content is not None:
            return Reply("", content, status=status)
        said, param = message_of(content)
        if content is None:
            said = f"no JSON but {shorten(raw[:80].decode('utf-8', 'replace'))}"
        message = self.clean(f"HTTP {status}: {said}")
        if 200 <= status < 300:
            return Reply("bad_response", None, message, status)
        if status in (401, 403) or (status == 429 and "insufficient_quota" in code_of(content)):
            raise EndpointError(f"{self.settings.base} refuses us: {message}. {self._about_key()}")
        if status in (300, 301, 302, 303, 307, 308, 405):
            target = response.headers.get("location", "")
            raise EndpointError(
                f"{self.settings.base} is not the address of an OpenAI-compatible API: {message} {self.clean(target)}. "
                "Set lm.url to one that ends in /v1"
            )
        if status == 413 or (status in (400, 422, 500) and TOO_LONG.search(f"{said} {code_of(content)}")):
            return Reply("too_long", content, message, status)
        if status in RETRIED:
            problem: Problem = "rate_limit" if status == 429 else "timeout" if status in TIMED_OUT else "bad_response"
            return Reply(problem, content, message, status, _retry_after(response.headers.get("retry-after", "")))
        if any(param == name or param.startswith(f"{name}.") for name in (*OUR_FIELDS, *self.settings.extra)):
            raise EndpointError(
                f"{self.settings.base} does not take the parameter {shorten(param)}: {message}. Legal ways around: "
                "lm.log_probs: false, lm.limit_field, lm.choices: none, lm.beams: false, or another lm.extra"
            )
        return Reply("refused", content, message, status)

    def _about_key(self) -> str:
        variable = self.settings.key_variable
        if not variable:
            return "No key was sent: name the environment variable that holds it in lm.key_variable"
        return f"Check the key in the environment variable {variable}"

    def clean(self, text: str) -> str:
        """Return a text of the server's for logs and errors: shortened, and without the key, should it repeat it."""
        return shorten(text.replace(self.key, "***") if self.key else text)


def _retry_after(value: str) -> float:
    """Return the seconds that a Retry-After header asks for, in either of its forms; 0 where it says nothing."""
    try:
        return max(0.0, float(value)) if value else 0.0
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
