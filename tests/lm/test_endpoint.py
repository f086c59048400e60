"""The HTTP client against a real server: what it sends and reads, and every way in which a server can misbehave."""

import asyncio
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kgqa_core.errors import ConfigError, EndpointError, UnableError
from kgqa_core.lm.call_store import CallStore, later_seed
from kgqa_core.lm.calls import Meter, Metered
from kgqa_core.lm.constraints import Choices
from kgqa_core.lm.endpoint import Endpoint
from kgqa_core.lm.types import GREEDY, Decoding, EndpointLmSection, Generation, Problem, Prompt, StreamingModel
from tests.lm.misbehaving import LEAKS, REFUSALS, Open, Script

SLOW = ("silence", "drip", "drip headers")  # what only a timeout ends
KEY = "sk-very-secret-0123456789"


def one(endpoint: Endpoint, text: str = "a question", decoding: Decoding = GREEDY) -> Generation:
    return endpoint.generate([Prompt(text)], decoding)[0][0]


def around(endpoint: Endpoint, **options: Any) -> Metered:
    return Metered(endpoint, **{"meter": Meter(), **options})


def timeouts(kind: str) -> dict[str, Any]:
    """Return settings under which a test of ``kind`` ends soon, and no other test depends on a busy machine."""
    return {"read_timeout": 0.4, "total_timeout": 0.6} if kind in SLOW else {}


def sampled(num: int) -> Decoding:
    return Decoding(method="sample", num_returns=num, seed=5, temperature=0.7, stop=("\n", ";"))


def test_a_request_says_what_the_prompt_and_the_decoding_say(server: Script, opened: Open) -> None:
    prompt = Prompt("who?", system="be brief")
    opened(extra={"top_k": 3}).generate([prompt], sampled(2))
    plain = opened(api="completions", log_probs=False, limit_field="max_completion_tokens")
    plain.generate([prompt], Decoding(max_new_tokens=11))
    chat, greedy = server.asked()
    assert (chat.path, greedy.path) == ("/v1/chat/completions", "/v1/completions")
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "who?"}]
    drawn = {"temperature": 0.7, "top_p": 1.0, "seed": later_seed(5, 0), "n": 2, "stop": ["\n", ";"]}
    assert chat.body == {"model": "tiny", "messages": turns, "max_tokens": 256, **drawn, "logprobs": True, "top_k": 3}
    asked = {"prompt": "be brief\n\nwho?", "max_completion_tokens": 11, "temperature": 0}
    assert greedy.body == {"model": "tiny", **asked}


def test_a_model_that_reasons_is_told_neither_how_to_draw_nor_where_to_stop(server: Script, opened: Open) -> None:
    """OpenAI's refuse these fields. Texts are cut at the stop all the same, and other endpoints' kept calls stay."""
    model = opened(sampling=False, log_probs=False, limit_field="max_completion_tokens")
    cut = Decoding(method="sample", num_returns=2, seed=5, stop=(" ->",))
    texts = model.generate([Prompt("who?")], cut)[0]
    assert {generation.text for generation in texts} == {"who?"}
    turns = [{"role": "user", "content": "who?"}]
    assert server.asked()[0].body == {"model": "tiny", "messages": turns, "max_completion_tokens": 256, "n": 2}
    plain = EndpointLmSection(kind="endpoint", url="http://127.0.0.1:1/v1", model="tiny")
    assert "sampling" not in plain.recipe() and not plain.model_copy(update={"sampling": False}).recipe()["sampling"]


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_samples_come_in_order_with_log_probabilities_and_tokens(opened: Open, api: str) -> None:
    texts = opened(api=api).generate([Prompt("x y")], sampled(3))[0]
    assert [generation.text for generation in texts] == [f"x y -> {later_seed(5, 0)}.{place}" for place in range(3)]
    assert {generation.log_prob for generation in texts} == {-0.5 - 1.0 - 1.5 - 2.0}
    assert {generation.num_tokens for generation in texts} == {5}  # as the server counts: the end is a token


def test_seeds_beside_each_other_share_no_sample(server: Script, opened: Open) -> None:
    """A server draws sample i with seed + i, or is asked again for it."""
    for server.max_n in (99, 1):
        drawn = []
        for seed in (7, 8):
            del server.requests[:]
            opened().generate([Prompt("x")], Decoding(method="sample", num_returns=3, seed=seed))
            given = [(asked.body["seed"], min(server.max_n, asked.body.get("n", 1))) for asked in server.asked()]
            drawn.append({first + place for first, num in given for place in range(num)})
        assert len(drawn[0] | drawn[1]) == 6


