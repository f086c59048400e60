"""From a block of N-Triples 1.1, read strictly, to the rows that are kept of it.

RE2 checks every line of the block against ``PLAIN`` at once. In lines that pass, places tell the fields: an IRI holds
no ``>``, so the first two of a line end subject and relation. A line that does not pass goes through ``parse_line``,
which knows the whole grammar: it says what is wrong with the line, or the line is rewritten in the plain form. Beyond
the grammar of the W3C recommendation, IRIs must be absolute, as its text demands, and ``\\u`` escapes must stand for
characters. A line of N-Quads goes through ``parse_line`` as well: the name of its graph is left out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kgqa_core import schemas
from kgqa_core.graph.input_files import MAX_REJECT_TEXT, NOT_UTF8, TRUNCATED
from kgqa_core.profiles import FREEBASE, Profile

XSD_STRING = "http://www.w3.org/2001/XMLSchema#string"  # the same as no datatype
LITERAL = r'(?s)^"(.*)"(?:\^\^<([^"]*)>|@([^"]*))?$'  # ``literal_label``: text, datatype, language; RE2's as well

_UCHAR = (  # no surrogates, nothing beyond U+10FFFF
    r"\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}"
    r"|\\U(?!0000[dD][89a-fA-F])00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}"
)
_SCHEME = r"[a-zA-Z][a-zA-Z0-9+.-]*:"
_IRI_CHARS = r'[^\x00-\x20<>"{}|^`\\]*'
_IRI = rf"<({_SCHEME}{_IRI_CHARS}(?:(?:{_UCHAR}){_IRI_CHARS})*)>"
_BASE = (  # PN_CHARS_U of the recommendation, with digits
    r"a-zA-Z0-9_:\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c-\u200d\u2070-\u218f"
    r"\u2c00-\u2fef\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
)
_MORE = _BASE + r"\u00b7\u0300-\u036f\u203f-\u2040-"
_BLANK_NODE = rf"(_:[{_BASE}](?:[{_MORE}.]*[{_MORE}])?)"
_TEXT = rf'[^"\\\r\n]*(?:(?:\\[tbnrf"\'\\]|{_UCHAR})[^"\\\r\n]*)*'
_TAG = r"[a-zA-Z]+(?:-[a-zA-Z0-9]+)*"
_WS = r"[ \t]*"
_TERM = re.compile(rf"{_WS}(?:{_IRI}|{_BLANK_NODE})")
_OBJECT = re.compile(rf'{_WS}(?:{_IRI}|{_BLANK_NODE}|"({_TEXT})"(?:{_WS}@({_TAG})|{_WS}\^\^{_WS}{_IRI})?)')
_END = re.compile(rf"{_WS}\.{_WS}(?:#.*)?", re.DOTALL)
_END_OF_QUAD = re.compile(rf"{_WS}(?:{_IRI}|{_BLANK_NODE})?{_END.pattern}", re.DOTALL)

_PLAIN_IRI = rf"<{_SCHEME}{_IRI_CHARS}>"
_PLAIN_ESCAPE = r'\\(?:[tbnrf"\'\\]|u(?:[0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))'
_PLAIN_LITERAL = rf'"[^"\\\r\n]*(?:{_PLAIN_ESCAPE}[^"\\\r\n]*)*"(?:@{_TAG}|\^\^{_PLAIN_IRI})?'
PLAIN = rf"^{_PLAIN_IRI}[ \t]{_PLAIN_IRI}[ \t](?:{_PLAIN_IRI}|{_PLAIN_LITERAL})[ \t]\.\r?\n$"
"""RE2, for bytes that are UTF-8: whole lines of three terms and a dot, each behind one tab or blank. No blank nodes, no
escapes in IRIs, no ``\\U``. It accepts nothing that ``parse_line`` does not."""

_NOTHING = re.compile(rf"{_WS}(?:#.*)?", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u(....)|U(........)|(.))", re.DOTALL)
_CHARACTERS = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f", '"': '"', "'": "'", "\\": "\\"}
_ESCAPED = str.maketrans({"\n": r"\n", "\r": r"\r", '"': r"\"", "\\": r"\\"})
_ODD = rf'\\|"@[^"]*[A-Z][^"]*$|"\^\^<{XSD_STRING}>$'  # in the label of a literal as a file writes it
_BAD_IN_IRI = re.compile(r'[\x00-\x20<>"{}|^`\\]')


def literal_label(text: str, datatype: str | None = None, language: str | None = None) -> str:
    """Return the label of a literal: as N-Triples writes it, without escapes.

    So no IRI has it, and literals of one text that differ in datatype or language are apart. The last quote ends the
    text. A plain text is one of datatype xsd:string; case does not count in languages (RDF 1.1 Concepts, 3.3).
    """
    if language:
        return f'"{text}"@{language.lower()}'
    return f'"{text}"^^<{datatype}>' if datatype and datatype != XSD_STRING else f'"{text}"'


class Statement(NamedTuple):
    """A well-formed line, its escapes decoded."""

    subject: str  # IRI or blank node
    relation: str  # IRI
    object: str  # IRI, blank node or text of a literal
    is_literal: bool
    language: str | None  # of a literal, as written
    datatype: str | None  # of a literal: IRI


def parse_line(line: bytes, *, is_quad: bool = False) -> Statement | str | None:
    """Parse a line without its end; return None for a blank or comment line, the first fault of a malformed one.

    ``is_quad``: may the name of a graph stand before the dot?
    """
    try:
        text = line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        return NOT_UTF8
    if _NOTHING.fullmatch(text):
        return None
    at, groups = 0, list[str]()
    for place, term in enumerate((_TERM, _TERM, _OBJECT)):
        match = term.match(text, at)
        if match is None or (place == 1 and match[2]):
            return _fault_of_term(text[at:].lstrip(" \t"), literal_allowed=place == 2)
        at, groups = match.end(), [*groups, *match.groups(default="")]
    subject, blank_subject, relation, _, iri, blank_object, literal, language, datatype = groups
    is_literal = not (iri or blank_object)
    if (_END_OF_QUAD if is_quad else _END).fullmatch(text, at) is None:
        if is_literal and text[at : at + 1] not in ("", " ", "\t", ".", '"', "<"):
            return "bad language tag or datatype"
        return "text after the final dot" if text[at:].lstrip(" \t").startswith(".") else "missing final dot"
    subject, relation, iri, datatype = map(decode, (subject, relation, iri, datatype))
    if "\\" in text and any(map(_BAD_IN_IRI.search, (subject, relation, iri, datatype))):
        return "bad character in an IRI"
    end = decode(literal) if is_literal else iri or blank_object
    return Statement(subject or blank_subject, relation, end, is_literal, language or None, datatype or None)


def _plain_line(found: Statement) -> bytes:
    """Write a statement in the plain form; a blank node stands between brackets, too."""
    last = f"<{found.object}>"
    if found.is_literal:
        last = literal_label(found.object.translate(_ESCAPED), found.datatype, found.language)
    return f"<{found.subject}>\t<{found.relation}>\t{last}\t.\n".encode()


def decode(text: str) -> str:
    """Return ``text`` with its escapes replaced by the characters that they stand for."""

    def character(match: re.Match[str]) -> str:
        short, long, letter = match.groups()
        return _CHARACTERS[letter] if letter else chr(int(short or long, 16))

    return _ESCAPE.sub(character, text) if "\\" in text else text


_RAW_IRI = re.compile(r"<([^<>\x00-\x20]*)>")
_RAW_LITERAL = re.compile(r'"(?:[^"\\\r\n]|\\.)*"', re.DOTALL)


def _fault_of_term(rest: str, *, literal_allowed: bool) -> str:
    if rest[:1] == '"' and literal_allowed:
        return "unterminated literal" if _RAW_LITERAL.match(rest) is None else "bad escape"
    if rest[:1] != "<":
        return "missing field"
    if rest.startswith("<<"):
        return "a triple inside a triple"
    raw = _RAW_IRI.match(rest)
    if raw is None:
        return "bad character in an IRI" if ">" in rest.split("<", 2)[1] else "unterminated IRI"
    iri = raw[1]
    if "\\" in re.sub(_UCHAR, "", iri):
        return "bad escape"
    return "bad character in an IRI" if re.search(r'["{}|^`]', iri) or not iri else "relative IRI"


OUTCOMES = ("triple", "name", "alias", "type", "noise", "other_language", "empty_text", "blank", "malformed")
TRIPLE, NAME, ALIAS, TYPE, NOISE, OTHER_LANGUAGE, EMPTY_TEXT, BLANK, MALFORMED = range(len(OUTCOMES))
USES = OUTCOMES[: NOISE + 1]  # of relations
KIND_NAME, KIND_ALIAS, KIND_FOREIGN = 0, 1, 2  # DUMP_NAMES.kind; above: a name in the second, third ... language
TABLES = {"triples": schemas.DUMP_TRIPLES, "types": schemas.DUMP_TYPES, "names": schemas.DUMP_NAMES}
LF, CR, QUOTE, CLOSE = b'\n\r">'
Array = NDArray[Any]
Counts = defaultdict[str, Counter[str]]
"""What was counted in a block or a part, by kind: ``text`` (lines, bytes), ``lines`` by outcome, ``rejects`` by reason,
``rows`` by table, ``relations`` (well-formed lines by label), ``files`` (bytes by name)."""


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What is kept of a dump. All of it decides the bytes that are written."""

    profile: Profile = FREEBASE
    is_quads: bool = False  # may lines name a graph?
    max_reject_ratio: float = 0.01  # malformed lines / lines that are not blank
    block_bytes: int = 2 * 2**20  # of plain text that are read at once; larger ones cost page faults
    blocks_per_part: int = 512  # 1 GiB of plain text per part

    def use_of(self, relation: str) -> int:
        """Return what a relation's lines are used for, as a place in USES."""
        own = ((NAME, self.profile.names), (ALIAS, self.profile.aliases), (TYPE, self.profile.types))
        found = (use for use, relations in own if relation in relations)
        return next(found, NOISE if relation.startswith(self.profile.noise) else TRIPLE)


