"""Pieces of N-Triples in compiled code: UTF-8, IRIs, literals and their escapes. Data are addresses, see words.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from kgqa_core.graph.dump.words import (
    VECTOR,
    iri_run,
    literal_run,
    load_byte,
    load_word,
    store_byte,
    store_word,
)

Int = Any  # int64 or uint64 in compiled code

NO = -1
OPEN, CLOSE, QUOTE, BACKSLASH, SIGN_AT, CARET, DOT, MINUS = (ord(c) for c in '<>"\\@^.-')
TAB, SPACE, LF, CR, SMALL_U, LARGE_U = (ord(c) for c in "\t \n\ruU")

# Classes of bytes: hexadecimal digits have their value, other bytes 255.
_HEX = np.full(256, 255, np.uint8)
for _digit, _byte in enumerate(b"0123456789abcdef"):
    _HEX[_byte] = _HEX[ord(chr(_byte).upper())] = _digit
_ESCAPED = np.zeros(256, np.uint8)  # what the letter behind a backslash stands for; 0: nothing
for _byte, _character in zip(b"tbnrf\"'\\", b"\t\b\n\r\f\"'\\", strict=True):
    _ESCAPED[_byte] = _character


@njit(cache=True, nogil=True)
def utf8_length(data: Int, at: Int) -> Int:
    """Return the length of the well-formed UTF-8 sequence of several bytes at ``at``, 0 where there is none."""
    word = load_word(data, at)
    first = np.int64(word & np.uint64(0xFF))
    if first < 0xE0:
        return 2 if first >= 0xC2 and word & np.uint64(0xC000) == np.uint64(0x8000) else 0
    second = np.int64((word >> np.uint64(8)) & np.uint64(0x3F))
    if first < 0xF0:
        if word & np.uint64(0xC0C000) != np.uint64(0x808000):
            return 0
        high = (first & 0xF) << 6 | second  # the code point without its last 6 bits
        return 3 if high >= 0x20 and not 0x360 <= high < 0x380 else 0
    if first > 0xF4 or word & np.uint64(0xC0C0C000) != np.uint64(0x80808000):
        return 0
    high = (first & 7) << 6 | second  # without its last 12 bits
    return 4 if 0x10 <= high < 0x110 else 0


@njit(cache=True, nogil=True)
def iri_end(data: Int, at: Int) -> Int:
    """Return where the ``>`` is that ends an IRI of which ``at`` is inside; NO for all that is not a plain IRI."""
    while True:
        run = iri_run(data, at)
        at += run
        if run == VECTOR:
            continue
        byte = load_byte(data, at)
        if byte == CLOSE:
            return at
        if byte < 0x80:
            return NO
        length = utf8_length(data, at)
        if length == 0:
            return NO
        at += length


@njit(cache=True, nogil=True)
def literal_end(data: Int, at: Int) -> tuple[Int, bool]:
    """Return where the quote is that ends a literal of which ``at`` is inside, or NO; and whether it has escapes."""
    escapes = False
    while True:
        run = literal_run(data, at)
        at += run
        if run == VECTOR:
            continue
        byte = load_byte(data, at)
        if byte == QUOTE:
            return at, escapes
        if byte >= 0x80:
            while byte >= 0x80:
                length = utf8_length(data, at)
                if length == 0:
                    return NO, escapes
                at += length
                byte = load_byte(data, at)
        elif byte == BACKSLASH:
            escapes = True
            if _ESCAPED[load_byte(data, at + 1)] != 0:
                at += 2
            else:
                character, at = read_code_point(data, at)
                if character < 0:
                    return NO, escapes
        else:
            return NO, escapes


@njit(cache=True, nogil=True)
def read_code_point(data: Int, at: Int) -> tuple[Int, Int]:
    r"""Return the character of the ``\u`` or ``\U`` at ``at`` and where it ends; NO where it is none."""
    kind = load_byte(data, at + 1)
    if kind != SMALL_U and kind != LARGE_U:
        return NO, at
    end = at + (6 if kind == SMALL_U else 10)
    character = np.int64(0)
    for place in range(at + 2, end):
        digit = np.int64(_HEX[load_byte(data, place)])
        if digit == 255:
            return NO, at
        character = character << 4 | digit
    if character > 0x10FFFF or 0xD800 <= character < 0xE000:
        return NO, at
    return character, end


@njit(cache=True, nogil=True)
def decode_literal(data: Int, start: Int, end: Int, out: Int, at: Int) -> Int:
    """Write the literal from ``start`` to ``end``, well-formed, with its escapes decoded; return where it ends."""
    while start < end:
        byte = load_byte(data, start)
        if byte != BACKSLASH:
            store_byte(out, at, byte)
            at += 1
            start += 1
            continue
        simple = _ESCAPED[load_byte(data, start + 1)]
        if simple != 0:
            store_byte(out, at, simple)
            at += 1
            start += 2
            continue
        character, start = read_code_point(data, start)
        if character < 0x80:
            store_byte(out, at, character)
            at += 1
        elif character < 0x800:
            store_byte(out, at, 0xC0 | character >> 6)
            store_byte(out, at + 1, 0x80 | character & 0x3F)
            at += 2
        elif character < 0x10000:
            store_byte(out, at, 0xE0 | character >> 12)
            store_byte(out, at + 1, 0x80 | character >> 6 & 0x3F)
            store_byte(out, at + 2, 0x80 | character & 0x3F)
            at += 3
        else:
            store_byte(out, at, 0xF0 | character >> 18)
            store_byte(out, at + 1, 0x80 | character >> 12 & 0x3F)
            store_byte(out, at + 2, 0x80 | character >> 6 & 0x3F)
            store_byte(out, at + 3, 0x80 | character & 0x3F)
            at += 4
    return at


@njit(cache=True, nogil=True)
def copy_bytes(data: Int, start: Int, end: Int, out: Int, at: Int) -> Int:
    """Copy bytes a word at a time, up to 7 too many; return where the copy ends."""
    for place in range(0, end - start, 8):
        store_word(out, at + place, load_word(data, start + place))
    return at + end - start


@njit(cache=True, nogil=True)
def equal_bytes(data: Int, at: Int, other: Int, start: Int, length: Int) -> Any:
    """Return whether two ranges of at least 8 bytes are equal."""
    last = length - 8
    for place in range(0, last, 8):
        if load_word(data, at + place) != load_word(other, start + place):
            return False
    return load_word(data, at + last) == load_word(other, start + last)
