"""The scanner of N-Triples, compiled: bytes to coded rows, some hundred nanoseconds per line.

It knows the lines that dumps are made of and only those: whatever else it meets, malformed or merely unusual, it
leaves to ``ntriples.parse_line``, so that there is one grammar. It must therefore accept nothing that the grammar does
not, and code what it accepts in the same way; the tests hold the two against each other.

The block ends in a line end behind its text, which stops every loop here; words.PADDING bytes may be read behind it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from kgqa_core.graph.dump.code_kernels import hash_bytes, read_mid
from kgqa_core.graph.dump.ntriples import KEY, NS
from kgqa_core.graph.dump.rows import (
    KIND_ALIAS,
    LAST_NAMED,
    NAME_BYTES,
    NUM_NAMES,
    NUM_TEXTS,
    TEXT_BYTES,
    Buffers,
)
from kgqa_core.graph.dump.term_kernels import (
    CLOSE,
    CR,
    DOT,
    LF,
    MINUS,
    NO,
    OPEN,
    SPACE,
    TAB,
    copy_bytes,
    equal_bytes,
    iri_end,
)
from kgqa_core.graph.dump.words import (
    VECTOR,
    load_byte,
    load_half,
    load_word,
    store_byte,
    store_half,
    store_word,
)

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Int = Any  # int64 or uint64 in compiled code

NOT_KNOWN = 2**32 - 1  # in an int32: -1
RECENT = 1 << 13  # texts of the block that are remembered, by code

_OPEN_NS = ("<" + NS).encode()
_NS_BYTES = len(_OPEN_NS)  # 28
_NS_0, _NS_1, _NS_2, _NS_LAST = (
    np.uint64(int.from_bytes(_OPEN_NS[start : start + 8], "little")) for start in (0, 8, 16, _NS_BYTES - 8)
)
_HTTP = np.uint64(int.from_bytes(b"http://\x00", "little"))
_HTTP_MASK = np.uint64(2**56 - 1)
_KEY_SIZE = len(KEY)  # 28
_KEY_0, _KEY_1, _KEY_2, _KEY_LAST = (
    np.uint64(int.from_bytes(KEY.encode()[start : start + 8], "little")) for start in (0, 8, 16, _KEY_SIZE - 8)
)
_SITE_BYTES = len(KEY) - len("key/")  # what the label of a key lacks

_IS_LETTER = np.zeros(256, np.bool_)
_IS_LETTER[[byte for byte in range(128) if chr(byte).isalpha()]] = True
_IS_ALNUM = _IS_LETTER.copy()
_IS_ALNUM[np.frombuffer(b"0123456789", np.uint8)] = True


class Table(NamedTuple):
    """The relations known so far: open addressing by a hash of the IRI with its brackets. Addresses of arrays."""

    mask: int  # number of slots, a power of two, less one
    slots: int  # int32 relation IRI by slot; NOT_KNOWN where empty
    start: int  # int32 of an IRI's bytes in iris
    length: int  # int32, brackets included
    iris: int  # bytes, padded
    use: int  # int32
    number: int  # int32 of the relation; several IRIs may have one
    following: int  # int32 IRI that came after this one the last time: a guess that often saves the search
    recent: int  # int64 [RECENT] codes of texts that this block has
    recent_check: int  # uint64 [RECENT]


@njit(cache=True, nogil=True)
def begins_with_ns(data: Int, at: Int) -> Any:
    """Return whether ``<`` and Freebase's namespace stand at ``at``."""
    return (
        load_word(data, at + _NS_BYTES - 8) == _NS_LAST
        and load_word(data, at) == _NS_0
        and load_word(data, at + 8) == _NS_1
        and load_word(data, at + 16) == _NS_2
    )


@njit(cache=True, nogil=True)
def skip_spaces(data: Int, at: Int) -> Int:
    """Return the first place from ``at`` on that is neither a tab nor a space."""
    byte = load_byte(data, at)
    while byte in (TAB, SPACE):
        at += 1
        byte = load_byte(data, at)
    return at


@njit(cache=True, nogil=True)
def read_iri(data: Int, at: Int) -> tuple[Int, Int, Int, Int]:
    """Read the IRI at ``at``.

    Returns:
        the code where it is a MID, else 0; where its label begins and ends; what follows its bracket, or NO where this
        is not an IRI that is taken here.
    """
    if load_byte(data, at) != OPEN:
        return np.int64(0), 0, 0, NO
    if begins_with_ns(data, at):
        start = at + _NS_BYTES
        code, end = read_mid(data, start, start + VECTOR)
        if code != 0 and load_byte(data, end) == CLOSE:
            return code, start, end, end + 1
        end = iri_end(data, start)
        if end == NO:
            return np.int64(0), 0, 0, NO
        return np.int64(0), start if end > start else at + 1, end, end + 1
    start = at + 1
    if load_word(data, start) & _HTTP_MASK != _HTTP:
        return np.int64(0), 0, 0, NO
    end = iri_end(data, start)
    if end == NO:
        return np.int64(0), 0, 0, NO
    is_key = (  # the rest of the words was compared when the scheme was
        load_word(data, start) == _KEY_0
        and load_word(data, start + 8) == _KEY_1
        and load_word(data, start + 16) == _KEY_2
        and load_word(data, start + _KEY_SIZE - 8) == _KEY_LAST
    )
    return np.int64(0), start + _SITE_BYTES if is_key else start, end, end + 1


