"""State classes: nodes of equal state are found by a hash, so that float work runs once per class.

The state of a node after a step depends only on the multiset of (state class of the head, relation) messages that it
received. Two independent 64-bit multiset hashes are kept: the first names the class, the second checks it, so a
collision of the first is detected and never silently merges two states.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kgqa_core.explorer.frontier import Int

MAX_ATTEMPTS = 4


class HashCollision(Exception):
    """Two different multisets got the same first hash; the caller tries again with other salts."""


def mix(values: npt.NDArray[np.uint64], salt: int) -> npt.NDArray[np.uint64]:
    """Return a pseudo-random 64-bit number per value (the finaliser of splitmix64; Steele et al. 2014)."""
    x = values + np.uint64((salt * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & 0xFFFFFFFFFFFFFFFF)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hash_messages(num_messages: int, salt: int, bits: int = 64) -> npt.NDArray[np.int64]:
    """Return [num_messages, 2] random codes of the distinct messages; a node's hash is the sum of those it received.

    Args:
        num_messages: number of distinct (class, relation) messages of this step.
        salt: changes all codes; used to escape a collision.
        bits: width of the first hash; below 64 only in the test of the collision check.
    """
    ids = np.arange(num_messages, dtype=np.uint64)
    codes = np.stack([mix(ids, 2 * salt + 1), mix(ids, 2 * salt + 2)], axis=1)
    if bits < 64:
        codes[:, 0] &= np.uint64((1 << bits) - 1)
    return codes.view(np.int64)


def group_by_hash(first: Int, second: Int) -> tuple[Int, Int]:
    """Number the nodes' classes by first hash.

    Args:
        first: [n] first multiset hash of each node.
        second: [n] second multiset hash of each node.

    Returns:
        ``node_class`` [n] and ``representative`` [C], the smallest node index of each class. Classes are numbered in
        order of their representatives, so the numbering does not depend on the hash.

    Raises:
        HashCollision: if two nodes agree in the first hash and not in the second.
    """
    order = np.argsort(first, kind="stable")
    starts = np.r_[True, first[order][1:] != first[order][:-1]]
    by_hash = np.empty(len(first), dtype=np.int64)
    by_hash[order] = np.cumsum(starts) - 1
    representative = order[starts]  # stable sort: the smallest index of each run
    if not np.array_equal(second, second[representative[by_hash]]):
        raise HashCollision
    rank = np.empty(len(representative), dtype=np.int64)
    rank[np.argsort(representative)] = np.arange(len(representative))
    return rank[by_hash], np.sort(representative)
