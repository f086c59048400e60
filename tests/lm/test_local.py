"""Local models: what is asked comes back, in order, whatever the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kgqa_core.errors import InputError
from kgqa_core.lm.chat import decode, encode_prompts
from kgqa_core.lm.local import open_local
from kgqa_core.lm.types import Decoding, Prompt

PROMPTS = [
    Prompt("who directed Heat ?"),
    Prompt("what does Bath Spa say about 42 trains , and the plan is what genre of film ?"),
    Prompt("x"),
    Prompt("Answer: the", system="the plan is drama"),
    Prompt("naïve"),
]
SHORT = Decoding(max_new_tokens=7)


def test_a_prompt_gets_the_same_text_in_any_batch(any_model: Path) -> None:
    alone = open_local(any_model, batch_size=1).generate(PROMPTS, SHORT)
    together = open_local(any_model, batch_size=64).generate(PROMPTS, SHORT)
    for one, other in zip(alone, together, strict=True):
        assert one[0].text == other[0].text
        assert one[0].log_prob == pytest.approx(other[0].log_prob, abs=1e-4)


def test_greedy_equals_transformers(any_model: Path) -> None:
    model = open_local(any_model)
    for prompt, texts in zip(PROMPTS, model.generate(PROMPTS, SHORT), strict=True):
        tokens = torch.tensor(encode_prompts(model.tokenizer, [prompt]))
        made = model.model.generate(tokens, max_new_tokens=7, do_sample=False, eos_token_id=model.ends, pad_token_id=0)
        assert texts[0].text == decode(model.tokenizer, [t for t in made[0, tokens.shape[1] :] if t not in model.ends])


def test_unknown_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder"):
        open_local(tmp_path / "none")
