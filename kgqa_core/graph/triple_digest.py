"""A hash of a set of labelled triples: the same for the same labels, whatever their ids and their order.

Every triple becomes two 64-bit numbers, mixed from the hashes of its three labels; the sums of them over all triples,
modulo 2^64, are the digest. It tells builds apart; it is no protection against somebody who wants two sets to agree.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kgqa_core.graph.csr import Ints
from kgqa_core.graph.strings import StringTable

U64 = npt.NDArray[np.uint64]

FNV_START, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a, 64 bits
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # the finaliser of splitmix64
LANES = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], dtype=np.uint64)  # a start for each of the two sums


@njit(cache=True, nogil=True)
def _mix(bits: np.uint64) -> np.uint64:
    bits = (bits ^ (bits >> np.uint64(30))) * MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * MIX_2
    return bits ^ (bits >> np.uint64(31))


@njit(cache=True, nogil=True)
def _hash_strings(data: npt.NDArray[np.uint8], offsets: Ints, which: Ints, known: U64) -> U64:
    hashes = np.empty(len(which), np.uint64)
    for place in range(len(which)):
        string = which[place]
        if known[string] == 0:
            found = FNV_START
            for at in range(offsets[string], offsets[string + 1]):
                found = (found ^ np.uint64(data[at])) * FNV_PRIME
            known[string] = _mix(found)
        hashes[place] = known[string]
    return hashes


def hash_strings(strings: StringTable, which: Ints, known: U64 | None = None) -> U64:
    """Return a hash of the UTF-8 of each of the strings ``which`` [n].

    ``known``: what was hashed before, by string, 0 where it was not; of many strings only pages in use take memory.
    """
    table = np.zeros(len(strings), dtype=np.uint64) if known is None else known
    return _hash_strings(strings.data, strings.offsets, which, table)


@njit(cache=True, nogil=True)
def _add_up(heads: U64, relations: U64, tails: U64, owner: Ints, sums: U64) -> None:
    for place in range(len(owner)):
        for lane in range(2):
            mixed = _mix(_mix(_mix(heads[place] + LANES[lane]) + relations[place]) + tails[place])
            sums[owner[place], lane] += mixed


def digest_triples(heads: U64, relations: U64, tails: U64, owner: Ints, num_owners: int) -> list[str]:
    """Return the digest of each owner's triples, 32 hexadecimal digits.

    Args:
        heads: [E] label hashes (``hash_strings``); of every owner no triple twice.
        relations: [E].
        tails: [E].
        owner: [E] 0..num_owners-1.
        num_owners: how many there are, also those without a triple, whose digest is 0.
    """
    sums = np.zeros((num_owners, 2), dtype=np.uint64)
    _add_up(heads, relations, tails, owner, sums)
    return [f"{first:016x}{second:016x}" for first, second in sums.tolist()]