@pytest.mark.parametrize("decoding", [GREEDY, sampled(3), Decoding(method="beam", num_beams=4, num_returns=2)])
def test_tokens_are_those_that_the_server_counts(server: Script, opened: Open, decoding: Decoding) -> None:
    with_beams = around(opened(beams=True))
    texts = with_beams.generate([Prompt("x y z")], decoding)[0]
    num_all = max(decoding.num_beams, decoding.num_returns)  # beams that are not wanted are paid for
    usage = with_beams.meter.usage()
    assert (usage["num_prompt_tokens"], usage["num_tokens"], usage["paid_tokens"]) == (3, 6 * num_all, 6 * num_all)
    assert len(texts) == decoding.num_returns


def test_a_server_that_gives_one_text_at_a_time_is_asked_again_with_other_seeds(server: Script, opened: Open) -> None:
    server.max_n = 1
    texts = [generation.text for generation in opened().generate([Prompt("x")], sampled(3))[0]]
    assert len(set(texts)) == 3
    assert len({request.body["seed"] for request in server.asked()}) == 3


def test_a_server_that_refuses_to_give_several_texts_is_asked_for_one_at_a_time(server: Script, opened: Open) -> None:
    server.max_n, server.refuses_n = 1, True
    endpoint = opened(concurrency=1)
    for num_requests in (4, 7):  # the first is refused; then it is known
        texts = endpoint.generate([Prompt(f"x{num_requests}")], sampled(3))[0]
        assert len({text.text for text in texts}) == 3 and not any(text.problem for text in texts)
        assert len(server.asked()) == num_requests
    server.always["x"] = "policy"
    assert [text.problem for text in opened().generate([Prompt("x")], sampled(3))[0]] == ["refused"] * 3


def test_answers_follow_the_prompts_and_no_more_than_so_many_are_asked_at_a_time(server: Script, opened: Open) -> None:
    server.slow = 0.02
    prompts = [Prompt(f"question {n}") for n in range(17)]
    texts = [own[0].text for own in opened(concurrency=3).generate(prompts)]
    assert texts == [f"question {n} -> 0.0" for n in range(17)]
    assert server.most_in_flight == 3


@pytest.mark.slow
def test_answers_stream_as_they_come(server: Script, opened: Open) -> None:
    server.always["slow one"] = "drip"
    endpoint = opened(concurrency=2, attempts=1, total_timeout=1.0)
    assert isinstance(endpoint, StreamingModel)
    order = [answer.index for answer in endpoint.stream([Prompt("slow one"), Prompt("a"), Prompt("b")])]
    assert order == [1, 2, 0]


def test_who_stops_listening_stops_the_requests(server: Script, opened: Open) -> None:
    server.slow = 0.05
    stream = opened(concurrency=1).stream([Prompt(f"{n}") for n in range(50)])
    next(stream)
    stream.close()
    assert len(server.asked()) <= 3
    assert not [thread for thread in threading.enumerate() if thread.name == "kgqa-requests"]


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("structured_outputs", {"structured_outputs": {"choice": ['a "no"', "yes"]}}),
        ("guided_choice", {"guided_choice": ['a "no"', "yes"]}),
        ("grammar", {"grammar": 'root ::= "a \\"no\\"" | "yes"'}),
        ("none", {}),
    ],
)
def test_a_choice_is_passed_on_in_the_servers_words(server: Script, opened: Open, kind: str, sent: Any) -> None:
    opened(choices=kind).generate([Prompt("x", constraint=Choices(["yes", 'a "no"']))])
    names = {"structured_outputs", "guided_choice", "grammar"}
    assert {name: value for name, value in server.asked()[0].body.items() if name in names} == sent


def test_beams_are_for_servers_that_have_them(server: Script, opened: Open) -> None:
    beams = Decoding(method="beam", num_beams=4, num_returns=2)
    with pytest.raises(UnableError, match=r"beam search.*lm.beams"):
        opened().generate([Prompt("x")], beams)
    bound = Prompt("x", constraint=Choices(["yes", "no"]))  # vLLM takes both, and forgets the constraint
    assert len(opened(beams=True, choices="structured_outputs").generate([bound], beams)[0]) == 2
    assert server.asked()[0].body["use_beam_search"] is True
    assert server.asked()[0].body["n"] == 4
    assert "structured_outputs" not in server.asked()[0].body


PASSING = ("429", "500", "502", "503", "504", "html", "half", "cut", "reset", "null", "error within", "silence", "drip")


@pytest.mark.parametrize(
    ("kind", "retry_after"),
    [*((kind, "") for kind in PASSING), ("429", "Wed, 21 Oct 2026 07:28:00 +99999999999999999999")],  # which is no time
)
def test_what_passes_is_tried_again(server: Script, opened: Open, kind: str, retry_after: str) -> None:
    server.retry_after = retry_after
    server.behaviours.append(kind)
    assert one(opened(**timeouts(kind), longest_wait=2, model="tiny", identity="x")).text == "a question -> 0.0"
    assert len(server.asked()) == 2


