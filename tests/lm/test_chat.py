"""What the model reads: chat templates, system turns, special tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.errors import InputError
from kgqa_core.lm.folders import decode, encode_answers, encode_prompts, load_tokenizer, render
from kgqa_core.lm.local import open_local
from kgqa_core.lm.types import Decoding, Prompt
from tests.lm.tiny_models import make_llama

ASKED = Prompt("who directed Heat ?", system="the answer is a name")


def test_without_a_template_system_and_text_are_joined(llama: Path) -> None:
    tokenizer = load_tokenizer(llama)
    assert render(tokenizer, ASKED) == "the answer is a name\n\nwho directed Heat ?"
    assert render(tokenizer, Prompt("x")) == "x"


def test_a_template_makes_turns(qwen2: Path) -> None:
    assert render(load_tokenizer(qwen2), ASKED) == (
        "<|im_start|>system\nthe answer is a name<|im_end|>\n"
        "<|im_start|>user\nwho directed Heat ?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_system_turn_that_the_template_refuses_goes_into_the_users(llama_chat: Path) -> None:
    tokenizer = load_tokenizer(llama_chat)
    assert render(tokenizer, ASKED) == "<s>[INST] the answer is a name\n\nwho directed Heat ? [/INST]"
    assert encode_prompts(tokenizer, [ASKED])[0].count(tokenizer.bos_token_id) == 1  # the template wrote it


def test_a_system_turn_that_the_template_forgets_goes_into_the_users(qwen2: Path) -> None:
    tokenizer = load_tokenizer(qwen2)
    tokenizer.chat_template = (
        "{% for turn in messages %}{% if turn['role'] == 'user' %}<{{ turn['content'] }}>{% endif %}{% endfor %}"
    )
    assert render(tokenizer, ASKED) == "<the answer is a name\n\nwho directed Heat ?>"


def test_a_template_that_fails_is_the_folders_fault(qwen2: Path) -> None:
    tokenizer = load_tokenizer(qwen2)
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    with pytest.raises(InputError, match=r"chat template of .* fails on a single user turn"):
        render(tokenizer, ASKED)


def test_a_tokenizer_puts_its_begin_token_before_a_plain_prompt(llama: Path, gpt2: Path) -> None:
    assert encode_prompts(load_tokenizer(llama), [Prompt("x")])[0][0] == 1
    assert encode_prompts(load_tokenizer(gpt2), [Prompt("")]) == [[0]]  # a model must read something


def test_an_end_token_that_a_tokenizer_adds_is_taken_off(tmp_path: Path) -> None:
    from tokenizers import processors

    tokenizer = load_tokenizer(make_llama(tmp_path / "model"))
    plain = encode_prompts(tokenizer, [Prompt("x")])
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    assert encode_prompts(tokenizer, [Prompt("x")]) == plain


@settings(max_examples=30)
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\u2581"), max_size=20))
def test_an_answer_survives_its_tokens(any_model: Path, text: str) -> None:
    tokenizer = TOKENIZERS.setdefault(any_model, load_tokenizer(any_model))
    assert decode(tokenizer, encode_answers(tokenizer, [text])[0]) == text


TOKENIZERS: dict[Path, object] = {}


def test_a_prompt_that_leaves_no_room_for_its_answer_is_too_long(any_model: Path) -> None:
    model = open_local(any_model)
    decoding = Decoding(max_new_tokens=7)
    prompts = [Prompt("x" * number) for number in range(180, 258, 4)]
    answers = model.generate(prompts, decoding)
    for num_tokens, texts in zip(model.count_tokens(prompts), answers, strict=True):
        too_long = num_tokens + 7 > model.context
        assert (texts[0].problem == "too_long") == too_long == (texts[0].num_tokens == 0)
        assert len(texts) == 1
    assert {texts[0].problem for texts in answers} == {"", "too_long"}
