"""A language model behind an OpenAI-compatible HTTP endpoint: vLLM, llama.cpp, Ollama and hosted ones.

A prompt passes ``Endpoint.stream``, ``Endpoint._ask`` (what is sent), ``Server.request`` (attempts and waits),
``Server._judge`` (what a status means) and ``read_completion`` (what the server said).
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import httpx

from kgqa_core.errors import EndpointError, UnableError, nearest, shorten
from kgqa_core.lm.call_store import later_seed
from kgqa_core.lm.constraints import finite_texts
from kgqa_core.lm.endpoint_http import Reply, Server, dig, error_of, whole
from kgqa_core.lm.types import GREEDY, Answer, Decoding, EndpointLmSection, Generation, Prompt

MAX_COUNTS = 100_000  # prompts whose number of tokens is remembered
MAX_CHOICES = 10_000  # of a reply that are read
DEFAULT_CONTEXT = 4096  # tokens, where nobody says: what Ollama gives
SILENT = (0, 408, 429, 502, 503, 504)  # statuses (0: no reply) that do not say whether a server counts tokens
_log = logging.getLogger(__name__)


class Served(NamedTuple):
    """The model that is asked."""

    model: str  # its id, which prices go by
    name: str  # its id and, as vLLM tells them, weights and the base of an adapter
    context: int  # tokens of prompt and answer together


class _Weighed(NamedTuple):
    """What one request for a log-likelihood gave."""

    log_prob: float  # of the whole text
    num_prompt_tokens: int
    num_tokens: int
    seconds: float


class Endpoint:
    """Implements LanguageModel and StreamingModel. The key is in no text that leaves here.

    ``Generation.problem`` says why one prompt got nothing. EndpointError is raised where no prompt can get anything:
    nobody answers, the key is refused, the model is not served, a parameter is not taken. With ``model``, ``identity``
    and ``context`` set, the server is first asked when a call needs it: a run whose calls are all kept needs none.
    """

    def __init__(self, section: EndpointLmSection) -> None:
        """Read the key from the environment; raises ConfigError where it is not set."""
        self._section, self._server = section, Server(section)
        self._root = section.url.removesuffix("/v1")  # where servers keep what is their own
        self._counting: bool | None = None  # does the server count tokens? None: not known yet
        self._counts: dict[tuple[str, str], int] = {}
        self._one_at_a_time = False  # does it refuse to give several texts at a time?

    @property
    def name(self) -> str:
        """Where, which model, and the settings that shape its texts."""
        section = self._section
        model = section.model if section.model and section.identity else self._served.name
        told = [] if section.log_probs else ["no log-probabilities"]
        told += [] if section.sampling else ["no sampling"]
        shape = json.dumps([section.api, section.choices, section.extra, *told], sort_keys=True, default=repr)
        digest = hashlib.sha256(shape.encode()).hexdigest()[:8]
        return f"endpoint {section.identity or section.url} {model} {section.api}-{digest}"

    @property
    def model(self) -> str:
        """The model's id."""
        return self._section.model or self._served.model

    @property
    def context(self) -> int:
        """How many tokens prompt and answer may have together, as set or as the server tells."""
        return self._section.context or self._served.context

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return the tokens of each prompt: counted by vLLM, else estimated, rather too many.

        Raises EndpointError where the server does not answer, or counted before and does not any more. Estimates in
        between would fit other prompts into the context, and calls that are kept would be paid again.
        """
        if self._counting is None:
            self._counting = next(self._server.each([Prompt("a few words")], self._count))[1] > 0
            if not self._counting:
                _log.warning("%s does not count tokens; they are estimated, rather too many", self._section.url)
        if not self._counting:
            return [estimate_tokens(plain_text(prompt)) for prompt in prompts]
        if len(self._counts) > MAX_COUNTS:
            self._counts.clear()
        new = {(one.system, one.text): one for one in prompts if (one.system, one.text) not in self._counts}
        for prompt, count in self._server.each(list(new.values()), self._count):
            self._counts[prompt.system, prompt.text] = count
        return [self._counts[prompt.system, prompt.text] for prompt in prompts]

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt; raises as ``stream``."""
        answers = {answer.index: answer.generations for answer in self.stream(prompts, decoding)}
        return [answers[index] for index in range(len(prompts))]

    def stream(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> Iterator[Answer]:
        """Yield the answers as they come, ``concurrency`` requests at a time.

        Raises UnableError for beams of a server that has none; EndpointError where no prompt can get anything, or the
        server is gone. What was yielded before stays good.
        """
        section = self._section
        if decoding.method != "sample" and max(decoding.num_returns, decoding.num_beams) > 1 and not section.beams:
            raise UnableError(
                f"{decoding.num_returns} texts by beam search from {section.url}: most servers only draw "
                "samples. Set lm.beams: true where the server is vLLM, or draw samples"
            )
        model = self.model if prompts else ""

        async def ask(client: httpx.AsyncClient, placed: tuple[int, Prompt]) -> Answer:
            begun = time.perf_counter()
            generations, size = await self._ask(client, model, placed[1], decoding)
            if all(one.problem == "unreachable" for one in generations):
                await self._raise_if_gone(client)
            return Answer(placed[0], generations, size, time.perf_counter() - begun)

        yield from self._server.each(list(enumerate(prompts)), ask)

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-likelihood of each prompt's options; -inf where it failed. Raises as ``stream_scores``."""
        told = {answer.index: answer.generations for answer in self.stream_scores(prompts, options)}
        found = [[one.log_prob for one in told[index]] for index in range(len(prompts))]
        return [[-math.inf if one is None else one for one in own] for own in found]

    def stream_scores(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> Iterator[Answer]:
        """Yield the log-likelihoods of each prompt's options, end token left out, with what all requests for it cost.

        A prompt is sent alone, and once with each option behind it; the difference counts. vLLM tells it, by
        ``prompt_logprobs`` of a chat and by ``echo`` of ``/completions``. UnableError where the server cannot; else
        raises as ``stream``.
        """
        pairs = [
            (index, prompt, option)
            for index, (prompt, own) in enumerate(zip(prompts, options, strict=True))
            for option in dict.fromkeys(["", *own])
        ]
        left, found = Counter(index for index, _, _ in pairs), [dict[str, _Weighed]() for _ in prompts]
        for index, text, weighed in self._server.each(pairs, partial(self._weigh, self.model if pairs else "")):
            found[index][text] = weighed
            left[index] -= 1
            if left[index]:
                continue
            alone, generations = found[index][""], list[Generation]()
            for option in options[index]:
                one = found[index][option]
                given = one.num_tokens + (0 if generations else alone.num_tokens)
                likely = one.log_prob - alone.log_prob
                lost = Generation("", num_tokens=given, problem="bad_response")
                generations.append(Generation("", likely, given) if math.isfinite(likely) else lost)
            all_of_it = found[index].values()
            size, seconds = sum(one.num_prompt_tokens for one in all_of_it), math.fsum(one.seconds for one in all_of_it)
            yield Answer(index, generations, size, seconds)

    async def _weigh(
        self, model: str, client: httpx.AsyncClient, pair: tuple[int, Prompt, str]
    ) -> tuple[int, str, _Weighed]:
        """Return how likely a prompt is with an option behind it, as a whole."""
        (index, prompt, option), begun = pair, time.perf_counter()
        # One token has to be generated: vLLM had versions that refuse 0.
        body: dict[str, Any] = {**self._section.extra, "model": model, "max_tokens": 1, "temperature": 0}
        if self._section.api == "chat":
            body |= {"messages": messages(prompt), "prompt_logprobs": 0}
            if option:
                body["messages"] += [{"role": "assistant", "content": option}]
                body |= {"continue_final_message": True, "add_generation_prompt": False}
        elif text := plain_text(prompt) + option:
            body |= {"prompt": text, "echo": True, "logprobs": 1}
        else:
            return index, option, _Weighed(0.0, 0, 0, 0.0)
        reply = await self._post(client, body)
        if reply.problem == "unreachable":
            await self._raise_if_gone(client)
        is_unknown = reply.problem == "refused" and "prompt_logprobs" in "".join(error_of(reply.content))
        total = None if is_unknown else -math.inf if reply.problem else read_echo(reply.content)
        if total is None:
            raise UnableError(
                f"{self._section.url} does not tell the log-probabilities of given texts, as vLLM does "
                "(prompt_logprobs of a chat, echo of /completions). Use another server, or a local model"
            )
        read, given = (whole(dig(reply.content, "usage", name)) or 0 for name in ("prompt_tokens", "completion_tokens"))
        return index, option, _Weighed(total, read, given, time.perf_counter() - begun)

    async def _raise_if_gone(self, client: httpx.AsyncClient) -> None:
        """Raise EndpointError where nobody is there any more; else it was a prompt that breaks the connection."""
        if (await self._server.request(client, "/models")).problem == "unreachable":
            raise EndpointError(
                f"{self._section.url} cannot be reached any more. Start the server and run again: answers "
                "that are in the call store are not asked for twice"
            )

    async def _ask(
        self, client: httpx.AsyncClient, model: str, prompt: Prompt, decoding: Decoding
    ) -> tuple[list[Generation], int]:
        """Return ``num_returns`` texts or problems, and the tokens read; asks again where too few texts come."""
        section, chat = self._section, self._section.api == "chat"
        base = {**section.extra, "model": model}
        # In the server's own words; a constraint that cannot be said so is left out, and so it is beside beams: vLLM
        # takes both, and searches as if there were no constraint.
        is_said = prompt.constraint is not None and section.choices != "none" and decoding.method != "beam"
        texts = finite_texts(prompt.constraint) if is_said and prompt.constraint else None
        if texts:
            said = {"structured_outputs": {"choice": texts}, "guided_choice": texts}
            # GBNF takes the escapes of JSON strings, all but those of characters outside the first plane.
            said["grammar"] = "root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
            base[section.choices] = said[section.choices]
        base |= {"messages": messages(prompt)} if chat else {"prompt": plain_text(prompt)}
        base[section.limit_field] = decoding.max_new_tokens
        if section.sampling:
            base |= {"temperature": 0} | ({"stop": list(decoding.stop)} if decoding.stop else {})
        if section.log_probs:
            base["logprobs"] = True if chat else 1
        got: list[Generation] = []
        size = 0
        while (left := decoding.num_returns - len(got)) > 0:
            body = dict(base)
            if decoding.method == "sample" and section.sampling:
                seed = later_seed(decoding.seed, len(got))
                body |= {"temperature": decoding.temperature, "top_p": 1.0, "seed": seed}
            if decoding.method == "beam":
                body |= {"use_beam_search": True, "n": decoding.num_beams}
            elif left > 1 and not self._one_at_a_time:
                body["n"] = left
            reply = await self._post(client, body)
            if reply.problem == "refused" and decoding.method == "sample" and body.pop("n", 1) > 1:
                reply = await self._post(client, body)  # llama.cpp gives as many at a time as it has slots
                self._one_at_a_time |= not reply.problem
            read = None if reply.problem else read_completion(reply.content, decoding.stop)
            if read is None:
                return got + [Generation("", problem=reply.problem or "bad_response")] * left, size
            size += estimate_tokens(plain_text(prompt)) if read[1] is None else read[1]
            got += read[0]
        kept, beyond = got[: decoding.num_returns], got[decoding.num_returns :]  # beams that were paid for, too
        if beyond:
            kept[-1] = replace(kept[-1], num_tokens=sum(one.num_tokens for one in [kept[-1], *beyond]))
        return kept, size

    async def _post(self, client: httpx.AsyncClient, body: dict[str, Any]) -> Reply:
        """Ask for texts; raises EndpointError where there is no such model, or no such API."""
        reply = await self._server.request(client, "/chat/completions" if "messages" in body else "/completions", body)
        if reply.status == 404:
            served = await self._ask_served(client, None)  # which raises where it is the model that is missing
            raise EndpointError(
                f"{self._section.url} does not have the API {self._section.api} for {shorten(served.model)}: "
                f"{reply.message}. Set lm.api to the other one"
            )
        return reply

    @cached_property
    def _served(self) -> Served:
        return next(self._server.each([None], self._ask_served))

    async def _ask_served(self, client: httpx.AsyncClient, _: None) -> Served:
        """Ask ``/models`` which model is served; EndpointError where that is not known or not the one that is named."""
        section = self._section
        reply = await self._server.request(client, "/models")
        if reply.status == 404 and section.model and reply.content is not None:  # an API that has no list
            return Served(section.model, section.model, DEFAULT_CONTEXT)
        entries = dig(reply.content, "data")
        if reply.problem or not isinstance(entries, list):
            raise EndpointError(
                f"{section.url}/models: {reply.problem or 'not a list of models'} ({reply.message or 'HTTP 200'}). Is "
                "the server running, and does lm.url end in /v1 as it should? (With lm.model, lm.identity and "
                "lm.context set it need not list its models.)"
            )
        models = {entry["id"]: entry for entry in entries if isinstance(dig(entry, "id"), str)}
        model = section.model or (next(iter(models)) if len(models) == 1 else "")
        if model not in models:
            near = nearest(model, models) or [one for one in models if one.split(":")[0] == model]
            raise EndpointError(
                f"lm.model = {shorten(model)} is not served by {section.url}. Served: "
                f"{shorten(', '.join(models)) if models else 'nothing'}{f'; did you mean {near[0]}?' if near else ''}"
            )
        told = models[model].get("max_model_len")  # of vLLM, which tells it of an adapter's base alone
        told = dig(models, str(models[model].get("parent")), "max_model_len") if told is None else told
        if told is None and models[model].get("owned_by") == "llamacpp":
            props = await self._server.request(client, f"{self._root}/props")
            told = dig(props.content, "default_generation_settings", "n_ctx")
        if not whole(told) and not section.context:
            _log.warning("%s does not say how many tokens it takes; %d are assumed: set lm.context", section.url,
                         DEFAULT_CONTEXT)  # fmt: skip
        parts = [model, models[model].get("root"), models[model].get("parent")]
        name = " ".join(dict.fromkeys(part for part in parts if isinstance(part, str) and part))
        return Served(model, name, whole(told) or DEFAULT_CONTEXT)

    async def _count(self, client: httpx.AsyncClient, prompt: Prompt) -> tuple[Prompt, int]:
        """Return a prompt's tokens, chat template included; 0: the server does not tell."""
        body = {"messages": messages(prompt), "add_generation_prompt": True}
        body = body if self._section.api == "chat" else {"prompt": plain_text(prompt)}
        body = {**self._section.extra, "model": self.model, **body}  # chat_template_kwargs shape the prompt
        try:
            reply = await self._server.request(client, f"{self._root}/tokenize", body)
        except EndpointError:  # some gateways refuse what they do not know, with any status
            if self._counting:
                raise
            return prompt, 0
        count = whole(dig(reply.content, "count")) or 0
        if not count and (self._counting or reply.status in SILENT):
            raise EndpointError(f"{self._root}/tokenize does not answer. Start the server and run again")
        return prompt, count


def messages(prompt: Prompt) -> list[dict[str, str]]:
    """Return a prompt as turns of a chat."""
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return [*system, {"role": "user", "content": prompt.text}]


def plain_text(prompt: Prompt) -> str:
    """Return a prompt as one text, for servers without a chat template."""
    return f"{prompt.system}\n\n{prompt.text}" if prompt.system else prompt.text


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has, rather too many: one per three bytes."""
    return math.ceil(len(text.encode("utf-8", "replace")) / 3)


def read_completion(content: object, stop: Sequence[str] = ()) -> tuple[list[Generation], int | None] | None:
    """Return the texts of any JSON in the order of their index, and the tokens read (None: not told).

    None where it holds no choices. A choice without a text, or of wrong types, is a generation with a problem.
    ``log_prob`` sums what the server tells, which leaves out the end token. Texts are cut before ``stop`` where the
    server did not.
    """
    choices = dig(content, "choices")
    if not isinstance(choices, list) or not choices:
        return None
    ordered = sorted(choices[:MAX_CHOICES], key=lambda choice: whole(dig(choice, "index")) or 0)
    given, num = whole(dig(content, "usage", "completion_tokens")), len(ordered)
    shares = [None if given is None else given // num + (place < given % num) for place in range(num)]
    texts = [_read_choice(choice, share, stop) for choice, share in zip(ordered, shares, strict=True)]
    return texts, whole(dig(content, "usage", "prompt_tokens"))


def _read_choice(choice: object, share: int | None, stop: Sequence[str]) -> Generation:
    text = dig(choice, "message", "content") if dig(choice, "message") is not None else dig(choice, "text")
    if isinstance(text, list):  # parts, as Mistral's models give them that reason: a thought has no text of its own
        text = "".join(part["text"] for part in text if isinstance(dig(part, "text"), str))
    reason = dig(choice, "finish_reason")
    names = ("reasoning_content", "reasoning")  # of thoughts, where a server parts them from the answer
    if text is None and reason == "length" and any(isinstance(dig(choice, "message", name), str) for name in names):
        text = ""
    if reason in ("content_filter", "error") or not isinstance(text, str):
        refused = reason == "content_filter" or isinstance(dig(choice, "message", "refusal"), str)
        return Generation("", num_tokens=share or 0, problem="refused" if refused else "bad_response")
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half characters cannot be stored
    cut = min((place for place in map(clean.find, stop) if place >= 0), default=len(clean))
    values = dig(choice, "logprobs", "token_logprobs")
    if isinstance(entries := dig(choice, "logprobs", "content"), list):  # of the chat API
        values = [dig(entry, "logprob") for entry in entries]
    log_prob = _sum(values) if isinstance(values, list) and values else None
    if share is None:  # the server does not count: log-probabilities leave out the end, and are better than nothing
        share = len(values) if isinstance(values, list) and values else estimate_tokens(clean)
    return Generation(clean[:cut], log_prob, share, reason != "length" or cut < len(clean))


def read_echo(content: object) -> float | None:
    """Return the log-likelihood of an echoed prompt, its first token left out; None where any JSON tells none.

    Only the prompt's tokens count, not the token that had to be generated after it. The first token has no probability:
    where a number stands in its place, the server ignored ``echo`` and tells of the generated token alone.
    """
    values = dig(content, "choices", 0, "logprobs", "token_logprobs")
    if isinstance(told := dig(content, "prompt_logprobs"), list):  # of a chat: of each token by its id, one for 0
        values = [dig(next(iter(one.values()), None), "logprob") if isinstance(one, dict) else None for one in told]
    size = whole(dig(content, "usage", "prompt_tokens"))
    if not isinstance(values, list) or not size or len(values) < size or values[0] is not None:
        return None
    return _sum(values[1:size])


def _sum(values: list[Any]) -> float | None:
    """Return the sum of log-probabilities; None where one of them is missing."""
    numbers = [float(one) for one in values if type(one) in (int, float) and abs(one) < 1e300]
    return math.fsum(numbers) if len(numbers) == len(values) else None
