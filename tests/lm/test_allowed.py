"""Constraints read as a whole: is a text allowed, and which are there?"""

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.lm.allowed import finite_texts, is_allowed


class Automaton:
    """Sequences of pieces up to a length, of those of a set."""

    def __init__(self, pieces: Sequence[str], most: int, least: int = 1) -> None:
        self.pieces, self.most, self.least = tuple(pieces), most, least

    @property
    def key(self) -> str:
        return repr((self.pieces, self.most, self.least))

    def next_pieces(self, pieces: tuple[str, ...]) -> Sequence[str]:
        return self.pieces if len(pieces) < self.most else ()

    def may_end(self, pieces: tuple[str, ...]) -> bool:
        return len(pieces) >= self.least


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


def test_texts_come_in_the_order_of_the_pieces() -> None:
    assert finite_texts(Automaton(["yes", "no"], 1)) == ["yes", "no"]


@pytest.mark.parametrize(
    "automaton", [Automaton(["a"], 10**6), Automaton(["a", "b"], 20), Automaton("abcdefg" * 900, 1)]
)
def test_too_many_texts_are_no_choice(automaton: Automaton) -> None:
    assert finite_texts(automaton, limit=100) is None


def test_a_constraint_that_allows_nothing() -> None:
    assert finite_texts(Automaton([], 1)) == []
    assert not is_allowed(Automaton([], 1), "")
