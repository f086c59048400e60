"""Pairs of clue and relation, or clue and entity, as text."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgqa_core.instructions.mappings import ClueMatch, Mappings, parse_mappings
from kgqa_core.instructions.render import escape
from kgqa_core.instructions.types import ParseFailure

CLUES, RELATIONS = ["wrote", "painter"], ["author", "^painted_by", "a -> b"]


@given(st.text() | st.text(alphabet="wrote->author|=0123456789(/)\n "))
@example("wrote -> author = 5/0")
def test_parsing_never_raises(text: str) -> None:
    found = parse_mappings(text, CLUES, RELATIONS)
    assert isinstance(found, ParseFailure) or all(0 <= pair.score <= 10 for pair in found.pairs)


@given(st.text(alphabet="ab ->|=1\n^", min_size=1, max_size=8), st.text(alphabet="ab ->|=1\n^", min_size=1, max_size=8))
def test_odd_names_come_back(clue: str, option: str) -> None:
    found = parse_mappings(f"{escape(clue)} -> {escape(option)}", [clue], [option])
    assert found == Mappings((ClueMatch(0, 0, 10.0),))


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("wrote -> author = 9\npainter -> ^painted_by = 7", ((0, 0, 9.0), (1, 1, 7.0))),
        ("1. Wrote → author (8/10)", ((0, 0, 8.0),)),
        ("- painter | ^painted_by", ((1, 1, 10.0),)),
        ("wrote -> a -> b = 3", ((0, 2, 3.0),)),
        ("none", ()),
        ("No clue fits.", ()),
    ],
)
def test_pairs_are_found_in_what_models_really_write(text: str, pairs: tuple[tuple[int, int, float], ...]) -> None:
    assert parse_mappings(text, CLUES, RELATIONS) == Mappings(tuple(ClueMatch(*pair) for pair in pairs))


def test_what_was_never_offered_is_counted() -> None:
    assert parse_mappings("wrote -> publisher = 9", CLUES, RELATIONS) == Mappings((), num_unknown=1)


def test_prose_is_a_failure() -> None:
    assert parse_mappings("I like books.", CLUES, RELATIONS) == ParseFailure("no mapping", "I like books.")
