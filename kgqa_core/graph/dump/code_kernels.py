"""The codes of ``codes.py``, compiled: equal to it for every label, and held against it by the tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from kgqa_core.graph.dump.codes import (
    ALPHABET,
    CHAR_BITS,
    CHECK_SEED,
    CHECK_STEP,
    DIGITS,
    KIND_BIT,
    LENGTH_BITS,
    MAX_CHARS,
    MIX_1,
    MIX_2,
    NO_DIGIT,
    SEED,
    STEP,
)
from kgqa_core.graph.dump.words import load_byte, load_word

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Int = Any  # int64 or uint64 in compiled code; ``data`` is an address

_SEED, _STEP, _CHECK_SEED, _CHECK_STEP = (np.uint64(x) for x in (SEED, STEP, CHECK_SEED, CHECK_STEP))
_MIX_1, _MIX_2, _SIGN = np.uint64(MIX_1), np.uint64(MIX_2), np.uint64(1 << 63)
_27, _29, _30, _31, _32 = (np.uint64(x) for x in (27, 29, 30, 31, 32))
_CHARS = np.frombuffer(ALPHABET.encode(), np.uint8)
_LENGTH_MASK = 2**LENGTH_BITS - 1
_LETTER_M, _LETTER_G, _DOT = ord("m"), ord("g"), ord(".")


@njit(cache=True, nogil=True)
def hash_bytes(data: Int, start: Int, end: Int) -> tuple[Int, Int]:
    """Return code and check of the bytes from ``start`` to ``end``; up to 7 more are read."""
    length = end - start
    code, check = _SEED ^ np.uint64(length), _CHECK_SEED
    at = start
    while at < end:
        word = load_word(data, at)
        if end - at < 8:
            word &= (np.uint64(1) << np.uint64(8 * (end - at))) - np.uint64(1)
        code = (code ^ word) * _STEP
        code ^= code >> _32
        check = (check + word) * _CHECK_STEP
        check ^= check >> _29
        at += 8
    code = (code ^ (code >> _30)) * _MIX_1
    code = (code ^ (code >> _27)) * _MIX_2
    code ^= code >> _31
    return np.int64(code | _SIGN), check


@njit(cache=True, nogil=True)
def read_mid(data: Int, start: Int, end: Int) -> tuple[Int, Int]:
    """Return the code and the end of the longest MID from ``start`` to ``end`` at most; code 0 where there is none."""
    kind = load_byte(data, start)
    if (kind != _LETTER_M and kind != _LETTER_G) or load_byte(data, start + 1) != _DOT:
        return np.int64(0), np.int64(start)
    code = np.int64(kind == _LETTER_M)
    at = np.int64(start + 2)
    last = end if end < at + MAX_CHARS else at + MAX_CHARS
    while at < last:
        number = np.int64(DIGITS[load_byte(data, at)])
        if number == NO_DIGIT:
            break
        code = (code << CHAR_BITS) | number
        at += 1
    length = at - start - 2
    if length == 0:
        return np.int64(0), np.int64(start)
    return (code << (KIND_BIT - CHAR_BITS * length)) | length, at


@njit(cache=True, nogil=True)
def code_of_bytes(data: Int, start: Int, end: Int) -> Int:
    """Return the code of the label from ``start`` to ``end``; up to 7 more bytes are read."""
    code, stop = read_mid(data, start, end)
    return code if code != 0 and stop == end else hash_bytes(data, start, end)[0]


@njit(cache=True, nogil=True)
def codes_of_bytes(data: U8, offsets: I64) -> I64:
    """Return the codes [N] of labels given as bytes, padded by 16, and offsets [N+1]."""
    base = data.ctypes.data
    codes = np.empty(len(offsets) - 1, np.int64)
    for row in range(len(codes)):
        codes[row] = code_of_bytes(base, offsets[row], offsets[row + 1])
    return codes


@njit(cache=True, nogil=True)
def labels_of_codes(codes: I64) -> tuple[U8, I64]:
    """Return the MIDs of codes [N] as bytes and offsets [N+1], none for negative codes.

    The last offset is ``-1 - row`` where the code in that row is no MID's.
    """
    offsets = np.zeros(len(codes) + 1, np.int64)
    for row, code in enumerate(codes):
        length = code & _LENGTH_MASK
        unused = KIND_BIT - CHAR_BITS * length  # bits below the last character
        if code >= 0 and (
            length == 0 or length > MAX_CHARS or code >> (KIND_BIT + 1) != 0 or code & ((1 << unused) - 1) != length
        ):
            offsets[-1] = -1 - row
            return np.empty(0, np.uint8), offsets
        offsets[row + 1] = offsets[row] + (length + 2 if code > 0 else 0)
    data = np.empty(offsets[-1], np.uint8)
    for row, code in enumerate(codes):
        if code < 0:
            continue
        at = offsets[row]
        data[at] = _LETTER_M if code >> KIND_BIT else _LETTER_G
        data[at + 1] = _DOT
        shift = KIND_BIT
        for place in range(at + 2, offsets[row + 1]):
            shift -= CHAR_BITS
            data[place] = _CHARS[(code >> shift) & 31]
    return data, offsets