@dataclass(slots=True)
class Rows:
    """What a block holds."""

    counts: Counts = field(default_factory=lambda: defaultdict(Counter))  # text, lines and relations
    rejects: list[tuple[int, str, str]] = field(default_factory=list)  # line in the block from 1, reason, text
    tables: list[tuple[str, pa.Table]] = field(default_factory=list)  # kind of TABLES, rows


def read_rows(text: bytes, options: DumpOptions) -> Rows:
    """Return the rows of a block of whole lines; the last of a file may lack its line end."""
    rows = Rows()
    rows.counts["text"]["bytes"] = len(text)
    cut_off = not text.endswith(b"\n")
    text = text + b"\n" if cut_off else text
    data = np.frombuffer(text, np.uint8)
    line_ends = np.flatnonzero(data == LF)
    starts = np.append(0, line_ends[:-1] + 1)
    rows.counts["text"]["lines"] = len(starts)
    plain = _are_plain(text, line_ends)
    mended: list[bytes] = []
    for place in np.flatnonzero(~plain).tolist():
        line = bytes(memoryview(text)[starts[place] : line_ends[place]])
        found = parse_line(line, is_quad=options.is_quads)
        if isinstance(found, Statement):
            mended.append(_plain_line(found))
        elif found is None:
            rows.counts["lines"][OUTCOMES[BLANK]] += 1
        else:
            rows.counts["lines"][OUTCOMES[MALFORMED]] += 1
            reason = TRUNCATED if cut_off and place == len(starts) - 1 else found
            shown = line[: 4 * MAX_REJECT_TEXT].decode(errors="replace")[:MAX_REJECT_TEXT]
            rows.rejects.append((place + 1, reason, shown))
    if plain.any():
        _take(text, starts[plain], line_ends[plain], options, rows)
    if mended:
        text = b"".join(mended)
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == LF)
        _take(text, np.append(0, ends[:-1] + 1), ends, options, rows)
    return rows


