"""Samples depend on prompt, seed and sample alone, and are drawn as told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from kgqa_core.lm.constraints import Choices
from kgqa_core.lm.generate import pick
from kgqa_core.lm.local import open_local
from kgqa_core.lm.types import Decoding, Prompt

PROMPTS = [Prompt(text) for text in ("who directed Heat ?", "x", "the plan is film.film.genre and the answer is")]
SAMPLES = Decoding(max_new_tokens=6, method="sample", num_returns=3, seed=7)


def test_the_rest_of_the_batch_changes_no_sample(any_model: Path) -> None:
    together = open_local(any_model).generate(PROMPTS, SAMPLES)
    shuffled = open_local(any_model, batch_size=2).generate(PROMPTS[::-1], SAMPLES)[::-1]
    for one, other in zip(together, shuffled, strict=True):
        assert [text.text for text in one] == [text.text for text in other]
    fewer = open_local(any_model).generate(PROMPTS[:1], Decoding(max_new_tokens=6, method="sample", seed=7))
    assert fewer[0][0].text == together[0][0].text  # the first sample is the first, however many are drawn


def test_samples_and_seeds_differ(qwen2: Path) -> None:
    model = open_local(qwen2)
    first = model.generate(PROMPTS[:1], SAMPLES)[0]
    assert len({text.text for text in first}) == 3
    other = model.generate(PROMPTS[:1], Decoding(max_new_tokens=6, method="sample", num_returns=3, seed=8))[0]
    assert first != other


def test_a_sample_follows_its_constraint(any_model: Path) -> None:
    model = open_local(any_model)
    options = ["drama", "Heat", "Michael Mann"]
    prompts = [Prompt(prompt.text, constraint=Choices(options)) for prompt in PROMPTS]
    for texts in model.generate(prompts, Decoding(max_new_tokens=20, method="sample", num_returns=5)):
        assert {text.text for text in texts} <= set(options)
        assert len(texts) == 5


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 0.8)])
def test_tokens_are_drawn_with_the_probabilities_told(temperature: float, top_p: float) -> None:
    logits = torch.tensor([[0.3, 2.0, -1.0, 1.2, 0.0]])
    num = 4001
    draws = [(number + 0.5) / num for number in range(num)]  # evenly: shares come out as they are
    decoding = Decoding(method="sample", temperature=temperature, top_p=top_p)
    picked = pick(logits.expand(num, -1), decoding, count=1, draws=draws, legal=None)
    drawn = Counter(row[0][0] for row in picked)
    probs = (logits[0] / temperature).softmax(0)
    order = probs.argsort(descending=True)
    kept = order[: int((probs[order].cumsum(0) < top_p).sum()) + 1]
    expected = {int(token): float(probs[token] / probs[kept].sum()) for token in kept}
    assert {token: count / num for token, count in drawn.items()} == pytest.approx(expected, abs=1e-3)


def test_a_drawn_token_tells_the_models_own_log_prob() -> None:
    logits = torch.tensor([[0.3, 2.0, -1.0, 1.2, 0.0]])
    decoding = Decoding(method="sample", temperature=0.1)
    picked = pick(logits, decoding, count=1, draws=[0.0], legal=[[4, 2]])
    assert picked == [[(4, pytest.approx(float(logits[0].log_softmax(0)[4])))]]


def test_the_last_draw_finds_a_token_that_is_allowed() -> None:
    logits, sample = torch.tensor([[0.0, 1.0, float("-inf"), float("-inf")]]), Decoding(method="sample")
    assert pick(logits, sample, count=1, draws=[1 - 1e-17], legal=None)[0][0][0] == 1
    assert pick(logits, sample, count=1, draws=[0.5], legal=[[]]) == [[]]


def test_the_best_of_the_allowed_tokens() -> None:
    logits = torch.tensor([[0.3, 2.0, -1.0, 1.2], [0.3, 2.0, -1.0, 1.2], [5.0, 0.0, 1.0, 2.0]])
    picked = pick(logits, Decoding(), count=2, draws=[0.0] * 3, legal=[[3, 2, 0], None, [1]])
    assert [[token for token, _ in row] for row in picked] == [[3, 0], [1, 3], [1]]
    assert picked[2][0][1] == pytest.approx(float(logits[2].log_softmax(0)[1]))
