"""Which texts a constraint allows; a model that follows it writes one of them, whatever its tokenizer."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from kgqa_core.errors import InputError
from kgqa_core.lm.calls import is_allowed
from kgqa_core.lm.constraints import LISTED, Choices, Lines, Place, Spelling, TokenState, finite_texts, start_state
from tests.lm import tiny_models

WAYS = pytest.mark.parametrize("listed", [LISTED, 0], ids=["spelled", "any way of tokens"])
WORDS = ["directed_by", "directed_by.film", "<SEP>", "</PATH>", "^written_by", "Zoë", "日本", "a<b", "A", "AB", "the b"]


@pytest.fixture(scope="module")
def byte_level() -> Any:
    """Byte-level tokens that reach from one word into the next."""
    return tiny_models.byte_level(["<eos>"], corpus=_texts(), size=340, words=False, eos_token="<eos>")


@pytest.fixture(scope="module")
def sentence_piece() -> Any:
    """SentencePiece's kind, where only bytes can write one of the words."""
    return tiny_models.sentencepiece_like(corpus=[text for text in _texts() if "日" not in text], size=400)


@pytest.fixture(scope="module")
def gemma() -> Any:
    """Gemma's kind: SentencePiece's, but no blank is put before a text or taken away from it."""
    made = tiny_models.sentencepiece_like(corpus=_texts(), size=400)
    made.backend_tokenizer.normalizer = normalizers.Replace(" ", "▁")
    made.backend_tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return made


def _texts() -> list[str]:
    draw = random.Random(5)
    return ["".join(draw.choices(WORDS, k=3)) for _ in range(300)]


@pytest.fixture(params=["byte_level", "sentence_piece", "gemma"])
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


def begin(tokenizer: Any, constraint: Any, listed: int = LISTED) -> TokenState:
    state = start_state(tokenizer, constraint, listed=listed)
    assert state is not None and isinstance(state, Spelling if listed else Place)
    return state


def walk(tokenizer: Any, constraint: Any, seed: int, listed: int = 0) -> str:
    """Take any of the allowed tokens until the end."""
    draw, state, tokens = random.Random(seed), start_state(tokenizer, constraint, listed=listed), list[int]()
    while state is not None:
        tokens.append(draw.choice(state.allowed))
        state = state.after(tokens[-1])
    assert tokens[-1] == tokenizer.eos_token_id
    return written(tokenizer, tokens)


@WAYS
@given(seed=st.integers(0, 10_000))
def test_whatever_a_model_prefers_the_text_is_allowed(
    byte_level: Any, sentence_piece: Any, listed: int, seed: int
) -> None:
    legal = set(all_texts(Sentences()))
    assert walk(byte_level, Sentences(), seed, listed) in legal
    assert walk(sentence_piece, Sentences(), seed, listed) in legal


@WAYS
def test_each_allowed_text_can_be_written_as_the_tokenizer_writes_it(tokenizer: Any, listed: int) -> None:
    legal = sorted(set(all_texts(Sentences())))
    assert len(legal) == 12
    for text in legal:
        state: TokenState | None = begin(tokenizer, Sentences(), listed)
        for token in tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]:
            assert state is not None and token in state.allowed
            state = state.after(token)
        assert state is None


def test_a_spelled_text_has_one_way_of_tokens(tokenizer: Any) -> None:
    def ways(state: TokenState | None) -> int:
        return 1 if state is None else sum(ways(state.after(token)) for token in state.allowed)

    legal = set(all_texts(Sentences()))
    assert ways(begin(tokenizer, Sentences())) == len(legal)
    assert ways(begin(tokenizer, Choices(["A", "AB"]), 0)) > 2


def test_texts_that_are_not_what_their_tokens_say_are_not_spelled(byte_level: Any) -> None:
    for text in ("<eos>A", "A<eos>"):
        assert isinstance(start_state(byte_level, Choices([text, "A"])), Place)
    assert isinstance(start_state(byte_level, Choices([f"{number}" for number in range(LISTED + 1)])), Place)


