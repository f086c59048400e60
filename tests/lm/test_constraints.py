"""A model that follows a constraint writes an allowed text, whatever its tokenizer, and can write each of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kgqa_core.errors import InputError
from kgqa_core.lm.constraints import Choices, compile_constraints

WORDS = ["directed_by", "directed_by.film", "<SEP>", "</PATH>", "^written_by", "Zoë", "日本", "a<b", "A", "AB", "the b"]


@pytest.fixture(scope="module")
def byte_level() -> Any:
    """Byte-level BPE, as Llama-3 and Qwen have it, with tokens that reach from one word into the next."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=["<eos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


@pytest.fixture(scope="module")
def sentence_piece() -> Any:
    """BPE with blanks written as letters and bytes to fall back on, as Llama-2 has it."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<eos>", *(f"<0x{byte:02X}>" for byte in range(256))]
    plain = [text for text in _texts() if "日" not in text]  # which only bytes can write
    tokenizer.train_from_iterator(plain, trainers.BpeTrainer(vocab_size=400, special_tokens=special))
    made = json.loads(tokenizer.to_str())
    made["added_tokens"] = made["added_tokens"][:2]  # the trainer makes special tokens of the bytes, too
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(made)), eos_token="<eos>", unk_token="<unk>"
    )


def _texts() -> list[str]:
    draw = random.Random(5)
    return ["".join(draw.choices(WORDS, k=3)) for _ in range(300)]


@pytest.fixture(params=["byte_level", "sentence_piece"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


class Sentences:
    """Up to two words, each closed by a mark: no piece begins another."""

    key = "sentences"

    def next_pieces(self, pieces: tuple[str, ...]) -> Sequence[str]:
        if not pieces:
            return ("<PATH>",)
        if pieces[-1].endswith("</PATH>"):
            return ()
        marks = ("<SEP>", "</PATH>") if len(pieces) == 1 else ("</PATH>",)
        return tuple(f"{word}{mark}" for word in ("directed_by", "directed_by.film", "日本") for mark in marks)

    def may_end(self, pieces: tuple[str, ...]) -> bool:
        return bool(pieces) and pieces[-1].endswith("</PATH>")


def all_texts(constraint: Any, pieces: tuple[str, ...] = ()) -> Iterable[str]:
    if constraint.may_end(pieces):
        yield "".join(pieces)
    for piece in constraint.next_pieces(pieces):
        yield from all_texts(constraint, (*pieces, piece))


def written(tokenizer: Any, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def walk(tokenizer: Any, constraint: Any, seed: int) -> str:
    """Take any of the allowed tokens until the end."""
    draw, allowed = random.Random(seed), compile_constraints(tokenizer, [constraint], prompt_length=0)
    tokens: list[int] = []
    while not tokens or tokens[-1] != tokenizer.eos_token_id:
        tokens.append(draw.choice(allowed(0, torch.tensor(tokens, dtype=torch.long))))
    return written(tokenizer, tokens)


@given(seed=st.integers(0, 10_000))
def test_whatever_a_model_prefers_the_text_is_allowed(byte_level: Any, sentence_piece: Any, seed: int) -> None:
    legal = set(all_texts(Sentences()))
    assert walk(byte_level, Sentences(), seed) in legal
    assert walk(sentence_piece, Sentences(), seed) in legal


def test_each_allowed_text_can_be_written_as_the_tokenizer_writes_it(tokenizer: Any) -> None:
    legal = sorted(set(all_texts(Sentences())))
    assert len(legal) == 12
    for text in legal:
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        allowed = compile_constraints(tokenizer, [Sentences()], prompt_length=0)
        for at, token in enumerate(tokens):
            assert token in allowed(0, torch.tensor(tokens[:at], dtype=torch.long))


@given(
    texts=st.lists(st.text(alphabet="ab <é", min_size=1, max_size=5), min_size=1, max_size=6), seed=st.integers(0, 99)
)
def test_exactly_the_tokens_are_allowed_after_which_a_text_can_be_finished(
    byte_level: Any, texts: list[str], seed: int
) -> None:
    """Against trying every token of the vocabulary on every text."""
    constraint, draw, tokens = Choices(texts), random.Random(seed), list[int]()
    vocabulary = {token: written(byte_level, [token]) for token in range(1, len(byte_level))}
    pieces = {token: text for token, text in vocabulary.items() if "�" not in text and "é" not in text}
    allowed = compile_constraints(byte_level, [constraint], prompt_length=0)
    so_far = ""
    while True:
        expected = {token for token, text in pieces.items() if any(t.startswith(so_far + text) for t in texts)}
        if so_far in texts:
            expected.add(byte_level.eos_token_id)
        got = set(allowed(0, torch.tensor(tokens, dtype=torch.long)))
        assert {token for token in got if token in pieces or token == byte_level.eos_token_id} == expected
        plain = sorted(got & set(pieces))
        if not plain:
            break
        tokens.append(draw.choice(plain))
        so_far += pieces[tokens[-1]]


def test_a_choice_may_begin_another(tokenizer: Any) -> None:
    found = {walk(tokenizer, Choices(["A", "AB", "the b"]), seed) for seed in range(60)}
    assert found == {"A", "AB", "the b"}


def test_where_nothing_may_be_written_the_text_is_empty(tokenizer: Any) -> None:
    assert walk(tokenizer, Choices([]), 0) == ""


def test_equal_choices_have_equal_keys() -> None:
    assert Choices(["b", "a", "a"]).key == Choices(["a", "b"]).key != Choices(["a"]).key


def test_beam_search_of_transformers_follows_prompt_by_prompt(byte_level: Any) -> None:
    """Through prefix_allowed_tokens_fn; a prompt may be free."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(byte_level), hidden_size=16, intermediate_size=31, num_hidden_layers=1, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).eval()
    prompts = torch.randint(1, len(byte_level), (3, 7))
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 40, "pad_token_id": 0, "eos_token_id": 0}
    constraints = [Sentences(), None, Choices(["directed_by", "日本"])]
    follow = compile_constraints(byte_level, constraints)
    first = model.generate(prompts, attention_mask=torch.ones_like(prompts), prefix_allowed_tokens_fn=follow, **options)
    texts = [written(byte_level, row[7:].tolist()) for row in first]
    legal = set(all_texts(Sentences()))
    assert {texts[0], texts[1]} <= legal and {texts[4], texts[5]} <= {"directed_by", "日本"}
    assert texts[2] not in legal  # was free


def test_a_tokenizer_that_splits_words_beyond_repair_is_refused() -> None:
    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    pieces.decoder = decoders.WordPiece()
    with pytest.raises(InputError, match=r"WordPiece.*byte-level or SentencePiece"):
        compile_constraints(PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="[UNK]"), [Choices(["a"])])
