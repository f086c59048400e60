"""The compiled sort of strings, against Python's."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgqa_core.graph.string_sort import LARGE, SMALL, num_repeated, sort_strings
from kgqa_core.graph.strings import fold, string_buffers

texts = st.lists(st.text("a\0é\U0001f600z", max_size=20) | st.text(max_size=3), max_size=3 * SMALL)


@given(texts)
@settings(deadline=None)
def test_strings_are_in_byte_order_and_equal_ones_in_order_of_rows(names: list[str]) -> None:
    strings = string_buffers(pa.array(names, pa.large_string()))
    order = sort_strings(*strings)
    assert order.tolist() == sorted(range(len(names)), key=lambda row: names[row].encode())
    repeated = sum(count > 1 for count in Counter(names).values())
    assert num_repeated(*strings, order) == repeated


@pytest.mark.parametrize("count", [SMALL, SMALL + 1, LARGE, LARGE + 997])
@pytest.mark.parametrize("letters", ["ab\0", "\0", "m.0bc"])
def test_many_strings_of_few_letters_share_long_beginnings(count: int, letters: str) -> None:
    draw = np.random.default_rng(count)
    lengths = draw.choice([0, 1, 7, 8, 9, 15, 16, 17, 30], count)
    names = ["".join(draw.choice(list(letters), length)) for length in lengths]
    order = sort_strings(*string_buffers(pa.array(names, pa.large_string())))
    assert order.tolist() == sorted(range(count), key=lambda row: names[row].encode())


def test_a_slice_of_an_array_is_sorted_alone() -> None:
    names = pa.array(["z", "c", "a", "b", "0"], pa.large_string()).slice(1, 3)
    assert sort_strings(*string_buffers(names)).tolist() == [1, 2, 0]


@given(st.lists(st.text(max_size=4) | st.sampled_from(["STRASSE", "Straße", "ǅ", "İ", "ΑΣ"])))
def test_folding_is_that_of_python(names: list[str]) -> None:
    assert fold(pa.array(names, pa.string())).to_pylist() == [name.casefold() for name in names]
