"""The compiled scanner against the regular expression, on lines bent in every way; the grammar against another's."""

from __future__ import annotations

import numpy as np
import pyoxigraph
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kgqa_core.graph.dump.filters import DumpOptions
from kgqa_core.graph.dump.ntriples import Statement, decode, parse_line
from kgqa_core.graph.dump.rows import RegexScanner, Rows
from kgqa_core.graph.dump.scan import CompiledScanner
from kgqa_core.graph.dump.stream import LINE_END, PADDING, Block
from kgqa_core.graph.formats import NOT_UTF8
from tests.graph.dump import lines

OPTIONS = DumpOptions(block_bytes=4096, types_as_triples=True)
COMPILED = CompiledScanner(OPTIONS)  # one for all examples: it knows relations that the plain one meets anew
KINDS = lines.WELL_FORMED | lines.MALFORMED
ALL = [one for ones in KINDS.values() for one in ones if len(one) < 300] + [lines.TRUNCATED]

# What bends lines: bytes that mean something in N-Triples, pieces of UTF-8, escapes, names of relations.
PIECES = [bytes([byte]) for byte in b'<>"\\\t \r\n.@^#_:um08-\x00\x1f\x7f\x80\xbf\xc2\xe2\xed\xf0\xff']
PIECES += [
    b"\\u00e9",
    b"\\ud83d",
    b"\\U0001F600",
    b"\\U00110000",
    "é".encode(),
    "€".encode(),
    "😀".encode(),
    b"\xed\xa0\x80",
]
PIECES += [
    b"^^<http://a>",
    b"@en",
    b"@de-x",
    b" .",
    b"\r\n",
    b"_:b",
    lines.NAME.encode(),
    lines.TYPE.encode(),
    b"m.0b",
    b'""',
]


@st.composite
def bent_texts(draw: st.DrawFn) -> bytes:
    """Some lines, with pieces cut out, put in, or overwritten."""
    chosen = draw(st.lists(st.sampled_from(ALL), min_size=1, max_size=4))
    text = bytearray(b"\n".join(chosen) + draw(st.sampled_from([b"", b"\n", b"\r\n"])))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(text)))
        text[at : at + draw(st.integers(0, 3))] = draw(st.sampled_from([*PIECES, b""]))
    return bytes(text)


def as_block(text: bytes) -> Block:
    """Return a block as the stream makes it, with what an earlier, longer block left behind its text."""
    return Block(0, bytearray(text + bytes([LINE_END]) + b'>" .\n\x80' * (PADDING // 6)), len(text))


def contents(scanner: RegexScanner, rows: Rows) -> dict[str, object]:
    """Return rows as plain values: relations by label, each text once."""
    found = rows.buffers
    starts = np.concatenate([[0], found.text_end])
    texts = [bytes(found.text_data[a:b]) for a, b in zip(starts, found.text_end, strict=False)]
    names = np.concatenate([[0], found.name_end])
    return {
        "lines": rows.num_lines,
        "counts": rows.counts.tolist(),
        "rejects": rows.rejects,
        "triples": [
            (head, scanner.relations[relation], tail)
            for head, relation, tail in zip(found.head, found.relation, found.tail, strict=True)
        ],
        "types": list(zip(found.typed, found.type, strict=True)),
        "names": list(zip(found.named, found.name_kind, strict=True)),
        "name texts": [bytes(found.name_data[a:b]) for a, b in zip(names, found.name_end, strict=False)],
        "texts": list(dict.fromkeys(zip(found.text_code, found.text_check, texts, strict=True))),
        "relations": {scanner.relations[i]: int(count) for i, count in enumerate(found.relation_lines) if count},
    }


def assert_same(text: bytes) -> None:
    plain = RegexScanner(OPTIONS)
    expected = contents(plain, plain.scan(as_block(text)))
    for _ in range(2):  # the second time every relation is known
        assert contents(COMPILED, COMPILED.scan(as_block(text))) == expected


@given(bent_texts())
@settings(max_examples=400, deadline=None)
@example(b"")
@example(b"\n")
@example(b"   ")
def test_compiled_rows_equal_plain_ones(text: bytes) -> None:
    assert_same(text)


@pytest.mark.parametrize("kind", KINDS)
def test_cut_at_every_byte(kind: str) -> None:
    for one in KINDS[kind]:
        assert_same(one)
        for end in range(min(len(one), 200)):
            assert_same(one[:end])


def test_every_byte_changed() -> None:
    """Each byte of three lines to each of sixteen others; all in one text, so that lines are neighbours too."""
    texts = []
    for one in (lines.WELL_FORMED["triple"][21], lines.WELL_FORMED["name"][2], lines.WELL_FORMED["triple"][18]):
        texts += [
            one[:at] + bytes([other]) + one[at + 1 :]
            for at in range(len(one))
            for other in b'\x00\t\r "<>\\.@^Aaz\x80\xc3'
        ]
    assert_same(b"\n".join(texts))


@given(st.text(max_size=20), st.text(max_size=20))
def test_texts_come_back(name: str, value: str) -> None:
    """What is written with the fewest escapes that the grammar allows is read as it was."""

    def quoted(text: str) -> str:
        for character, escape in (("\\", r"\\"), ('"', r"\""), ("\n", r"\n"), ("\r", r"\r")):
            text = text.replace(character, escape)
        return f'"{text}"'

    statement = parse_line(lines.line(lines.HEAD, lines.PARENT, quoted(value)))
    assert isinstance(statement, Statement) and statement.object == value
    assert decode(quoted(name)[1:-1]) == name
    if name:
        text = lines.line(lines.HEAD, lines.NAME, quoted(name)) + b"\n"
        assert contents(COMPILED, COMPILED.scan(as_block(text)))["name texts"] == [name.encode()]


@given(bent_texts())
@settings(max_examples=300)
def test_what_another_strict_parser_reads_is_read_the_same(text: bytes) -> None:
    """One way only: that parser also refuses IRIs and language tags for what RFC 3987 and BCP 47 say of them."""
    for one in text.replace(b"\r", b"").split(b"\n"):
        if parse_line(one) == NOT_UTF8:  # that parser does not look into remarks
            continue
        try:
            quads = list(pyoxigraph.parse(one, format=pyoxigraph.RdfFormat.N_TRIPLES))
        except (SyntaxError, ValueError):
            continue
        found = parse_line(one)
        if not quads:
            assert found is None
            continue
        assert isinstance(found, Statement), one
        triple = quads[0]
        assert found.relation == triple.predicate.value
        if isinstance(triple.object, pyoxigraph.Literal):
            assert (found.is_literal, found.object) == (True, triple.object.value)
            assert (found.language or "").lower() == (triple.object.language or "")