@njit(cache=True, nogil=True)
def hash_iri(data: Int, start: Int, length: Int) -> Int:
    """Return a quick hash of at least 8 bytes: words at both ends and the length tell most relations apart."""
    end = start + length
    mixed = load_word(data, end - 8) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= load_word(data, end - 16 if length >= 16 else start) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= load_word(data, end - 24 if length >= 24 else start) * np.uint64(0xD6E8FEB86659FD93)
    mixed += np.uint64(length)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xA0761D6478BD642F)
    return mixed ^ (mixed >> np.uint64(29))


@njit(cache=True, nogil=True)
def find_relation(data: Int, at: Int, previous: Int, table: Table) -> Int:
    """Return which of the known IRIs stands at ``at``, brackets included, or NOT_KNOWN."""
    guess = load_half(table.following, 4 * previous)
    if guess != NOT_KNOWN and equal_bytes(
        data, at, table.iris, load_half(table.start, 4 * guess), load_half(table.length, 4 * guess)
    ):
        return guess
    if load_byte(data, at) != OPEN:
        return NOT_KNOWN
    end = iri_end(data, at + (_NS_BYTES if begins_with_ns(data, at) else 1))
    length = end + 1 - at
    if end == NO or length < 8:
        return NOT_KNOWN
    mask = table.mask
    slot = np.int64(hash_iri(data, at, length) & np.uint64(mask))
    while True:
        found = load_half(table.slots, 4 * slot)
        if found == NOT_KNOWN:
            return NOT_KNOWN
        if load_half(table.length, 4 * found) == length and equal_bytes(
            data, at, table.iris, load_half(table.start, 4 * found), length
        ):
            store_half(table.following, 4 * previous, found)
            return found
        slot = (slot + 1) & mask


@njit(cache=True, nogil=True)
def insert_relation(table: Table, number: Int) -> None:
    """Enter IRI ``number``, whose bytes stand in the table already."""
    mask = table.mask
    start, length = load_half(table.start, 4 * number), load_half(table.length, 4 * number)
    slot = np.int64(hash_iri(table.iris, start, length) & np.uint64(mask))
    while load_half(table.slots, 4 * slot) != NOT_KNOWN:
        slot = (slot + 1) & mask
    store_half(table.slots, 4 * slot, number)


@njit(cache=True, nogil=True)
def read_language(data: Int, at: Int, wanted: tuple[Int, Int]) -> tuple[Int, bool]:
    """Read the tag behind the ``@``; return where it ends, or NO, and whether it is the wanted one (in lower case)."""
    start = at
    while _IS_LETTER[load_byte(data, at)]:
        at += 1
    if at == start:
        return NO, False
    while load_byte(data, at) == MINUS:
        begin = at + 1
        at = begin
        while _IS_ALNUM[load_byte(data, at)]:
            at += 1
        if at == begin:
            return NO, False
    same = at - start == wanted[1]
    if same:
        for place in range(wanted[1]):
            byte = load_byte(data, start + place)
            same &= (byte | 0x20 if _IS_LETTER[byte] else byte) == load_byte(wanted[0], place)
    return at, same


@njit(cache=True, nogil=True)
def line_end(data: Int, at: Int) -> Int:
    """Return where the line ends of which ``at`` is behind the object; NO where more than a dot is left of it."""
    at = skip_spaces(data, at)
    if load_byte(data, at) != DOT:
        return NO
    at = skip_spaces(data, at + 1)
    if load_byte(data, at) == CR:
        at += 1
    return at if load_byte(data, at) == LF else NO


@njit(cache=True, nogil=True)
def take_text(data: Int, start: Int, end: Int, out: Buffers, table: Table) -> Int:
    """Return the code of a label that is no MID; leave its text where this block does not have it yet."""
    code, check = hash_bytes(data, start, end)
    place = 8 * (code & (RECENT - 1))
    if np.int64(load_word(table.recent, place)) == code and load_word(table.recent_check, place) == check:
        return code
    store_word(table.recent, place, code)
    store_word(table.recent_check, place, check)
    row, start_of_text = get_state(out, NUM_TEXTS), get_state(out, TEXT_BYTES)
    filled = copy_bytes(data, start, end, out.text_data, start_of_text)
    store_word(out.text_code, 8 * row, code)
    store_word(out.text_check, 8 * row, check)
    store_word(out.text_end, 8 * row, filled)
    set_state(out, TEXT_BYTES, filled)
    set_state(out, NUM_TEXTS, row + 1)
    return code


@njit(cache=True, nogil=True)
def take_name(entity: Int, kind: Int, filled: Int, out: Buffers) -> None:
    """Write a names row whose name ends at ``filled``."""
    row = get_state(out, NUM_NAMES)
    store_word(out.named, 8 * row, entity)
    store_byte(out.name_kind, row, kind)
    store_word(out.name_end, 8 * row, filled)
    set_state(out, NAME_BYTES, filled)
    set_state(out, NUM_NAMES, row + 1)
    if kind != KIND_ALIAS:
        set_state(out, LAST_NAMED, entity)


@njit(cache=True, nogil=True)
def get_state(out: Buffers, place: Int) -> Int:
    """Return a number of ``out.state``."""
    return np.int64(load_word(out.state, 8 * place))


@njit(cache=True, nogil=True)
def set_state(out: Buffers, place: Int, value: Int) -> None:
    """Set a number of ``out.state``."""
    store_word(out.state, 8 * place, value)
