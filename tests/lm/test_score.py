"""Scores against reading each prompt and option from the start, one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kgqa_core.lm.chat import encode_answers, encode_prompts
from kgqa_core.lm.local import LocalModel, open_local
from kgqa_core.lm.types import Prompt

PROMPTS = [Prompt(text) for text in ("who directed Heat ?", "x", "the plan is film.film.genre and the answer is")]
OPTIONS = [["Michael Mann", "drama", ""], [], ["film.film.genre", "x", "naïve 42 trains", "the plan is film", "drama"]]


def plain_score(model: LocalModel, prompt: Prompt, option: str) -> float:
    start = encode_prompts(model.tokenizer, [prompt])[0]
    answer = [*encode_answers(model.tokenizer, [option])[0], model.ends[0]]
    with torch.inference_mode():
        log_probs = model.model(torch.tensor([start + answer])).logits[0].double().log_softmax(1)
    return sum(float(log_probs[len(start) + place - 1, token]) for place, token in enumerate(answer))


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_scores_are_those_of_reading_one_by_one(any_model: Path, batch_size: int) -> None:
    model = open_local(any_model, batch_size=batch_size)
    for prompt, options, scores in zip(PROMPTS, OPTIONS, model.score(PROMPTS, OPTIONS), strict=True):
        assert scores == pytest.approx([plain_score(model, prompt, option) for option in options], abs=1e-4)


def test_an_option_that_does_not_fit_the_context_is_impossible(qwen2: Path) -> None:
    model = open_local(qwen2)
    long = "film " * model.context
    scores = model.score([Prompt("x"), Prompt(long), Prompt("who")], [["drama", long], ["drama"], ["drama"]])
    assert scores[0][1] == scores[1][0] == float("-inf")
    assert scores[0][0] > float("-inf") and scores[2][0] > float("-inf")


def test_nothing_asked_nothing_told(qwen2: Path) -> None:
    model = open_local(qwen2)
    assert model.score([], []) == []
    assert model.score(PROMPTS[:1], [[]]) == [[]]
    assert model.generate([]) == []
    assert model.count_tokens([]) == []
