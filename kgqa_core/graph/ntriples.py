"""N-Triples 1.1, strictly: which lines are well-formed, and what is wrong with the others.

``PLAIN`` accepts most of them, a block of text at a time. ``parse_line`` knows the whole grammar: it takes every line
that ``PLAIN`` leaves, says what is wrong with a malformed one, and is the oracle of the tests. Beyond the grammar of
the W3C recommendation, IRIs must be absolute, as its text demands, and ``\\u`` escapes must stand for characters.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kgqa_core.graph.rejects import NOT_UTF8

NS = "http://rdf.freebase.com/ns/"  # left out of labels
KEY, KEY_LABEL = "http://rdf.freebase.com/key/", "key/"

MISSING_FIELD = "missing field"
UNTERMINATED_IRI = "unterminated IRI"
BAD_IRI = "bad character in an IRI"
RELATIVE_IRI = "relative IRI"
UNTERMINATED_LITERAL = "unterminated literal"
BAD_ESCAPE = "bad escape"
BAD_TAG = "bad language tag or datatype"
MISSING_DOT = "missing final dot"
GARBAGE = "text after the final dot"

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
_OBJECT = rf'(?:{_IRI}|{_BLANK_NODE}|"({_TEXT})"(?:@({_TAG})|\^\^{_IRI})?)'
_WS = r"[ \t]*"
LINE = re.compile(
    rf"{_WS}(?:{_IRI}|{_BLANK_NODE}){_WS}{_IRI}{_WS}{_OBJECT}{_WS}\.{_WS}(?:#.*)?",
    re.DOTALL,
)

_PLAIN_IRI = rf"<{_SCHEME}{_IRI_CHARS}>"
_PLAIN_ESCAPE = r'\\(?:[tbnrf"\'\\]|u(?:[0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))'
_PLAIN_LITERAL = rf'"[^"\\\r\n]*(?:{_PLAIN_ESCAPE}[^"\\\r\n]*)*"(?:@{_TAG}|\^\^{_PLAIN_IRI})?'
PLAIN = rf"^{_PLAIN_IRI}[ \t]{_PLAIN_IRI}[ \t](?:{_PLAIN_IRI}|{_PLAIN_LITERAL})[ \t]\.\r?\n$"
"""RE2, for bytes that are UTF-8: whole lines of three terms and a dot, each behind one tab or blank. No blank nodes, no
escapes in IRIs, no ``\\U``. It accepts nothing that ``LINE`` does not."""

_NOTHING = re.compile(rf"{_WS}(?:#.*)?", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u(....)|U(........)|(.))", re.DOTALL)
_CHARACTERS = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f", '"': '"', "'": "'", "\\": "\\"}
_ESCAPED = str.maketrans({"\n": r"\n", "\r": r"\r", '"': r"\"", "\\": r"\\"})
_BAD_IN_IRI = re.compile(r'[\x00-\x20<>"{}|^`\\]')


class Statement(NamedTuple):
    """A well-formed line, its escapes decoded."""

    subject: str  # IRI or blank node
    relation: str  # IRI
    object: str  # IRI, blank node or text of a literal
    is_literal: bool
    language: str | None  # of a literal, as written


def parse_line(line: bytes) -> Statement | str | None:
    """Parse one line without its line end.

    Returns:
        the statement; None for a blank or comment line; for a malformed line the reason.
    """
    try:
        text = line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        return NOT_UTF8
    if _NOTHING.fullmatch(text):
        return None
    match = LINE.fullmatch(text)
    if match is None:
        return find_fault(text)
    subject, blank_subject, relation, iri, blank_object, literal, language, datatype = match.groups()
    if "\\" in text:
        iris = [decode(given) for given in (subject, relation, iri, datatype) if given is not None]
        if any(map(_BAD_IN_IRI.search, iris)):
            return BAD_IRI
        subject, relation, iri = (None if given is None else decode(given) for given in (subject, relation, iri))
    subject = subject or blank_subject
    if literal is not None:
        return Statement(subject, relation, decode(literal), True, language)
    return Statement(subject, relation, iri or blank_object, False, None)


def plain_line(statement: Statement) -> bytes:
    """Write a statement as a line of the dump's own form; a blank node stands between brackets, too."""
    if statement.is_literal:
        tag = f"@{statement.language}" if statement.language else ""
        last = f'"{statement.object.translate(_ESCAPED)}"{tag}'
    else:
        last = f"<{statement.object}>"
    return f"<{statement.subject}>\t<{statement.relation}>\t{last}\t.\n".encode()


def label_of_iri(iri: str) -> str:
    """Return the label: without Freebase's namespace where that leaves something, ``key/...`` for keys, else whole."""
    if iri.startswith(NS) and len(iri) > len(NS):
        return iri[len(NS) :]
    return KEY_LABEL + iri[len(KEY) :] if iri.startswith(KEY) else iri


def decode(text: str) -> str:
    """Return ``text`` with its escapes replaced by the characters that they stand for."""
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(match: re.Match[str]) -> str:
    short, long, letter = match.groups()
    return _CHARACTERS[letter] if letter else chr(int(short or long, 16))


_TERM = re.compile(rf"{_WS}(?:{_IRI}|{_BLANK_NODE})")
_ANY_OBJECT = re.compile(_WS + _OBJECT)
_RAW_IRI = re.compile(r"<([^<>\x00-\x20]*)>")
_RAW_LITERAL = re.compile(r'"(?:[^"\\\r\n]|\\.)*"', re.DOTALL)


def find_fault(text: str) -> str:
    """Return why a line, known to be malformed, is: the first thing wrong from the left."""
    at, match = 0, None
    for place in range(3):
        match = (_ANY_OBJECT if place == 2 else _TERM).match(text, at)
        if match is None or (place == 1 and match[2]):
            return _fault_of_term(text[at:].lstrip(" \t"), literal_allowed=place == 2)
        at = match.end()
    rest = text[at:]
    is_literal = match is not None and match[3] is not None
    if is_literal and rest[:1] not in ("", " ", "\t", ".", '"', "<"):
        return BAD_TAG
    return GARBAGE if rest.lstrip(" \t").startswith(".") else MISSING_DOT


def _fault_of_term(rest: str, *, literal_allowed: bool) -> str:
    if rest[:1] == "<":
        return _fault_of_iri(rest)
    if rest[:1] == '"' and literal_allowed:
        return UNTERMINATED_LITERAL if _RAW_LITERAL.match(rest) is None else BAD_ESCAPE
    return MISSING_FIELD


def _fault_of_iri(rest: str) -> str:
    raw = _RAW_IRI.match(rest)
    if raw is None:
        return BAD_IRI if ">" in rest.split("<", 2)[1] else UNTERMINATED_IRI
    iri = raw[1]
    if "\\" in re.sub(_UCHAR, "", iri):
        return BAD_ESCAPE
    return BAD_IRI if re.search(r'["{}|^`]', iri) or not iri else RELATIVE_IRI
