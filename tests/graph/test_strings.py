"""Digests of labelled triples: equal for equal sets, whatever the order and the ids."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kgqa_core.graph.csr import digest_triples, hash_strings

Triple = tuple[str, str, str]

labels = st.text(max_size=3)
triples = st.lists(st.tuples(labels, labels, labels), unique=True, max_size=7)


def digest(rows: list[Triple], known: list[str]) -> str:
    """Return the digest of one owner's triples, whose labels have their places in ``known`` as ids."""
    table = pa.array(known, pa.large_string())
    ids = np.array([[known.index(label) for label in row] for row in rows], dtype=np.int64).reshape(-1, 3)
    hashes = [hash_strings(table, column) for column in ids.T]
    return digest_triples(*hashes, np.zeros(len(rows), np.int64), 1)[0]


@given(triples, labels)
def test_neither_order_nor_ids_matter(rows: list[Triple], other: str) -> None:
    known = sorted({label for row in rows for label in row} | {other})
    assert digest(rows, known) == digest(rows[::-1], known[::-1])


@given(triples, triples)
def test_other_triples_have_another_digest(one: list[Triple], other: list[Triple]) -> None:
    known = sorted({label for row in [*one, *other] for label in row})
    assert (digest(one, known) == digest(other, known)) == (set(one) == set(other))


def test_each_owner_has_its_own() -> None:
    hashes = np.array([3, 5, 7], dtype=np.uint64)
    one, none, two = digest_triples(hashes, hashes, hashes, np.array([0, 2, 2]), 3)
    assert none == "0" * 32
    assert one == digest_triples(hashes[:1], hashes[:1], hashes[:1], np.array([0]), 1)[0]
    assert two == digest_triples(hashes[1:], hashes[1:], hashes[1:], np.array([0, 0]), 1)[0]


@given(st.lists(st.text(max_size=9), min_size=1, max_size=9), st.data())
def test_a_hash_is_fnv_of_the_bytes_whatever_else_is_hashed(texts: list[str], data: st.DataObject) -> None:
    def fnv(text: str) -> int:
        bits = 0xCBF29CE484222325
        for byte in text.encode():
            bits = (bits ^ byte) * 0x100000001B3 % 2**64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits = (bits ^ bits >> shift) * factor % 2**64
        return bits ^ bits >> 31

    table = pa.array(texts, pa.large_string())
    known = np.zeros(len(texts), np.uint64)
    for _ in range(2):
        which = np.array(data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=5)), np.int64)
        assert hash_strings(table, which, known).tolist() == [fnv(texts[place]) for place in which]
