"""Codes: the compiled ones equal the plain ones, MIDs come back and keep their order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.graph.dump import codes
from kgqa_core.graph.dump.codes import ALPHABET, code_of, codes_of, hash_text, label_of, labels_of

MIDS = st.builds(
    lambda kind, text: kind + text, st.sampled_from(["m.", "g."]), st.text(ALPHABET, min_size=1, max_size=11)
)
NEARLY_MIDS = st.text("mg.0b_aeAx", max_size=15)
LABELS = st.one_of(MIDS, NEARLY_MIDS, st.text(max_size=40))


def test_codes_stay_what_they_are() -> None:
    """They are at rest in artifacts: another value needs another version of the stage."""
    assert code_of("m.0abc") < 0  # a is no character of MIDs
    assert code_of("g.1") == (1 << 54) | 1
    assert code_of("m.02mjmr") == 577948198262276102
    assert [code_of(label) for label in ("", "people.person", "Café")] == [
        -2152535657050944081,
        -2453070232073053245,
        -3804560803786115082,
    ]


@given(MIDS)
def test_a_mid_comes_back(label: str) -> None:
    code = code_of(label)
    assert 0 < code < 2**60
    assert label_of(code) == label


@given(st.lists(MIDS))
def test_order_of_codes_is_the_order_of_labels(labels: list[str]) -> None:
    assert sorted(labels) == sorted(labels, key=code_of)


@given(LABELS)
def test_what_is_no_mid_is_negative(label: str) -> None:
    is_mid = label[:2] in ("m.", "g.") and 3 <= len(label) <= 13 and set(label[2:]) <= set(ALPHABET)
    assert (code_of(label) > 0) == is_mid


@given(st.lists(LABELS))
@settings(deadline=None)  # the first example may compile
def test_compiled_codes_equal_plain_ones(labels: list[str]) -> None:
    assert codes_of(labels).tolist() == [code_of(label) for label in labels]


@settings(deadline=None)
@given(st.lists(st.one_of(MIDS.map(code_of), LABELS.map(code_of))))
def test_compiled_labels_equal_plain_ones(numbers: list[int]) -> None:
    expected = [label_of(code) if code > 0 else None for code in numbers]
    assert labels_of(np.array(numbers, np.int64)).to_pylist() == expected


@settings(deadline=None)
@given(st.integers(0, 2**63 - 1))
def test_a_number_that_is_no_code_is_refused(number: int) -> None:
    try:
        assert code_of(label_of(number)) == number
    except ValueError:
        with pytest.raises(ValueError, match=f"{number} is no code of a MID"):
            labels_of(np.array([code_of("m.0b"), number]))


def test_without_numba_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = ["m.0b", "people.person", "", "g.zzzzzzzzzzz"]
    compiled = codes_of(labels)
    names = labels_of(compiled).to_pylist()
    monkeypatch.setattr(codes, "has_numba", lambda: False)
    assert codes_of(labels).tolist() == compiled.tolist()
    assert labels_of(compiled).to_pylist() == names == ["m.0b", None, None, "g.zzzzzzzzzzz"]


def test_texts_that_differ_little_have_codes_that_differ_much() -> None:
    texts = [
        f"{year}-{month:02}-{day:02}".encode() for year in range(1900, 2000) for month in range(12) for day in range(28)
    ]
    hashes = [hash_text(text) for text in texts]
    assert len({code for code, _ in hashes}) == len({check for _, check in hashes}) == len(texts)
    ones = np.array([[code >> bit & 1 for bit in range(63)] for code, _ in hashes[:4000]]).mean(axis=0)
    assert np.all(abs(ones - 0.5) < 0.05)  # every bit is as often set as not
