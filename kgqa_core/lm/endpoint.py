"""A model behind an OpenAI-compatible HTTP endpoint, as a LanguageModel."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import httpx

from kgqa_core.errors import ConfigError, EndpointError, shorten
from kgqa_core.lm.answers import Answer
from kgqa_core.lm.call_key import later_seed
from kgqa_core.lm.endpoint_http import Reply, Server
from kgqa_core.lm.endpoint_reply import estimate_tokens, read_completion, read_echo
from kgqa_core.lm.endpoint_request import choice_fields, decoding_fields, messages, plain_text
from kgqa_core.lm.endpoint_served import Served, ask_served
from kgqa_core.lm.endpoint_settings import EndpointSettings, read_key
from kgqa_core.lm.endpoint_tokens import count_with, find_counter
from kgqa_core.lm.threads import iterate
from kgqa_core.lm.types import GREEDY, Decoding, Generation, Problem, Prompt

REMEMBERED = 100_000  # token counts
T = TypeVar("T")
R = TypeVar("R")
_log = logging.getLogger(__name__)


def open_endpoint(settings: EndpointSettings) -> Endpoint:
    """Return the model behind an endpoint.

    The server is asked first when something needs it: with ``model`` and ``identity`` given, a run whose calls are all
    in the cache needs no server.

    Raises:
        ConfigError: the environment variable with the key is not set.
    """
    return Endpoint(Server(settings, read_key(settings)))


class Endpoint:
    """Implements LanguageModel and StreamingModel.

    What one prompt cannot get is told in ``Generation.problem``. EndpointError is raised where no prompt can get
    anything: nobody answers, the key is refused, the model is not served, a parameter is not taken.
    """

    def __init__(self, server: Server) -> None:
        self._server, self._settings = server, server.settings
        self._served_model: Served | None = None
        self._counter: str | None = None
        self._counts: dict[tuple[str, str], int] = {}

    @property
    def name(self) -> str:
        """Return the identity: where, which model, and the settings that shape its texts."""
        settings = self._settings
        model = settings.model if settings.model and settings.identity else self._served().name
        shape = [settings.api, settings.choices, dict(settings.extra)]
        digest = hashlib.sha256(json.dumps(shape, sort_keys=True, default=repr).encode()).hexdigest()[:8]
        return f"endpoint {settings.identity or settings.base} {model} {settings.api}-{digest}"

    @property
    def model(self) -> str:
        """Return the model's id, which prices go by."""
        return self._settings.model or self._served().model

    @property
    def context(self) -> int:
        """Return how many tokens prompt and answer may have together, as set or as the server tells."""
        return self._settings.context or self._served().context

    @property
    def traffic(self) -> Counter[str]:
        """Return how many requests and retries there were, and how many replies by problem ("good" where none)."""
        return self._server.traffic

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return the tokens of each prompt, where the server counts them (vLLM, llama.cpp); else rather too many."""
        if len(self._counts) > REMEMBERED:
            self._counts.clear()
        new = {(prompt.system, prompt.text): prompt for prompt in prompts}
        missing = [prompt for key, prompt in new.items() if key not in self._counts]
        if missing:
            counter = self._find_counter()
            if counter == "estimate":
                counts = [estimate_tokens(plain_text(prompt)) for prompt in missing]
            else:
                model = self.model

                async def count(client: httpx.AsyncClient, index: int, prompt: Prompt) -> tuple[int, int]:
                    return index, await count_with(counter, self._server, client, prompt, model)

                counts = [number for _, number in sorted(self._each(missing, count))]
            self._counts.update({(p.system, p.text): n for p, n in zip(missing, counts, strict=True)})
        return [self._counts[prompt.system, prompt.text] for prompt in prompts]

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt; beams only where the settings say that the server has them."""
        answers = {answer.index: answer.generations for answer in self.stream(prompts, decoding)}
        return [answers[index] for index in range(len(prompts))]

    def stream(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> Iterator[Answer]:
        """Yield the answers as they come, ``concurrency`` requests at a time.

        Raises:
            ConfigError: beams of a server that has none.
            EndpointError: no prompt can get anything, or so many in a row could not reach the server; what was yielded
                before stays good.
        """
        searches = decoding.method != "sample" and max(decoding.num_returns, decoding.num_beams) > 1
        if searches and not self._settings.beams:
            raise ConfigError(
                f"{decoding.num_returns} texts by beam search from {self._settings.base}: most servers only draw "
                "samples. Set the decoding method to sample, or lm.beams: true where the server is vLLM"
            )
        if not prompts:
            return
        model = self._check_served()
        streak = 0

        async def ask(client: httpx.AsyncClient, index: int, prompt: Prompt) -> Answer:
            nonlocal streak
            begun = time.perf_counter()
            generations, size = await self._ask(client, model, prompt, decoding)
            lost = all(generation.problem == "unreachable" for generation in generations)
            streak = streak + 1 if lost else 0
            if streak >= min(len(prompts), self._settings.concurrency):
                await self._check_alive(client)
                streak = 0
            return Answer(index, generations, size, time.perf_counter() - begun)

        yield from self._each(prompts, ask)

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-likelihood of each option after its prompt, end token left out; -inf where it failed.

        Every text is sent once as prompt + option and once as the prompt alone, and the difference counts (vLLM's
        ``echo`` with ``logprobs`` on ``/completions``).

        Raises:
            EndpointError: the chat API, or a server that does not tell the log-probabilities of given texts.
        """
        if self._settings.api != "completions":
            raise EndpointError(
                f"{self._settings.base}: the chat API cannot tell the log-likelihood of given texts. Set lm.api: "
                "completions where the server is vLLM, or use a local model"
            )
        texts = [plain_text(prompt) for prompt in prompts]
        wanted = list(dict.fromkeys([*texts, *(t + o for t, own in zip(texts, options, strict=True) for o in own)]))
        wanted = [text for text in wanted if text]
        model = self._check_served() if wanted else ""

        async def weigh(client: httpx.AsyncClient, index: int, text: str) -> tuple[int, float]:
            return index, await self._weigh(client, model, text)

        totals = {"": 0.0} | {wanted[index]: total for index, total in self._each(wanted, weigh)}
        return [
            [_difference(totals[text + option], totals[text]) for option in own]
            for text, own in zip(texts, options, strict=True)
        ]

    async def _ask(
        self, client: httpx.AsyncClient, model: str, prompt: Prompt, decoding: Decoding
    ) -> tuple[list[Generation], int]:
        """Return ``num_returns`` texts or problems, and the tokens read; asks again where too few texts come."""
        settings, wanted = self._settings, decoding.num_returns
        base: dict[str, Any] = {**settings.extra, "model": model, **choice_fields(prompt.constraint, settings.choices)}
        if settings.api == "chat":
            path, base["messages"] = "/chat/completions", messages(prompt)
        else:
            path, base["prompt"] = "/completions", plain_text(prompt)
        got: list[Generation] = []
        size = 0
        while len(got) < wanted:
            seed = later_seed(decoding.seed, len(got))
            body = base | decoding_fields(decoding, settings, number=wanted - len(got), seed=seed)
            reply = await self._server.post(client, settings.base + path, body)
            await self._check_found(client, reply)
            completion = None if reply.problem else read_completion(reply.content, decoding.stop)
            if completion is None:
                problem: Problem = reply.problem or "bad_response"
                return got + [Generation("", problem=problem)] * (wanted - len(got)), size
            told = completion.num_prompt_tokens
            size += estimate_tokens(plain_text(prompt)) if told is None else told
            got += completion.generations
        return got[:wanted], size

    async def _weigh(self, client: httpx.AsyncClient, model: str, text: str) -> float:
        """Return the log-likelihood of ``text``, its first token left out; minus infinity where it failed."""
        body = {
            **self._settings.extra,
            "model": model,
            "prompt": text,
            "echo": True,
            "logprobs": 1,
            "max_tokens": 1,  # vLLM had versions that refuse 0
            "temperature": 0,
        }
        reply = await self._server.post(client, f"{self._settings.base}/completions", body)
        await self._check_found(client, reply)
        if reply.problem:
            return float("-inf")
        total = read_echo(reply.content)
        if total is None:
            raise EndpointError(
                f"{self._settings.base} does not tell the log-probabilities of given texts (echo with logprobs on "
                "/completions, as vLLM does). Use another server, or a local model"
            )
        return total

    def _each(self, items: Sequence[T], work: Callable[[httpx.AsyncClient, int, T], Awaitable[R]]) -> Iterator[R]:
        """Yield what ``work`` returns of each item as it comes, ``concurrency`` at a time."""

        async def run(emit: Callable[[R], None]) -> None:
            left = iter(enumerate(items))

            async def worker(client: httpx.AsyncClient) -> None:
                for index, item in left:  # shared: each takes the next that nobody has
                    emit(await work(client, index, item))

            try:
                async with self._server.client() as client, asyncio.TaskGroup() as group:
                    for _ in range(min(self._settings.concurrency, len(items))):
                        group.create_task(worker(client))
            except BaseExceptionGroup as problems:
                raise problems.exceptions[0] from None

        return iterate(run)

    def _served(self) -> Served:
        """Ask the server, once, what it serves."""
        if self._served_model is None:
            self._served_model = next(self._each([None], lambda client, *_: ask_served(self._server, client)))
        return self._served_model

    def _check_served(self) -> str:
        return self._settings.model or self._served().model

    def _find_counter(self) -> str:
        if self._counter is None:
            model = self.model
            self._counter = next(self._each([None], lambda client, *_: find_counter(self._server, client, model)))
            if self._counter == "estimate":
                _log.warning("%s does not count tokens; they are estimated, rather too many", self._settings.base)
        return self._counter

    async def _check_alive(self, client: httpx.AsyncClient) -> None:
        """Raise EndpointError where the server is gone, and not only closes the connection on some prompts."""
        if (await self._server.get(client, f"{self._settings.base}/models")).problem == "unreachable":
            raise EndpointError(
                f"{self._settings.base} cannot be reached any more. Start the server and run again: answers that are "
                "in the call cache are not asked for twice"
            )

    async def _check_found(self, client: httpx.AsyncClient, reply: Reply) -> None:
        """Raise EndpointError where there is no such model, or no such API."""
        if reply.status != 404:
            return
        served = await ask_served(self._server, client)  # which says so where it is the model
        raise EndpointError(
            f"{self._settings.base} does not have the API {self._settings.api} for {shorten(served.model)}: "
            f"{reply.message}. Set lm.api to the other one. Served: {', '.join(served.ids) or 'not told'}"
        )


def _difference(whole: float, part: float) -> float:
    return whole - part if whole > float("-inf") and part > float("-inf") else float("-inf")
