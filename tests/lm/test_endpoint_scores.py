"""Log-likelihoods of given texts, as a server tells them: of a chat with its template, and of plain text."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from kgqa_core.errors import UnableError
from kgqa_core.lm.call_store import CallStore
from kgqa_core.lm.types import Prompt
from tests.lm.misbehaving import Open, Script
from tests.lm.test_endpoint import around

Api = Literal["chat", "completions"]
NEVER = float("-inf")


@pytest.mark.parametrize(("api", "of_all"), [("chat", -6 / 4), ("completions", -3 / 4)])
def test_scores_are_what_the_option_adds_to_the_prompt(opened: Open, api: Api, of_all: float) -> None:
    """The first token of a text has no probability; of a chat it is the template's."""
    scores = opened(api=api).score([Prompt("is it so? "), Prompt("")], [["yes", "never ever"], ["one two"]])
    assert scores == [[-3 / 4, -(5 + 4) / 4], [of_all]]


def test_an_option_is_how_the_answer_of_a_chat_begins(server: Script, opened: Open) -> None:
    opened(concurrency=1).score([Prompt("is it so?", system="Be brief.")], [["yes"]])
    alone, behind = (request.body for request in server.asked())
    assert alone["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "is it so?"}]
    assert behind["messages"] == [*alone["messages"], {"role": "assistant", "content": "yes"}]
    assert behind["continue_final_message"] and not behind["add_generation_prompt"]
    assert "continue_final_message" not in alone


@pytest.mark.parametrize(("api", "more"), [("chat", 1), ("completions", 0)])  # the word of the template
def test_a_score_costs_each_request_that_is_made_for_it(
    server: Script, opened: Open, tmp_path: Path, api: Api, more: int
) -> None:
    asked = [Prompt("is it so? ", question_id="q1"), Prompt("or so? ", question_id="q2")]
    options = [["yes", "never ever"], ["no"]]
    for paid in (True, False):  # then from the store
        with CallStore(tmp_path) as store:
            metered = around(opened(api=api), store=store)
            metered.score(asked, options)
        usage = metered.meter.usage()
        charged, pays = (
            [usage[f"{kind}_{what}"] for what in ("calls", "prompt_tokens", "tokens")] for kind in ("num", "paid")
        )
        assert charged == [2, (3 + 4 + 5) + (2 + 3) + 5 * more, 3 + 2]
        assert pays == (charged if paid else [0, 0, 0])
    assert len(server.asked()) == 5


def test_a_failed_score_is_minus_infinity(server: Script, opened: Open) -> None:
    server.always.update({"a b": "empty choices", "a c": "too long", "c": "too long"})
    assert opened(api="completions").score([Prompt("a ")], [["c", "dd"]]) == [[NEVER, -0.5]]
    assert opened().score([Prompt("a ")], [["c", "dd"]]) == [[NEVER, -0.5]]


@pytest.mark.parametrize(
    ("api", "behaviour"), [("chat", "good"), ("chat", "no prompt_logprobs"), ("completions", "good")]
)
def test_a_server_that_cannot_tell_is_found_out(server: Script, opened: Open, api: Api, behaviour: str) -> None:
    """Some servers leave out what they do not know, others refuse it by name."""
    server.echoes, server.always["a "] = False, behaviour
    with pytest.raises(UnableError, match="does not tell the log-probabilities"):
        opened(api=api).score([Prompt("a ")], [["d"]])


def test_an_adapter_takes_as_many_tokens_as_the_model_below_it(server: Script, opened: Open) -> None:
    """vLLM lists an adapter beside its base, and tells the length of the base alone."""
    server.models.append({"id": "adapted", "parent": "tiny", "max_model_len": None})
    assert opened(model="adapted").context == 211
