"""No reply of a server, whatever it holds, breaks those who read it; what a server tells beside texts."""

import asyncio
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.errors import EndpointError
from kgqa_core.lm.endpoint import read_completion, read_echo
from kgqa_core.lm.endpoint_http import Reply, Server, error_of
from kgqa_core.lm.types import EndpointLmSection, Prompt
from tests.lm.misbehaving import Open, Script

FIELDS = ["choices", "index", "message", "content", "text", "refusal", "finish_reason", "logprobs", "logprob"]
FIELDS += ["token_logprobs", "usage", "prompt_tokens", "completion_tokens", "error", "detail"]
OBJECTS = st.sampled_from(FIELDS) | st.text()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(OBJECTS, inner, max_size=5),
    max_leaves=25,
)
CHOICE = JSON | st.dictionaries(OBJECTS, JSON, max_size=5)
REPLY = st.fixed_dictionaries({"choices": st.lists(CHOICE, min_size=1, max_size=3)}, optional={"usage": CHOICE})


@given(JSON | REPLY)
def test_no_json_whatsoever_breaks_the_readers(content: object) -> None:
    if (completion := read_completion(content, stop=("\n",))) is not None:
        for generation in completion[0]:
            assert generation.text.encode() is not None
            assert not generation.problem or not generation.text
    read_echo(content)
    error_of(content)


def test_any_number_of_attempts_has_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait before attempt 1,025 was once a number that no float holds."""
    asked = []

    async def failing(server: Server, *_: Any) -> Reply:
        asked.append(server)
        return Reply("timeout")

    monkeypatch.setattr(Server, "_attempt", failing)
    section = EndpointLmSection(kind="endpoint", url="http://127.0.0.1:1/v1", attempts=1100, first_wait=0.0)
    client: Any = None
    assert asyncio.run(Server(section).request(client, "/models")).problem == "timeout"
    assert len(asked) == 1100


@pytest.mark.parametrize(
    ("models", "flavour", "context"),
    [
        ([{"id": "a", "max_model_len": 211}], "vllm", 211),
        ([{"id": "a", "owned_by": "llamacpp"}], "llama.cpp", 307),
        ([{"id": "a"}], "plain", 4096),
    ],
)
def test_the_context_is_what_the_server_tells(
    server: Script, opened: Open, models: list[dict[str, Any]], flavour: str, context: int
) -> None:
    server.models, server.flavour = models, flavour
    assert opened().context == context
    assert opened(context=101).context == 101


@pytest.mark.parametrize(
    ("flavour", "api", "counts"), [("vllm", "chat", [9, 8]), ("vllm", "completions", [9, 8]), ("plain", "chat", [3, 1])]
)
def test_tokens_are_counted_by_the_server_where_it_does_and_once(
    server: Script, opened: Open, flavour: str, api: str, counts: list[int]
) -> None:
    server.flavour = flavour
    endpoint = opened(api=api)
    assert endpoint.count_tokens([Prompt("two words"), Prompt("one"), Prompt("two words")]) == [*counts, counts[0]]
    before = len(server.requests)
    endpoint.count_tokens([Prompt("one")])
    assert len(server.requests) == before


@pytest.mark.parametrize("status", ["401", "403", "405", "302", "404"])
def test_a_server_that_refuses_to_count_tokens_is_asked_for_texts_all_the_same(
    server: Script, opened: Open, status: str
) -> None:
    server.flavour = status
    endpoint = opened()
    assert endpoint.count_tokens([Prompt("two words")]) == [3]  # an estimate
    assert endpoint.generate([Prompt("two words")])[0][0].text == "two words -> 0.0"


@pytest.mark.parametrize("status", ["429", "503"])
def test_a_server_that_was_busy_when_first_asked_to_count_counts_the_next_time(
    server: Script, opened: Open, status: str
) -> None:
    """It was taken for one that never counts: all prompts were cut by estimates."""
    server.flavour = status
    endpoint = opened()
    with pytest.raises(EndpointError, match="/tokenize does not answer"):
        endpoint.count_tokens([Prompt("two words")])
    server.flavour = "vllm"
    assert endpoint.count_tokens([Prompt("two words")]) == [9]


def test_tokens_are_counted_as_the_prompt_is_sent(server: Script, opened: Open) -> None:
    settings = {"chat_template_kwargs": {"enable_thinking": False}}
    assert opened(extra=settings).count_tokens([Prompt("two words")]) == [2 + 7 + 5]


def test_a_small_reply_that_unpacks_to_far_more_takes_no_memory(server: Script, opened: Open) -> None:
    server.behaviours.append("packed twice")
    tracemalloc.start()
    try:
        ((reply,),) = opened(attempts=1).generate([Prompt("a question")])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reply.problem == "bad_response" and peak < 100 * 10**6


def test_a_reply_of_a_great_many_choices_is_read_at_once() -> None:
    begun = time.process_time()
    read = read_completion({"choices": [{"text": "a"}] * 500_000})
    assert read and read[0][0].text == "a" and time.process_time() - begun < 2


def test_a_long_error_is_judged_at_once(server: Script, opened: Open) -> None:
    server.behaviours.append("long error")
    begun = time.monotonic()
    ((reply,),) = opened(attempts=1).generate([Prompt("a question")])
    assert reply.problem == "refused" and time.monotonic() - begun < 2


def test_a_server_that_goes_away_while_it_weighs_ends_the_run(server: Script, opened: Open) -> None:
    server.dies_after = 1 + 6  # asked what it serves, and two prompts with two options each
    endpoint = opened(api="completions", concurrency=1)
    told = endpoint.stream_scores([Prompt(f"{n} is ") for n in range(9)], [["a", "b"]] * 9)
    assert [next(told).index, next(told).index] == [0, 1]
    with pytest.raises(EndpointError, match="cannot be reached any more"):
        next(told)
