"""What a block of a dump becomes: rows in flat arrays, written by the compiled scanner and by plain Python alike.

``RegexScanner`` is the plain way: one regular expression per line. It is the oracle of the compiled one (``scan.py``)
and what parses where numba is missing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kgqa_core.graph.dump.codes import code_of, hash_text
from kgqa_core.graph.dump.filters import ALIAS, NAME, NOISE, TYPE, DumpOptions
from kgqa_core.graph.dump.ntriples import Statement, label_of_iri, parse_line
from kgqa_core.graph.dump.stream import PADDING, Block
from kgqa_core.graph.formats import MAX_REJECT_TEXT, TRUNCATED

Array = npt.NDArray[Any]

FIRST_RELATIONS = 1 << 12  # that there is room for at first
SHORTEST_LINE = 14  # bytes of '<a:><a:><a:>.' and its line end

# What a line came to: places in ``Rows.counts``. The first five are those of filters.USES.
OUTCOMES = ("triple", "name", "alias", "type", "noise", "other_language", "empty_text", "blank", "malformed")
OTHER_LANGUAGE, EMPTY_TEXT, BLANK, MALFORMED = range(5, 9)

# Kinds of rows in names.
KIND_NAME, KIND_ALIAS, KIND_FOREIGN = 0, 1, 2

# Places in ``Buffers.state``.
AT, LINE, NUM_TRIPLES, NUM_TYPES, NUM_NAMES, NAME_BYTES, NUM_TEXTS, TEXT_BYTES, LAST_NAMED = range(9)


class Buffers(NamedTuple):
    """Where the rows of one block are written. Sized for the worst block; what is not touched costs no memory."""

    state: Array  # int64: where the scan is and how many rows there are, see above
    counts: Array  # int64 [len(OUTCOMES)] lines
    head: Array  # int64
    relation: Array  # int32, as the scanner numbers relations
    tail: Array  # int64
    typed: Array  # int64 entity of a types row
    type: Array  # int64
    named: Array  # int64 entity of a names row
    name_kind: Array  # int8
    name_end: Array  # int64 end of the row's name in name_data; it begins where the row before ends
    name_data: Array  # uint8
    text_code: Array  # int64
    text_check: Array  # uint64: second hash of the text
    text_end: Array  # int64
    text_data: Array  # uint8
    relation_lines: Array  # int64 well-formed lines by relation, as the scanner numbers them


class Reject(NamedTuple):
    """A malformed line."""

    line: int  # inside the block, from 1 on
    reason: str
    text: str


class Rows(NamedTuple):
    """The rows of one block, copied out of the buffers."""

    size: int  # bytes of text
    num_lines: int
    counts: Array
    buffers: Buffers  # cut to the rows in use
    rejects: list[Reject]
    num_relations: int  # that the scanner knows by now


def new_buffers(block_bytes: int) -> Buffers:
    """Return empty buffers for a block of this size."""
    lines = block_bytes // SHORTEST_LINE + 2
    data = block_bytes + PADDING
    return Buffers(
        state=np.zeros(9, np.int64),
        counts=np.zeros(len(OUTCOMES), np.int64),
        head=np.empty(lines, np.int64),
        relation=np.empty(lines, np.int32),
        tail=np.empty(lines, np.int64),
        typed=np.empty(lines, np.int64),
        type=np.empty(lines, np.int64),
        named=np.empty(lines, np.int64),
        name_kind=np.empty(lines, np.int8),
        name_end=np.empty(lines, np.int64),
        name_data=np.empty(data, np.uint8),
        text_code=np.empty(2 * lines, np.int64),
        text_check=np.empty(2 * lines, np.uint64),
        text_end=np.empty(2 * lines, np.int64),
        text_data=np.empty(data, np.uint8),
        relation_lines=np.zeros(FIRST_RELATIONS, np.int64),
    )


class RegexScanner:
    """Scans blocks line by line. Relations are numbered in the order in which this scanner meets them."""

    def __init__(self, options: DumpOptions) -> None:
        self.options = options
        self.language = options.language.lower()
        self.relations: list[str] = []  # labels by number
        self._numbers: dict[str, tuple[int, int]] = {}  # whole IRI -> number, use
        self._by_label: dict[str, int] = {}
        self.buffers = new_buffers(options.block_bytes)
        self.rejects: list[Reject] = []

    def scan(self, block: Block) -> Rows:
        """Return the rows of one block."""
        if len(self.buffers.name_data) < len(block.data):
            self.buffers = new_buffers(len(block.data))._replace(relation_lines=self.buffers.relation_lines)
        buffers = self.buffers
        buffers.state[:] = buffers.counts[:] = buffers.relation_lines[:] = 0
        self.rejects = []
        self._scan_lines(block)
        return self._cut(block.size)

    def _scan_lines(self, block: Block) -> None:
        state = self.buffers.state
        while state[AT] < block.size:
            self._take_line(block)

    def _take_line(self, block: Block) -> None:
        """Parse the line that the scan is at with the regular expression, and go on to the next."""
        state, counts = self.buffers.state, self.buffers.counts
        start = int(state[AT])
        end = block.data.find(b"\n", start, block.size)
        whole = end >= 0
        line = bytes(memoryview(block.data)[start : end if whole else block.size])
        state[AT] = end + 1 if whole else block.size
        state[LINE] += 1
        found = parse_line(line)
        if found is None:
            counts[BLANK] += 1
        elif isinstance(found, str):
            counts[MALFORMED] += 1
            text = line[: 4 * MAX_REJECT_TEXT].decode(errors="replace")[:MAX_REJECT_TEXT]
            self.rejects.append(Reject(int(state[LINE]), found if whole else TRUNCATED, text))
        else:
            counts[self._take(found)] += 1

    def _take(self, statement: Statement) -> int:
        """Write the rows of one statement; return its outcome."""
        number, use = self._numbers.get(statement.relation) or self.add_relation(statement.relation)
        self.buffers.relation_lines[number] += 1
        names_something = use in (NAME, ALIAS)
        if use == NOISE or (names_something and not statement.is_literal):
            return NOISE
        language = statement.language
        if language is not None and language.lower() != self.language:
            if use == NAME:
                self._write_name(statement.subject, KIND_FOREIGN, "")
            return OTHER_LANGUAGE
        if not statement.object:
            return EMPTY_TEXT
        if names_something:
            self._write_name(statement.subject, KIND_NAME if use == NAME else KIND_ALIAS, statement.object)
            return use
        buffers, state = self.buffers, self.buffers.state
        head, tail = self._code(statement.subject), self._code(statement.object)
        if use == TYPE:
            row = state[NUM_TYPES]
            buffers.typed[row], buffers.type[row] = head, tail
            state[NUM_TYPES] += 1
        if use != TYPE or self.options.types_as_triples:
            row = state[NUM_TRIPLES]
            buffers.head[row], buffers.relation[row], buffers.tail[row] = head, number, tail
            state[NUM_TRIPLES] += 1
        return use

    def _write_name(self, subject: str, kind: int, name: str) -> None:
        buffers, state = self.buffers, self.buffers.state
        if kind == KIND_FOREIGN and state[LAST_NAMED] == code_of(subject):
            return
        entity = self._code(subject)
        if kind != KIND_ALIAS:
            state[LAST_NAMED] = entity
        row, data = state[NUM_NAMES], name.encode()
        end = state[NAME_BYTES] + len(data)
        buffers.name_data[state[NAME_BYTES] : end] = np.frombuffer(data, np.uint8)
        buffers.named[row], buffers.name_kind[row], buffers.name_end[row] = entity, kind, end
        state[NAME_BYTES] = end
        state[NUM_NAMES] += 1

    def _code(self, label: str) -> int:
        """Return the code of a label; what is no MID leaves its text."""
        code = code_of(label)
        if code < 0:
            buffers, state = self.buffers, self.buffers.state
            row, data = state[NUM_TEXTS], label.encode()
            end = state[TEXT_BYTES] + len(data)
            buffers.text_data[state[TEXT_BYTES] : end] = np.frombuffer(data, np.uint8)
            buffers.text_code[row], buffers.text_check[row], buffers.text_end[row] = code, hash_text(data)[1], end
            state[TEXT_BYTES] = end
            state[NUM_TEXTS] += 1
        return code

    def add_relation(self, iri: str) -> tuple[int, int]:
        """Give a relation met for the first time its number; return number and use."""
        label = label_of_iri(iri)
        number = self._by_label.setdefault(label, len(self._by_label))
        if number == len(self.relations):
            self.relations.append(label)
        counted = self.buffers.relation_lines
        if number == len(counted):
            self.buffers = self.buffers._replace(relation_lines=np.concatenate([counted, np.zeros_like(counted)]))
        self._numbers[iri] = number, self.options.use_of(label)
        return self._numbers[iri]

    def _cut(self, size: int) -> Rows:
        """Return copies of the rows in the buffers."""
        full, state = self.buffers, self.buffers.state
        sizes: dict[str, int | None] = {"state": None, "counts": None}
        sizes |= dict.fromkeys(("head", "relation", "tail"), state[NUM_TRIPLES])
        sizes |= dict.fromkeys(("typed", "type"), state[NUM_TYPES])
        sizes |= dict.fromkeys(("named", "name_kind", "name_end"), state[NUM_NAMES])
        sizes |= dict.fromkeys(("text_code", "text_check", "text_end"), state[NUM_TEXTS])
        sizes |= {"name_data": state[NAME_BYTES], "text_data": state[TEXT_BYTES], "relation_lines": len(self.relations)}
        cut = Buffers(**{name: getattr(full, name)[:size].copy() for name, size in sizes.items()})
        return Rows(size, int(state[LINE]), cut.counts, cut, self.rejects, len(self.relations))
