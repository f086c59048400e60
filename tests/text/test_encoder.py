"""The hash encoder is deterministic across processes and gives unit rows for any text."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.text.encoder import HashEncoder

PRINT_FIRST = (
    "from kgqa_core.text.encoder import HashEncoder; print(HashEncoder(31).encode(['who sails [topic]?']).tolist())"
)


@given(st.lists(st.text(max_size=23), max_size=5))
def test_every_text_has_a_unit_row(texts: list[str]) -> None:
    vectors = HashEncoder(13).encode(texts)
    assert vectors.shape == (len(texts), 13)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)


def test_a_row_depends_on_its_own_text_only() -> None:
    encoder = HashEncoder(61)
    together = encoder.encode(["a red boat", "", "who sails it?"])
    np.testing.assert_array_equal(together[2], encoder.encode(["who sails it?"])[0])


def test_shared_words_bring_texts_together() -> None:
    one, near, far = HashEncoder(251).encode(["who sails the boat", "who sails that boat", "Zürich um 5"])
    assert one @ near > 0.5 > 0.2 > one @ far


def test_equal_in_another_process_with_another_hash_seed() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PRINT_FIRST],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{HashEncoder(31).encode(['who sails [topic]?']).tolist()}\n"}


def test_a_width_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="dim is 0"):
        HashEncoder(0)