@pytest.mark.parametrize(
    ("kind", "asked_for", "problem"),
    [("429", "0.3", ""), ("503", "0.3", ""), ("429", "Wed, 21 Oct 2099 07:28:00 GMT", "rate_limit")],
)
def test_a_server_that_says_when_is_waited_for_unless_that_is_too_long(
    server: Script, opened: Open, kind: str, asked_for: str, problem: Problem
) -> None:
    server.retry_after = asked_for
    server.behaviours.append(kind)
    begun = time.monotonic()
    assert one(opened(longest_wait=2)).problem == problem
    assert len(server.asked()) == (1 if problem else 2) and (problem or time.monotonic() - begun >= 0.3)


LOST: dict[str, Problem] = {
    **dict.fromkeys(("504", *SLOW), "timeout"),
    **dict.fromkeys(("500", "html", "half", "cut", "error within"), "bad_response"),
    **{"429": "rate_limit", "reset": "unreachable"},  # up to here: tried three times
    **dict.fromkeys(("list", "no choices", "empty choices", "null content", "number content"), "bad_response"),
    **dict.fromkeys(("choices of text", "choice of text", "nested nonsense", "broken off"), "bad_response"),
    **dict.fromkeys(("filtered", "refusal", "policy", "bad message"), "refused"),
    **dict.fromkeys([kind for kind in REFUSALS if kind.startswith("too long")], "too_long"),
}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow if kind in SLOW else ()) for kind in LOST])
def test_a_prompt_that_gets_nothing_says_why_and_the_others_go_on(server: Script, opened: Open, kind: str) -> None:
    server.retry_after = ""
    server.always["bad one"] = kind
    prompts = [Prompt("good one"), Prompt("bad one"), Prompt("another")]
    results = [own[0] for own in opened(concurrency=2, **timeouts(kind)).generate(prompts)]
    assert results[::2] == [Generation("good one -> 0.0", -5.0, 5), Generation("another -> 0.0", -3.0, 4)]
    assert results[1] == Generation("", problem=LOST[kind])
    assert server.prompts()["bad one"] == (3 if list(LOST).index(kind) <= list(LOST).index("reset") else 1)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("bare", Generation("just this", num_tokens=3)),
        ("odd usage", Generation("a b", num_tokens=1)),
        ("absurd usage", Generation("a b", num_tokens=1)),  # a thousand of them are no 64-bit number
        ("parts", Generation("a b", num_tokens=1)),
        ("half a character", Generation("\ufffd yes", num_tokens=3)),
        ("beyond stop", Generation("yes", num_tokens=4)),
        ("far beyond stop", Generation("yes", num_tokens=4)),  # its limit ended what nobody wanted
        ("cut short", Generation("because", num_tokens=3, finished=False)),
        ("still thinking", Generation("", num_tokens=0, finished=False)),  # paid, so kept: it would think as long again
    ],
)
def test_odd_replies_that_hold_a_text_are_read(server: Script, opened: Open, kind: str, expected: Generation) -> None:
    server.behaviours.append(kind)
    assert one(opened(), decoding=Decoding(stop=("\n",))) == expected


def test_a_key_is_sent_only_where_it_is_named_and_written_nowhere(
    server: Script, opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    one(opened())
    assert "Authorization" not in server.asked()[0].headers
    with pytest.raises(ConfigError, match=r"NO_SUCH_KEY.*not set"):
        opened(key_variable="NO_SUCH_KEY")
    server.key = KEY
    monkeypatch.setenv("SERVER_KEY", f"{KEY}\n")
    endpoint = opened(key_variable="SERVER_KEY", model="tiny", identity="x")
    with CallStore(tmp_path) as store:
        Metered(endpoint, meter=Meter(), store=store).generate([Prompt("a")])
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert kept and KEY.encode() not in kept
    server.key, before = "another", len(server.asked())
    with pytest.raises(EndpointError, match="Check the key in the environment variable SERVER_KEY") as raised:
        endpoint.generate([Prompt("a"), Prompt("b")])
    assert "Incorrect API key provided: Bearer ***" in str(raised.value)
    assert len(server.asked()) <= before + 2
    assert KEY not in f"{raised.value} {endpoint!r} {endpoint.name} {vars(endpoint)} {caplog.text}"


@pytest.mark.parametrize("kind", LEAKS)
def test_a_key_that_the_server_repeats_is_in_nothing_that_is_said_or_kept(
    server: Script,
    opened: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    kind: str,
) -> None:
    server.key = KEY
    monkeypatch.setenv("SERVER_KEY", KEY)
    server.behaviours.extend([kind] * 3)
    with CallStore(tmp_path) as store:
        try:
            said = str(Metered(opened(key_variable="SERVER_KEY"), meter=Meter(), store=store).generate([Prompt("a")]))
        except EndpointError as problem:
            said = str(problem)
    said += caplog.text + "".join(path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*"))
    assert "*" in said and KEY[:12] not in said


def test_a_model_that_is_not_served_is_named_with_those_that_are(server: Script, opened: Open) -> None:
    server.models = [{"id": "llama-2-7b-chat"}, {"id": "qwen2-7b"}]
    with pytest.raises(EndpointError, match="Served: 'llama-2-7b-chat, qwen2-7b'"):
        one(opened())
    for identity in ("", "known"):
        with pytest.raises(EndpointError, match=r"llama-2-7b-caht.*did you mean llama-2-7b-chat"):
            one(opened(model="llama-2-7b-caht", identity=identity))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("quota", "exceeded your current quota"),
        ("no credit", "Insufficient Balance"),
        ("no logprobs", "lm.log_probs: false"),
        ("no seed", "does not take the parameter 'seed'.*lm.sampling: false"),
        ("no constraint", "does not take the parameter 'structured_outputs'.*lm.choices: none"),
        ("no limit", "lm.limit_field"),
        ("moved", "Set lm.url"),
        ("no api", "Set lm.api"),
    ],
)
def test_what_every_prompt_would_meet_raises(server: Script, opened: Open, kind: str, said: str) -> None:
    server.behaviours.extend([kind] * 9)
    with pytest.raises(EndpointError, match=said):
        opened(limit_field="max_completion_tokens").generate([Prompt(f"{n}") for n in range(9)])


