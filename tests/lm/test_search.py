"""The search alone: spellings of one text take no place of others; texts that repeat themselves for ever are cut."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.lm.constraints import Choices, start_state
from kgqa_core.lm.folders import Ending, encode_answers, encode_prompts
from kgqa_core.lm.generate import generate_batch
from kgqa_core.lm.local import open_local
from kgqa_core.lm.search import Branch, Search, cut_loop
from kgqa_core.lm.types import Decoding, Prompt

TEXTS = ["who directed Heat ?", "what is the genre of the film that Michael Mann directed ?"]
PROMPTS = [Prompt(text) for text in TEXTS]
SAMPLES = Decoding(max_new_tokens=6, method="sample", num_returns=3, seed=7)
END = 2  # of qwen2: <|im_end|>


@settings(max_examples=15)
@given(st.permutations(["Bath Spa", "Michael Mann", "drama"]), st.integers(0, 9), st.integers(0, 10**6))
def test_other_spellings_take_no_place_of_other_texts(qwen2: Path, options: list[str], apart: int, seed: int) -> None:
    """A model that is sure of one text gives its other spellings more than the next text; all spellings are tried."""
    tokenizer = open_local(qwen2).tokenizer
    start, ending = start_state(tokenizer, Choices(options), listed=0), Ending(tokenizer, frozenset([END]))
    usual = [(*row, END) for row in encode_answers(tokenizer, options)]

    def following(tokens: tuple[int, ...], state: Any) -> list[tuple[int, float]]:
        found = []
        for token in state.allowed:
            written = (*tokens, token)
            chance = random.Random(repr((seed, written))).random()
            is_usual = any(row[: len(written)] == written for row in usual)
            of = next(place for place, one in enumerate(options) if one.startswith(ending.answer(written)))
            found.append((token, -(chance / 9 if is_usual else 6 + chance) - (0 if tokens else of * (apart + 1))))
        return sorted(found, key=lambda one: -one[1])

    def spell(tokens: tuple[int, ...], state: Any, score: float) -> None:
        for token, log_prob in following(tokens, state):
            if token == END:
                text = ending.answer((*tokens, token))
                best[text] = max(best.get(text, -math.inf), score + log_prob)
            else:
                spell((*tokens, token), state.after(token), score + log_prob)

    best: dict[str, float] = {}
    spell((), start, 0.0)
    search = Search(0, 3, 3, [Branch((), 0.0, 0, start)], [0])
    while search.live:
        search.advance([following(branch.tokens, branch.state) for branch in search.live], ending)
    found = {ending.answer(branch.tokens): branch.log_prob for branch in search.done}
    assert list(found) == sorted(best, key=lambda text: -best[text])
    assert found == pytest.approx(best)


@pytest.mark.parametrize(
    ("text", "once"),
    [
        ("Answer:\n" + "Oto Brandt\n" * 9 + "Oto Br", "Answer:\nOto Brandt"),
        ("Ida Moon\n" + "Oto Brandt\nLev Sand\n" * 7 + "Oto Br", "Ida Moon\nOto Brandt\nLev Sand"),
        ("It is " + "Oto Brandt, " * 20 + "Oto", "It is Oto Brandt"),
        ("the " * 99, "the"),
        ("a number: 10" + "0" * 60, "a number: 10"),
        ("1000000", "1000000"),
        ("Oto Brandt\nOto Brandt\nLev Sand", "Oto Brandt\nOto Brandt\nLev Sand"),  # and then it went on
        ("", ""),
    ],
)
def test_what_is_said_for_ever_is_read_once(text: str, once: str) -> None:
    assert cut_loop(text) == once


@given(st.text(alphabet="ab\n, ", max_size=30), st.text(alphabet="cd\n ", min_size=1, max_size=20), st.integers(3, 50))
def test_a_cut_is_a_beginning_and_is_not_cut_again(before: str, again: str, times: int) -> None:
    text = before + again * times
    once = cut_loop(text)
    assert text.startswith(once) and cut_loop(once) == once
    assert len(text) < 80 or len(again) * times < 40 or len(once) < len(text)


def test_a_model_that_repeats_itself_is_stopped_and_one_under_a_constraint_is_not(qwen2: Path) -> None:
    """Weights of zero: whatever was said, the first of the tokens that may follow comes next."""
    model = open_local(qwen2)
    with torch.no_grad():
        for weight in model.model.parameters():
            weight.zero_()
    ending, rows = Ending(model.tokenizer, frozenset()), encode_prompts(model.tokenizer, PROMPTS)
    bound = start_state(model.tokenizer, Choices(["x" * 100, "y"]))
    found = generate_batch(model.model, rows, Decoding(max_new_tokens=90), ending=ending, starts=[None, bound])
    assert [(text.num_tokens, text.finished) for (text,) in found] == [(48, False), (90, False)]
    assert cut_loop(found[0][0].text) == "<|endoftext|>"
    samples = replace(SAMPLES, max_new_tokens=90)
    assert {text.num_tokens for text in generate_batch(model.model, rows, samples, ending=ending)[0]} == {90}
