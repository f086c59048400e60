"""Codes: one int64 per label, with no dictionary.

A MID (``m.`` or ``g.`` and 1 to 11 of the characters 0-9, _ and the consonants b-z) is a positive number from which it
can be read back: one bit for the kind, 5 bits per character, left-justified, then 4 bits for the number of characters.
Codes of MIDs are in the byte order of their labels. Any other label is a negative number: a hash of 63 bits of its
UTF-8 bytes. ``code_kernels.py`` has the same compiled, for millions at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import pyarrow as pa

I64 = npt.NDArray[np.int64]

NO_NUMBA = "KGQA_NO_NUMBA"  # environment variable: any value but the empty one keeps numba out
ALPHABET = "0123456789_bcdfghjklmnpqrstvwxyz"  # of MIDs, in the order of ASCII
CHAR_BITS, LENGTH_BITS, MAX_CHARS = 5, 4, 11
KIND_BIT = CHAR_BITS * MAX_CHARS + LENGTH_BITS  # set for "m.", clear for "g."
NO_DIGIT = 255
DIGITS = np.full(256, NO_DIGIT, np.uint8)  # byte -> number of the character
DIGITS[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET), dtype=np.uint8)

# Odd numbers with about as many ones as zeros. SEED, STEP and the finaliser of splitmix64 (Steele et al. 2014) make the
# code; CHECK is a second, independent hash that tells two labels of one code apart.
SEED, STEP, CHECK_SEED, CHECK_STEP = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F, 0xA0761D6478BD642F
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ALL = 2**64 - 1
_NUMBERS = {character: number for number, character in enumerate(ALPHABET)}


@cache
def has_numba() -> bool:
    """Return whether the compiled paths can be used: numba is installed, and KGQA_NO_NUMBA does not keep it out."""
    return not os.environ.get(NO_NUMBA) and find_spec("numba") is not None


def code_of(label: str) -> int:
    """Return the code of any label: positive for a MID, negative for all else."""
    code = _mid_code(label)
    return hash_text(label.encode())[0] if code is None else code


def label_of(code: int) -> str:
    """Return the MID of a positive code.

    Raises:
        ValueError: a negative code is a hash (its label stands in the ``texts`` parts), or the code is no MID's.
    """
    code = int(code)
    length = code & (2**LENGTH_BITS - 1)
    label = None
    if code > 0 and code >> KIND_BIT <= 1:
        shifts = (KIND_BIT - CHAR_BITS * (place + 1) for place in range(length))
        label = ("m." if code >> KIND_BIT else "g.") + "".join(ALPHABET[code >> s & 31] for s in shifts if s >= 0)
    if label is None or _mid_code(label) != code:
        raise ValueError(f"{code} is no code of a MID; the labels of negative codes stand in the texts parts")
    return label


def _mid_code(label: str) -> int | None:
    if label[:2] not in ("m.", "g.") or not 3 <= len(label) <= 2 + MAX_CHARS:
        return None
    code, shift = int(label[0] == "m") << KIND_BIT, KIND_BIT
    for character in label[2:]:
        number = _NUMBERS.get(character)
        if number is None:
            return None
        shift -= CHAR_BITS
        code |= number << shift
    return code | len(label) - 2


def hash_text(data: bytes) -> tuple[int, int]:
    """Return the code (int64, negative) and the check (uint64) of a label's UTF-8 bytes, 8 bytes at a time."""
    code, check = SEED ^ len(data), CHECK_SEED
    for start in range(0, len(data), 8):
        word = int.from_bytes(data[start : start + 8], "little")
        code = (code ^ word) * STEP & _ALL
        code ^= code >> 32
        check = (check + word) * CHECK_STEP & _ALL
        check ^= check >> 29
    code = (code ^ code >> 30) * MIX_1 & _ALL
    code = (code ^ code >> 27) * MIX_2 & _ALL
    code ^= code >> 31
    return (code | 1 << 63) - (1 << 64), check


def codes_of(labels: Iterable[str]) -> I64:
    """Return the codes [N] of labels."""
    if not has_numba():
        return np.fromiter((code_of(label) for label in labels), np.int64)
    from kgqa_core.graph.dump.code_kernels import codes_of_bytes

    array = pa.array(labels, pa.large_string()) if not isinstance(labels, pa.Array) else labels.cast(pa.large_string())
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    codes: I64 = codes_of_bytes(np.concatenate([data[: offsets[-1]], np.zeros(16, np.uint8)]), offsets)
    return codes


def labels_of(codes: I64) -> pa.Array:
    """Return the MIDs of positive codes [N] as large strings; negative codes give null."""
    if not has_numba():
        return pa.array([label_of(code) if code > 0 else None for code in codes.tolist()], pa.large_string())
    from kgqa_core.graph.dump.code_kernels import labels_of_codes

    codes = np.ascontiguousarray(codes, np.int64)
    data, offsets = labels_of_codes(codes)
    if offsets[-1] < 0:
        label_of(int(codes[-1 - offsets[-1]]))  # raises
    known = codes > 0
    nulls = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    buffers = [nulls, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(codes), buffers)