def test_a_server_that_is_not_there_is_said_also_inside_an_event_loop(opened: Open) -> None:
    async def caller() -> Generation:
        assert one(opened()).text == "a question -> 0.0"
        return one(opened(url="http://127.0.0.1:9/v1"))

    with pytest.raises(EndpointError, match="Is the server running"):
        asyncio.run(caller())


def test_a_server_that_goes_away_ends_the_run_and_what_it_said_is_kept(
    server: Script, opened: Open, tmp_path: Path
) -> None:
    prompts = [Prompt(f"{n}") for n in range(9)]
    server.dies_after = 1 + 4  # asked what it serves, and four prompts
    with CallStore(tmp_path) as store:
        metered = Metered(opened(concurrency=2), meter=Meter(), store=store)
        with pytest.raises(EndpointError, match="cannot be reached any more"):
            metered.generate(prompts)
        assert server.prompts()["8"] == 0
        server.dies_after = 10**6
        server.requests.clear()
        assert [own[0].text for own in metered.generate(prompts)] == [f"{n} -> 0.0" for n in range(9)]
    assert sorted(server.prompts()) == ["4", "5", "6", "7", "8"]


def test_a_prompt_that_breaks_the_connection_is_no_server_that_is_gone(server: Script, opened: Open) -> None:
    server.always.update(poison="reset", only="reset")
    assert one(opened(), "poison") == Generation("", problem="unreachable")
    assert opened(api="completions").score([Prompt("on")], [["ly", "to"]]) == [[float("-inf"), 0.0]]


@pytest.mark.parametrize(
    "url", [f"http://user:{KEY}@host/v1", f"user:{KEY}@host", f"https://host/v1?api_key={KEY}", "ftp://host/v1", "h:80"]
)
def test_an_address_that_is_none_or_holds_a_secret_is_refused_and_the_secret_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="key_variable" if KEY in url else "no address") as raised:
        EndpointLmSection(kind="endpoint", url=url)
    assert KEY not in str(raised.value)


def test_the_name_says_where_which_and_how(server: Script, opened: Open) -> None:
    server.models = [{"id": "tiny", "root": "/models/base", "parent": "base"}]
    name = opened().name
    assert name.startswith(f"endpoint {server.url} tiny /models/base base chat-")
    assert opened(concurrency=1, read_timeout=1.0).name == name
    assert opened(api="completions").name != name
    assert opened(extra={"top_k": 3}).name != name
    assert opened(sampling=False).name != name  # the server draws as it likes
    assert opened(log_probs=False).name != name  # else texts kept without them would be all that a later run gets
    assert opened(identity="lab, revision 3", model="tiny").name.startswith("endpoint lab, revision 3 tiny chat-")


def test_a_run_whose_calls_are_kept_needs_no_server(server: Script, opened: Open, tmp_path: Path) -> None:
    first = opened(identity="lab", model="tiny")
    with CallStore(tmp_path) as store:
        said = Metered(first, meter=Meter(), store=store).generate([Prompt("x")])
    gone = opened(identity="lab", model="tiny", url="http://127.0.0.1:9/v1")
    with CallStore(tmp_path) as store:
        assert Metered(gone, meter=Meter(), store=store).generate([Prompt("x")]) == said