def _are_plain(text: bytes, line_ends: Array) -> NDArray[np.bool_]:
    """Say of each line whether it is N-Triples in the plain form."""
    offsets = np.zeros(len(line_ends) + 1, np.int32)
    offsets[1:] = line_ends + 1
    lines = pa.Array.from_buffers(pa.binary(), len(line_ends), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    plain = array_of(pc.match_substring_regex(lines, PLAIN))
    try:
        lines.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8: which lines?
        valid = (line.decode(errors="ignore").encode() == line for line in lines.to_pylist())
        plain &= np.fromiter(valid, np.bool_, len(lines))
    return plain


def _take(text: bytes, starts: Array, line_ends: Array, options: DumpOptions, rows: Rows) -> None:
    """Add the rows of plain lines, given where each starts and where its line end stands."""
    data = np.frombuffer(text, np.uint8)
    closing = np.flatnonzero(data == CLOSE)
    first = np.searchsorted(closing, starts)
    subject_ends, relation_ends = closing[first], closing[first + 1]
    profile, languages = options.profile, len(options.profile.language)
    relations = _cut(text, subject_ends + 3, relation_ends).dictionary_encode()
    codes = array_of(relations.indices)
    iris, ends = relations.dictionary, np.frombuffer(relations.dictionary.buffers()[1], np.int32)
    are_iris = np.ones(len(iris), np.bool_)
    labels = _cut_labels(iris.buffers()[2], ends[: len(iris)], ends[1 : len(iris) + 1], are_iris, profile)
    known = labels.to_pylist()
    for label, count in zip(known, np.bincount(codes).tolist(), strict=True):
        rows.counts["relations"][label] += count
    outcomes = np.array(list(map(_uses(options), known)), np.int8)[codes]
    is_literal = data[relation_ends + 2] == QUOTE
    outcomes[((outcomes == NAME) | (outcomes == ALIAS)) & ~is_literal] = NOISE

    kept = np.flatnonzero(outcomes != NOISE)
    rows.counts["lines"][OUTCOMES[NOISE]] += len(outcomes) - len(kept)
    outcomes, is_literal, opened = outcomes[kept], is_literal[kept], relation_ends[kept] + 2
    subjects = _cut_labels(text, starts[kept] + 1, subject_ends[kept], np.ones(len(kept), np.bool_), profile)
    stops = line_ends[kept] - 2 - (data[line_ends[kept] - 1] == CR)  # behind the object
    closed, language = _read_ends(text, stops, is_literal, profile.language)
    is_foreign = language == languages
    is_node = is_literal & (outcomes != NAME) & (outcomes != ALIAS)  # with its quotes, and what stands behind them
    objects = _cut_labels(text, opened + ~is_node, np.where(is_node, stops, closed), ~is_literal, profile)
    of_foreign_names = subjects.filter(column(is_foreign & (outcomes == NAME)))
    outcomes[closed == opened + 1] = EMPTY_TEXT  # an IRI is never empty
    outcomes[is_foreign & ~(is_node & profile.keep_foreign)] = OTHER_LANGUAGE
    for outcome, count in enumerate(np.bincount(outcomes, minlength=len(OUTCOMES)).tolist()):
        rows.counts["lines"][OUTCOMES[outcome]] += count

    def put(kind: str, is_chosen: Array, middle: pa.Array | None = None) -> None:
        chosen = column(np.flatnonzero(is_chosen))
        columns = [subjects, *([] if middle is None else [middle]), objects]
        rows.tables.append((kind, pa.table([values.take(chosen) for values in columns], schema=TABLES[kind])))

    labels = labels.take(relations.indices.take(column(kept)))
    is_type = outcomes == TYPE
    put("triples", (outcomes == TRIPLE) | is_type if profile.keep_types else outcomes == TRIPLE, labels)
    put("types", is_type)
    kind_of_name = np.where(language, KIND_FOREIGN + language, KIND_NAME)
    kinds = np.where(outcomes == NAME, kind_of_name, KIND_ALIAS).astype(np.int8)
    put("names", (outcomes == NAME) | (outcomes == ALIAS), column(kinds))
    named = pc.unique(of_foreign_names)
    columns = [named, column(np.full(len(named), KIND_FOREIGN, np.int8)), pa.nulls(len(named), pa.string())]
    rows.tables.append(("names", pa.table(columns, schema=TABLES["names"])))


@cache
def _uses(options: DumpOptions) -> Callable[[str], int]:
    """Return what gives the use of a relation; options are hashed once, not for each relation."""
    return cache(options.use_of)


def _read_ends(text: bytes, stops: Array, is_literal: Array, languages: Sequence[str]) -> tuple[Array, Array]:
    """Return where the closing quote or bracket of each object stands, and which of ``languages`` each is in, by place.

    What has no language is in the first of them, what is in no other: their number.
    """
    data = np.frombuffer(text, np.uint8)
    closed = stops - 1
    language = np.zeros(len(stops), np.int8)
    marked = np.flatnonzero(is_literal & (data[closed] != QUOTE))  # a datatype or a language stands behind the text
    if len(marked):
        quotes = np.flatnonzero(data == QUOTE)
        closed[marked] = quotes[np.searchsorted(quotes, stops[marked]) - 1]
        tagged = marked[data[stops[marked] - 1] != CLOSE]
        given = pc.ascii_lower(_cut(text, closed[tagged] + 2, stops[tagged]))
        language[tagged] = len(languages)
        for place, one in enumerate(languages):
            language[tagged[array_of(pc.equal(given, strings([one.lower()])[0]))]] = place
    return closed, language


def _cut_labels(text: bytes | pa.Buffer, starts: Array, stops: Array, is_iri: Array, profile: Profile) -> pa.Array:
    """Return the labels of terms: of an IRI as ``label_of_iri`` has it, of a literal as ``literal_label``.

    A literal that is cut without its quotes is a text, whose escapes are decoded.
    """
    if profile.namespaces:
        whole, left = _cut(text, starts, stops), is_iri
        for namespace in map(str.encode, profile.namespaces):
            begins = left & (stops - starts > len(namespace)) & array_of(pc.starts_with(whole, namespace))
            starts, left = starts + begins * len(namespace), left & ~begins
    labels = _cut(text, starts, stops)
    if is_iri.all():
        return labels
    is_odd = ~is_iri
    is_odd[is_odd] = array_of(pc.match_substring_regex(labels.filter(column(is_odd)), _ODD))
    if not is_odd.any():
        return labels
    mended = [_mend(label) for label in labels.filter(column(is_odd)).to_pylist()]
    return pc.replace_with_mask(labels, column(is_odd), strings(mended))


def _mend(label: str) -> str:
    """Return what a label, or the text of a literal, stands for, given as the file writes it."""
    if label.startswith('"'):
        text, quote, end = label.rpartition('"')
        label = text + quote + ("" if end == f"^^<{XSD_STRING}>" else end.lower() if end.startswith("@") else end)
    return decode(label)


def _cut(text: bytes | pa.Buffer, starts: Array, stops: Array) -> pa.Array:
    """Return the strings [starts, stops) of a text of valid UTF-8. They follow each other, apart.

    The text is looked at as twice as many strings, wanted and unwanted in turn; every other one is copied.
    """
    offsets = np.zeros(2 * len(starts) + 1, np.int32)
    offsets[:-1:2], offsets[1::2] = starts, stops
    offsets[-1] = stops[-1] if len(stops) else 0
    both = pa.Array.from_buffers(pa.string(), 2 * len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    return both.take(column(np.arange(0, 2 * len(starts), 2)))


def strings(values: Sequence[str]) -> pa.Array:
    """Return strings as a column; see ``column``."""
    pieces = [value.encode() for value in values]
    offsets = np.zeros(len(pieces) + 1, np.int32)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(pieces))]
    return pa.Array.from_buffers(pa.string(), len(pieces), buffers)


def column(values: Array) -> pa.Array:
    """Return numbers or truth values as a column. (``pa.array`` would import pandas: 0.4 s and 40 MB.)"""
    if values.dtype == np.bool_:
        bits = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def array_of(values: pa.Array) -> Array:
    """Return a column of whole numbers or truth values, without nulls, as an array; see ``column``."""
    if pa.types.is_boolean(values.type):
        return array_of(values.cast(pa.uint8())).view(np.bool_)
    return np.frombuffer(values.buffers()[1], str(values.type), len(values), values.offset * values.type.byte_width)