@given(
    texts=st.lists(st.text(alphabet="ab <é", min_size=1, max_size=5), min_size=1, max_size=6), seed=st.integers(0, 99)
)
def test_exactly_the_tokens_are_allowed_after_which_a_text_can_be_finished(
    byte_level: Any, texts: list[str], seed: int
) -> None:
    """Against trying every token of the vocabulary on every text."""
    draw, so_far, state = random.Random(seed), "", start_state(byte_level, Choices(texts), listed=0)
    vocabulary = {token: written(byte_level, [token]) for token in range(1, len(byte_level))}
    pieces = {token: text for token, text in vocabulary.items() if "�" not in text and "é" not in text}
    while state is not None:
        expected = {token for token, text in pieces.items() if any(t.startswith(so_far + text) for t in texts)}
        if so_far in texts:
            expected.add(byte_level.eos_token_id)
        got = set(state.allowed)
        assert {token for token in got if token in pieces or token == byte_level.eos_token_id} == expected
        plain = sorted(got & set(pieces))
        if not plain:
            break
        token = draw.choice(plain)
        so_far, state = so_far + pieces[token], state.after(token)


@WAYS
def test_a_choice_may_begin_another(tokenizer: Any, listed: int) -> None:
    found = {walk(tokenizer, Choices(["A", "AB", "the b"]), seed, listed) for seed in range(60)}
    assert found == {"A", "AB", "the b"}


@WAYS
def test_lines_are_some_of_those_given_each_once_or_one_text_instead(tokenizer: Any, listed: int) -> None:
    lines = ["A", "AB", "directed_by", "日本"]  # one begins another
    wanted = {"\n".join(some) for size in range(1, 5) for some in permutations(lines, size)} | {"the b"}
    bound = Lines([*lines, "A", ""], "the b")
    assert set(finite_texts(bound) or ()) == wanted
    for text in ("A\nA", "A\n", "\nA", "the b\nA", "A\nthe b", "directed", "", "A\n\nAB"):
        assert not is_allowed(bound, text)
    assert all(walk(tokenizer, bound, seed, listed) in wanted for seed in range(60))
    assert Lines(lines[::-1], "x").key == Lines(lines, "x").key != Lines(lines, "y").key


def test_of_no_choice_comes_an_empty_text_and_equal_choices_have_equal_keys(tokenizer: Any) -> None:
    assert walk(tokenizer, Choices([]), 0) == ""
    assert Choices(["b", "a", "a"]).key == Choices(["a", "b"]).key != Choices(["a"]).key


def test_a_tokenizer_that_splits_words_beyond_repair_is_refused() -> None:
    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    pieces.decoder = decoders.WordPiece()
    with pytest.raises(InputError, match=r"WordPiece.*byte-level or SentencePiece"):
        start_state(PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="[UNK]"), Choices(["a"]))


class Automaton:
    """Sequences of pieces up to a length, of those of a set."""

    key = "automaton"

    def __init__(self, pieces: Sequence[str], most: int) -> None:
        self.pieces, self.most = tuple(pieces), most

    def next_pieces(self, pieces: tuple[str, ...]) -> Sequence[str]:
        return self.pieces if len(pieces) < self.most else ()

    def may_end(self, pieces: tuple[str, ...]) -> bool:
        return len(pieces) >= 1


SOUND = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3, unique=True).filter(
    lambda pieces: not any(x != y and x.startswith(y) for x in pieces for y in pieces)
)


@given(SOUND, st.integers(1, 3), st.text("ab", max_size=7))
def test_a_text_is_allowed_if_it_is_among_all_that_are(pieces: list[str], most: int, text: str) -> None:
    automaton = Automaton(pieces, most)
    texts = {"".join(chosen) for length in range(1, most + 1) for chosen in product(pieces, repeat=length)}
    found = finite_texts(automaton)
    assert found is not None
    assert set(found) == texts
    assert len(found) == len(texts)
    assert is_allowed(automaton, text) == (text in texts)


def test_texts_come_in_the_order_of_the_pieces_and_too_many_are_no_choice() -> None:
    assert finite_texts(Automaton(["yes", "no"], 1)) == ["yes", "no"]
    assert finite_texts(Automaton([], 1)) == [] and not is_allowed(Automaton([], 1), "")
    for endless in (Automaton(["a"], 10**6), Automaton(["a", "b"], 20), Automaton("abcdefg" * 900, 1)):
        assert finite_texts(endless, limit=100) is None
