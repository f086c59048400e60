"""What the client makes of any reply of a model server: the target ``replies`` of ``benchmarks.drills.fuzz``."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import httpx
from hypothesis import strategies as st

from kgqa_core.errors import KgqaError
from kgqa_core.lm import endpoint_http
from kgqa_core.lm.call_store import CallStore
from kgqa_core.lm.calls import FIGURES, Meter, Metered
from kgqa_core.lm.endpoint import Endpoint
from kgqa_core.lm.types import GREEDY, Decoding, EndpointLmSection, Generation, Problem, Prompt

URL = "http://127.0.0.1:9/v1"  # nobody is asked
DRAWN = Decoding(method="sample", num_returns=3, seed=5, temperature=0.7, stop=("\n",))
BEAMS = Decoding(method="beam", num_returns=2, num_beams=3)
NUMBERS = st.sampled_from([-1, 0, 1, 2**31, 2**53, 2**64, 10**400, -0.5, 1e299, -1e308, math.nan, math.inf, -math.inf])
WORDS = st.one_of(st.sampled_from(["", "yes\nno", "\ud83d yes", "\0", "x" * 5000]), st.text(max_size=9))
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=8,
)


def likely(right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw what is right fifteen times of sixteen, else anything."""
    return st.integers(0, 15).flatmap(lambda chance: ANYTHING if chance == 15 else right)


@st.composite
def record(draw: st.DrawFn, **fields: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Draw an object that lacks a field now and then."""
    return {name: draw(likely(values)) for name, values in fields.items() if draw(st.integers(0, 15)) < 15}


COUNTS = st.one_of(st.integers(-1, 9), NUMBERS)
ALL_OF_THEM = st.lists(st.one_of(st.floats(-9, 0), st.none(), NUMBERS), max_size=6)
LOG_PROBS = record(token_logprobs=ALL_OF_THEM, content=st.lists(record(logprob=NUMBERS), max_size=6))
CHOICE = record(
    index=COUNTS,
    text=WORDS,
    message=record(content=WORDS, refusal=WORDS),
    finish_reason=st.sampled_from(["stop", "length", "content_filter"]),
    logprobs=LOG_PROBS,
)
ERROR = record(message=WORDS, param=st.sampled_from(["stop", "logprobs", "n.x"]), code=WORDS, detail=WORDS)
BODY = record(
    choices=st.lists(likely(CHOICE), min_size=1, max_size=5),
    usage=record(prompt_tokens=COUNTS, completion_tokens=COUNTS),
    error=st.one_of(st.none(), ERROR),
    data=st.lists(record(id=st.just("m"), max_model_len=COUNTS, owned_by=st.just("llamacpp")), max_size=3),
    count=COUNTS,
    default_generation_settings=record(n_ctx=COUNTS),
)


@dataclass(frozen=True)
class Said:
    """One reply of a server."""

    status: int
    headers: dict[str, str]
    body: bytes
    piece: int  # bytes that come at a time


class Pieces(httpx.AsyncByteStream):
    """A body that comes piece by piece."""

    def __init__(self, said: Said) -> None:
        """Hold what is said."""
        self._said = said

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the pieces."""
        for start in range(0, len(self._said.body), self._said.piece):
            yield self._said.body[start : start + self._said.piece]


@st.composite
def replies(draw: st.DrawFn) -> tuple[bool, list[Said]]:
    """Draw up to four replies, given in turn, and whether the list of models is among what is odd."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        content = json.dumps(draw(likely(BODY))).encode()
        wrapped = b"data: " + content + b"\n\ndata: [DONE]\n\n"  # a stream of events, which nobody asked for
        deep = b'{"choices": ' * draw(st.sampled_from([5, 900, 200_000]))
        body = draw(st.sampled_from([content] * 30 + [wrapped, deep, content[: len(content) // 2], b"", b"\xff\xfe{"]))
        status = draw(st.sampled_from([200] * 60 + [201, 204, 301, 400, 401, 404, 408, 413, 422, 429, 500, 503, 599]))
        waits = st.sampled_from(["", "0", "nan", "inf", "-1", "1e999", "Mon, 01 Jan 0001 00:00:00 +2359", "soon"])
        headers = {"retry-after": draw(waits)}
        if draw(st.integers(0, 39)) == 39:
            headers["content-encoding"] = draw(st.sampled_from(["gzip", "deflate", "br", "none"]))
        found.append(Said(status, headers, body, draw(st.sampled_from([1000, 10**6]))))
    return draw(st.integers(0, 9)) == 9, found


def _proper(generations: Sequence[Generation], number: int) -> str:
    """Return how the texts of a prompt ended; AssertionError where one of them cannot be stored or counted."""
    assert len(generations) == number, generations
    for one in generations:
        assert one.problem in get_args(Problem), one
        assert not (one.problem and one.text), one
        assert one.num_tokens >= 0, one
        assert one.log_prob is None or math.isfinite(one.log_prob), one
        assert one.text.encode("utf-8").decode() == one.text
    return generations[0].problem or "read"


@contextmanager
def model_servers(store: CallStore) -> Iterator[Any]:
    """Yield what asks a server that gives certain replies for texts, samples, beams, likelihoods and counts."""
    plain, meter = httpx.AsyncClient, Meter()

    def check(drawn: tuple[bool, list[Said]]) -> str:
        odd, said = drawn
        asked = 0

        def handle(request: httpx.Request) -> httpx.Response:
            nonlocal asked
            if request.url.path.endswith("/models") and not odd:
                return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 99}]})
            asked += 1
            one = said[asked % len(said)]
            return httpx.Response(one.status, headers=one.headers, stream=Pieces(one))

        endpoint_http.httpx.AsyncClient = partial(plain, transport=httpx.MockTransport(handle))  # type: ignore
        try:
            return _ask_all(repr(drawn), meter, store)
        finally:
            endpoint_http.httpx.AsyncClient = plain  # type: ignore[misc]

    yield check


def _ask_all(text: str, meter: Meter, store: CallStore) -> str:
    """Ask in every way; return how the first of them ended, or the name of the error of ours that it ended with."""
    how = {"kind": "endpoint", "url": URL, "attempts": 2, "first_wait": 0.001, "longest_wait": 0.001, "beams": True}
    ends = list[str]()
    for api in ("chat", "completions"):
        model = Metered(Endpoint(EndpointLmSection.model_validate({**how, "api": api})), meter=meter, store=store)
        prompt = Prompt(text[:300])
        for decoding in (GREEDY, DRAWN, BEAMS):
            with _ours(ends):
                ends.append(_proper(model.generate([prompt], decoding)[0], decoding.num_returns))
        with _ours(ends):
            model.count_tokens([prompt])
        with _ours(ends):
            (scores,) = model.score([prompt], [["a", "b"]])
            assert len(scores) == 2 and not any(math.isnan(one) or one == math.inf for one in scores), scores
    for row in meter.take().to_pylist():
        assert all(value is None or value >= 0 for name, value in row.items() if name in FIGURES), row
    return ends[0]


@contextmanager
def _ours(ends: list[str]) -> Iterator[None]:
    """Count an error of ours by its name; AssertionError where it has more than three lines."""
    try:
        yield
    except KgqaError as error:
        assert len(str(error).splitlines()) <= 3, error
        ends.append(type(error).__name__)
