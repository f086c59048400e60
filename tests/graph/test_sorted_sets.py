"""Sets as ascending arrays, against Python's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.graph.csr import shared_sorted

sets = st.sets(st.integers(0, 40), max_size=30)


@given(sets, sets, st.sampled_from([np.int32, np.int64]))
def test_what_two_sets_share(one: set[int], other: set[int], kind: type) -> None:
    shared = shared_sorted(np.array(sorted(one), dtype=np.int64), np.array(sorted(other), dtype=kind))
    assert shared.tolist() == sorted(one & other)
