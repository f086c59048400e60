"""The compiled scanner: the same rows as ``RegexScanner``, an order of magnitude quicker."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from kgqa_core.graph.dump.code_kernels import hash_bytes, read_mid
from kgqa_core.graph.dump.filters import ALIAS, NAME, NOISE, TYPE, DumpOptions
from kgqa_core.graph.dump.rows import (
    AT,
    BLANK,
    EMPTY_TEXT,
    FIRST_RELATIONS,
    KIND_ALIAS,
    KIND_FOREIGN,
    KIND_NAME,
    LAST_NAMED,
    LINE,
    NAME_BYTES,
    NUM_TRIPLES,
    NUM_TYPES,
    OTHER_LANGUAGE,
    TEXT_BYTES,
    Array,
    Buffers,
    RegexScanner,
)
from kgqa_core.graph.dump.scan_kernels import (
    NOT_KNOWN,
    RECENT,
    Table,
    find_relation,
    get_state,
    insert_relation,
    line_end,
    read_iri,
    read_language,
    set_state,
    skip_spaces,
    take_name,
    take_text,
)
from kgqa_core.graph.dump.stream import PADDING, Block
from kgqa_core.graph.dump.term_kernels import (
    CARET,
    LF,
    NO,
    OPEN,
    QUOTE,
    SIGN_AT,
    copy_bytes,
    decode_literal,
    equal_bytes,
    literal_end,
)
from kgqa_core.graph.dump.words import load_byte, load_half, load_word, store_half, store_word

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Int = Any  # int64 or uint64 in compiled code

MEAN_IRI_BYTES = 96
SHORTEST_IRI = 8  # bytes with brackets: shorter ones stay out of the table, and with them their lines


class CompiledScanner(RegexScanner):
    """Scans blocks with ``scan_lines``; takes the lines that it leaves as ``RegexScanner`` does."""

    def __init__(self, options: DumpOptions) -> None:
        super().__init__(options)
        self._wanted = np.frombuffer(self.language.encode(), np.uint8).copy()
        self._iris: list[str] = []
        self._out, self._out_of = _addresses(self.buffers), self.buffers  # addresses, and of which buffers they are
        self._make_table(FIRST_RELATIONS, FIRST_RELATIONS * MEAN_IRI_BYTES)

    def _scan_lines(self, block: Block) -> None:
        data = np.frombuffer(block.data, np.uint8)
        where, wanted = _address(data), (_address(self._wanted), len(self._wanted))
        as_triples = self.options.types_as_triples
        self._arrays["recent"][:] = 0
        while not scan_lines(where, block.size, self._addresses_out(), self._table, wanted, as_triples):
            self._take_line(block)

    def _addresses_out(self) -> Any:
        if self._out_of is not self.buffers:  # they were replaced by larger ones
            self._out, self._out_of = _addresses(self.buffers), self.buffers
        return self._out

    def _make_table(self, num_iris: int, num_bytes: int) -> None:
        self._arrays = _new_table(num_iris, num_bytes)
        self._table = Table(
            mask=len(self._arrays["slots"]) - 1, **{name: _address(array) for name, array in self._arrays.items()}
        )
        self._filled = 0  # bytes of the IRIs in the table

    def add_relation(self, iri: str) -> tuple[int, int]:
        """Number a relation and enter it in the table."""
        found = super().add_relation(iri)
        if len(iri) + 2 >= SHORTEST_IRI:
            self._iris.append(iri)
            self._enter(len(self._iris) - 1)
        return found

    def _enter(self, place: int) -> None:
        iri = self._iris[place]
        data = np.frombuffer(f"<{iri}>".encode(), np.uint8)
        table = self._arrays
        if place == len(table["start"]) or self._filled + len(data) + PADDING > len(table["iris"]):
            self._make_table(2 * len(table["start"]), 2 * len(table["iris"]) + len(data))
            for earlier in range(place + 1):
                self._enter(earlier)
            return
        table["iris"][self._filled : self._filled + len(data)] = data
        table["start"][place], table["length"][place] = self._filled, len(data)
        table["number"][place], table["use"][place] = self._numbers[iri]
        self._filled += len(data)
        insert_relation(self._table, place)


def _addresses(buffers: Buffers) -> Any:
    return Buffers(*(_address(array) for array in buffers))  # type: ignore[arg-type]


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _new_table(num_iris: int, num_bytes: int) -> dict[str, Array]:
    """Return the empty arrays of a Table."""
    columns = ("start", "length", "use", "number", "following")
    return {
        "slots": np.full(2 * num_iris, -1, np.int32),
        **{name: np.full(num_iris, -1, np.int32) for name in columns},
        "iris": np.zeros(num_bytes, np.uint8),
        "recent": np.zeros(RECENT, np.int64),
        "recent_check": np.zeros(RECENT, np.uint64),
    }


@njit(cache=True, nogil=True)
def scan_lines(data: Int, size: Int, out: Any, table: Table, wanted: tuple[Int, Int], types_as_triples: bool) -> bool:
    """Write the rows of the lines from ``out.state[AT]`` on.

    Args:
        data: address of a block with its padding, of which ``size`` bytes are text.
        out: Buffers of addresses, which receive the rows.
        table: the known relations.
        wanted: address and length of the wanted language in lower case.
        types_as_triples: are lines that say types written among the triples too?

    Returns:
        True at the end of the block; False where ``out.state[AT]`` is a line that is not known here.
    """
    at, line, previous = get_state(out, AT), get_state(out, LINE), np.int64(0)
    subject_at, subject_length = np.int64(0), np.int64(0)  # of the last line, brackets included; 0: none
    head_start, head_end = np.int64(0), np.int64(0)
    head_code: Int = np.int64(0)  # its code if it is a MID; its label
    while at < size:
        set_state(out, AT, at)
        set_state(out, LINE, line)  # where a line that is left begins
        if subject_length == 0 or not equal_bytes(data, at, data, subject_at, subject_length):
            at = skip_spaces(data, at)
            if load_byte(data, at) == LF and at < size:
                count_up(out.counts, BLANK)
                at, line = at + 1, line + 1
                continue
            head_code, head_start, head_end, after = read_iri(data, at)
            if after == NO:
                return False
            subject_length = after - at
        subject_at = at
        at = skip_spaces(data, at + subject_length)
        relation = find_relation(data, at, previous, table)
        if relation == NOT_KNOWN:
            return False
        at = skip_spaces(data, at + load_half(table.length, 4 * relation))
        first = load_byte(data, at)
        tail_code, is_foreign, escapes = np.int64(0), False, False
        if first == OPEN:
            tail_code, tail_start, tail_end, after = read_iri(data, at)
            if after == NO:
                return False
        elif first == QUOTE:
            tail_start = at + 1
            tail_end, escapes = literal_end(data, tail_start)
            if tail_end == NO:
                return False
            after = tail_end + 1
            sign = load_byte(data, after)
            if sign == SIGN_AT:
                after, same = read_language(data, after + 1, wanted)
                is_foreign = not same
            elif sign == CARET:
                if load_byte(data, after + 1) != CARET:
                    return False
                after = read_iri(data, after + 2)[3]
            if after == NO:
                return False
        else:
            return False
        end = line_end(data, after)
        if end == NO:
            return False
        at, line, previous = end + 1, line + 1, relation
        number, use = load_half(table.number, 4 * relation), load_half(table.use, 4 * relation)
        count_up(out.relation_lines, number)
        names_something = use in (NAME, ALIAS)
        if use == NOISE or (names_something and first == OPEN):
            count_up(out.counts, NOISE)
            continue
        if is_foreign:
            count_up(out.counts, OTHER_LANGUAGE)
            if use == NAME:
                head = head_code if head_code != 0 else hash_bytes(data, head_start, head_end)[0]
                if head != get_state(out, LAST_NAMED):
                    if head_code == 0:
                        take_text(data, head_start, head_end, out, table)
                    take_name(head, KIND_FOREIGN, get_state(out, NAME_BYTES), out)
            continue
        if tail_start == tail_end:
            count_up(out.counts, EMPTY_TEXT)
            continue
        count_up(out.counts, use)
        head = head_code if head_code != 0 else take_text(data, head_start, head_end, out, table)
        if names_something:
            if escapes:
                filled = decode_literal(data, tail_start, tail_end, out.name_data, get_state(out, NAME_BYTES))
            else:
                filled = copy_bytes(data, tail_start, tail_end, out.name_data, get_state(out, NAME_BYTES))
            take_name(head, KIND_NAME if use == NAME else KIND_ALIAS, filled, out)
            continue
        if tail_code == 0:
            tail_code = take_literal(data, tail_start, tail_end, escapes, first == QUOTE, out, table)
        if use == TYPE:
            row = get_state(out, NUM_TYPES)
            store_word(out.typed, 8 * row, head)
            store_word(out.type, 8 * row, tail_code)
            set_state(out, NUM_TYPES, row + 1)
        if use != TYPE or types_as_triples:
            row = get_state(out, NUM_TRIPLES)
            store_word(out.head, 8 * row, head)
            store_half(out.relation, 4 * row, number)
            store_word(out.tail, 8 * row, tail_code)
            set_state(out, NUM_TRIPLES, row + 1)
    set_state(out, AT, at)
    set_state(out, LINE, line)
    return True


@njit(cache=True, nogil=True)
def take_literal(data: Int, start: Int, end: Int, escapes: bool, is_literal: bool, out: Buffers, table: Table) -> Int:
    """Return the code of an object that is no MID as an IRI; a literal may still spell one."""
    if escapes:
        filled = get_state(out, TEXT_BYTES)
        start, end, data = filled, decode_literal(data, start, end, out.text_data, filled), out.text_data
    if is_literal:
        code, stop = read_mid(data, start, end)
        if code != 0 and stop == end:
            return code
    return take_text(data, start, end, out, table)


@njit(cache=True, nogil=True)
def count_up(counts: Int, place: Int) -> None:
    """Add one to a number of an int64 array."""
    store_word(counts, 8 * place, load_word(counts, 8 * place) + np.uint64(1))
