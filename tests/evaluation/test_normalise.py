"""Names made comparable: as published, and strictly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.evaluation.rog import normalise_name, normalise_published


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Matrix", "matrix"),
        ("An apple, a day.", "apple day"),
        ("Theatre", "theatre"),
        ("U.S.A.", "usa"),
        ("$ !?", ""),
        ("A", ""),
        ("Fifty/Fifty", "fiftyfifty"),
        ("¿Qué?", "¿qué"),  # only ASCII punctuation goes
        ("<pad> Rome <pad>", "pad rome pad"),  # the brackets are gone before the published code looks for them
    ],
)
def test_published_normalisation(text: str, expected: str) -> None:
    assert normalise_published(text) == expected


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("Rome ", "rome", True),
        ("New\u00a0York", "new  york", True),
        ("Cafe\u0301", "café", True),
        ("Straße", "STRASSE", True),
        ("It", "It!", False),
        ("The Thing", "Thing", False),
        ("U.S.A.", "USA", False),
    ],
)
def test_strict_equality_keeps_what_tells_entities_apart(one: str, other: str, equal: bool) -> None:
    assert (normalise_name(one) == normalise_name(other)) is equal


@given(st.text(max_size=30))
def test_published_result_has_no_outer_or_double_space(text: str) -> None:
    result = normalise_published(text)
    assert result == " ".join(result.split())
    assert not {"a", "an", "the"} & set(result.split(" "))
