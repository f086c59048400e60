"""The groups that figures are broken down by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.evaluation.metrics import ANSWER_BUCKETS, HOP_BUCKETS, answer_bucket, hop_bucket


@pytest.mark.parametrize(
    ("num", "bucket"),
    [(0, "0"), (1, "1"), (2, "2-4"), (4, "2-4"), (5, "5-9"), (9, "5-9"), (10, ">=10"), (997, ">=10")],
)
def test_numbers_of_answers(num: int, bucket: str) -> None:
    assert answer_bucket(num) == bucket


@pytest.mark.parametrize(("hops", "bucket"), [(1, "1"), (2, "2"), (3, ">=3"), (7, ">=3"), (None, "unknown")])
def test_numbers_of_hops(hops: int | None, bucket: str) -> None:
    assert hop_bucket(hops) == bucket


@given(st.integers(0, 50))
def test_every_number_has_a_bucket_and_larger_ones_never_an_earlier_one(num: int) -> None:
    assert ANSWER_BUCKETS.index(answer_bucket(num)) <= ANSWER_BUCKETS.index(answer_bucket(num + 1))
    assert HOP_BUCKETS.index(hop_bucket(num + 1)) <= HOP_BUCKETS.index(hop_bucket(num + 2))
