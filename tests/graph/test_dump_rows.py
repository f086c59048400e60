"""Blocks of a dump against one regular expression per line, on bent lines; that one against another parser."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyoxigraph
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kgqa_core.graph import dump_rows
from kgqa_core.graph.dump_rows import (
    OUTCOMES,
    XSD_STRING,
    DumpOptions,
    Rows,
    Statement,
    literal_label,
    parse_line,
    read_rows,
)
from kgqa_core.graph.input_files import NOT_UTF8, TRUNCATED
from kgqa_core.profiles import FREEBASE, label_of_iri
from tests.graph import dump_lines as lines

YEAR = '"1964"^^<http://www.w3.org/2001/XMLSchema#gYear>'
OPTIONS = DumpOptions(replace(FREEBASE, keep_types=True))
KINDS = lines.WELL_FORMED | lines.MALFORMED
ALL = [one for ones in KINDS.values() for one in ones if len(one) < 300] + [lines.TRUNCATED]

# What bends lines: bytes that mean something in N-Triples, pieces of UTF-8, escapes, names of relations.
PIECES = [bytes([byte]) for byte in b'<>"\\\t \r\n.@^#_:um08-\x00\x1f\x7f\x80\xbf\xc2\xe2\xed\xf0\xff']
PIECES += [b"\\u00e9", b"\\ud83d", b"\\U0001F600", b"\\U00110000", b"\xed\xa0\x80", b"\xc3\xa9", b"\xe2\x82\xac"]
PIECES += [b"^^<http://a>", b"@en", b"@de-x", b" .", b"\r\n", b"_:b", b"m.0b", b'""', b'> "', b"> <"]
PIECES += [f"^^<{XSD_STRING}>".encode(), b"@EN"]
PIECES += ["😀".encode(), lines.NAME.encode(), lines.TYPE.encode(), lines.NS.encode()]


@st.composite
def bent_texts(draw: st.DrawFn) -> bytes:
    """Some lines, with pieces cut out, put in, or overwritten."""
    chosen = draw(st.lists(st.sampled_from(ALL), min_size=1, max_size=4))
    text = bytearray(b"\n".join(chosen) + draw(st.sampled_from([b"", b"\n", b"\r\n"])))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(text)))
        text[at : at + draw(st.integers(0, 3))] = draw(st.sampled_from([*PIECES, b""]))
    return bytes(text)


def plain_rows(text: bytes, options: DumpOptions) -> dict[str, Any]:
    """Read a block line by line."""
    found: dict[str, Any] = {"lines": Counter(), "relations": Counter(), "rejects": []}
    tables: dict[str, list[Any]] = {"triples": [], "types": [], "names": []}
    foreign = set()
    given = text.split(b"\n")
    whole = len(given) - 1  # the last one has no line end
    for number, line in enumerate(given[:-1] if not given[-1] else given, 1):
        read = parse_line(line)
        if not isinstance(read, Statement):
            found["lines"]["blank" if read is None else "malformed"] += 1
            if read is not None:
                found["rejects"].append((number, read if number <= whole else TRUNCATED))
            continue
        relation = label_of_iri(read.relation)
        found["relations"][relation] += 1
        use = OUTCOMES[options.use_of(relation)]
        head, end = label_of_iri(read.subject), read.object if read.is_literal else label_of_iri(read.object)
        tail = literal_label(end, read.datatype, read.language) if read.is_literal else end
        if use == "noise" or (use in ("name", "alias") and not read.is_literal):
            outcome = "noise"
        elif read.language is not None and read.language.lower() not in options.profile.language:
            outcome = "other_language"
            foreign |= {head} if use == "name" else set()
        else:
            outcome = use if end else "empty_text"
        found["lines"][outcome] += 1
        if outcome in ("name", "alias"):
            tables["names"].append((head, ("name", "alias").index(outcome), end))
        if outcome == "type":
            tables["types"].append((head, tail))
        if outcome == "triple" or (outcome == "type" and options.profile.keep_types):
            tables["triples"].append((head, relation, tail))
    tables["names"] += [(head, 2, None) for head in foreign]
    return found | {kind: Counter(rows) for kind, rows in tables.items()} | {"num_lines": number if text else 0}


def contents(rows: Rows) -> dict[str, Any]:
    """Return rows as plain values; of foreign names each entity once."""
    tables: dict[str, list[Any]] = {"triples": [], "types": [], "names": []}
    for kind, table in rows.tables:
        table.validate(full=True)
        tables[kind] += [tuple(row.values()) for row in table.to_pylist()]
    named = [row for row in tables["names"] if row[1] != 2]
    tables["names"] = named + list({row for row in tables["names"] if row[1] == 2})
    return {
        "lines": +rows.counts["lines"],
        "relations": +rows.counts["relations"],
        "rejects": [(line, reason) for line, reason, _ in rows.rejects],
        "num_lines": rows.counts["text"]["lines"],
        **{kind: Counter(found) for kind, found in tables.items()},
    }


def assert_same(text: bytes) -> None:
    if text:
        assert contents(read_rows(text, OPTIONS)) == plain_rows(text, OPTIONS)


@given(bent_texts())
@settings(max_examples=200, deadline=None)
@example(b"\n")
@example(b"   ")
def test_rows_of_a_block_are_those_of_its_lines(text: bytes) -> None:
    assert_same(text)


def test_cut_or_changed_at_every_byte() -> None:
    """All in one text, so that lines are neighbours; and the text itself cut where a line is."""
    for ones in KINDS.values():
        assert_same(b"\n".join(one[:end] for one in ones for end in range(1, min(len(one), 200))))
        for one in ones:
            for end in range(1, min(len(one), 200), 7):
                assert_same(one[:end])

    texts = []
    for one in (lines.WELL_FORMED["triple"][21], lines.WELL_FORMED["name"][2], lines.WELL_FORMED["triple"][18]):
        texts += [
            one[:at] + bytes([other]) + one[at + 1 :]
            for at in range(len(one))
            for other in b'\x00\t\r "<>\\.@^Aaz\x80\xc3'
        ]
    assert_same(b"\n".join(texts))


@pytest.mark.parametrize("between", ["\t", " "])
@pytest.mark.parametrize("end", ["", "\r"])
def test_lines_of_the_usual_forms_are_read_without_a_call_per_line(
    between: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = [
        lines.line(*fields, between=between, end=f"{between}.{end}")
        for fields in (
            (lines.HEAD, lines.PARENT, lines.TAIL),
            (lines.HEAD, lines.PARENT, '"1964"^^<http://www.w3.org/2001/XMLSchema#gYear>'),
            (lines.HEAD, lines.NAME, r'"J\u00fcrgen \"> <\" É"@en'),
            (lines.HEAD, lines.NAME, '"Барак"@ru'),
            (lines.HEAD, "<http://rdf.freebase.com/key/en>", '"barack"'),
        )
    ]
    monkeypatch.setattr(dump_rows, "parse_line", lambda line: pytest.fail(f"{line!r} was taken for odd"))
    rows = contents(read_rows(b"\n".join(usual) + b"\n", OPTIONS))
    assert rows["lines"] == {"triple": 2, "name": 1, "other_language": 1, "noise": 1}
    assert rows["names"] == {("m.0bcd1", 0, 'Jürgen "> <" É'): 1, ("m.0bcd1", 2, None): 1}
    assert rows["triples"] == {("m.0bcd1", "people.person.parents", tail): 1 for tail in ("m.02mjmr", YEAR)}


@given(st.text(max_size=20), st.text(max_size=20))
def test_texts_come_back(name: str, value: str) -> None:
    """What is written with the fewest escapes that the grammar allows is read as it was."""
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r"})
    said = ((lines.NAME, name), (lines.PARENT, value))
    text = b"\n".join(lines.line(lines.HEAD, relation, f'"{one.translate(escapes)}"') for relation, one in said)
    rows = contents(read_rows(text, OPTIONS))
    assert rows["names"] == ({("m.0bcd1", 0, name): 1} if name else {})
    assert rows["triples"] == ({("m.0bcd1", "people.person.parents", f'"{value}"'): 1} if value else {})


@given(bent_texts())
@settings(max_examples=200)
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
            assert (found.datatype or XSD_STRING) == triple.object.datatype.value or found.language


def test_a_namespace_is_left_out_in_whatever_letters_it_is_written() -> None:
    profile = replace(FREEBASE, namespaces=("http://пример/", "http://a/"), noise=())
    text = "<http://пример/Ж1> <http://a/r> <http://a/é> .\n<http://a/x> <http://пример/> <http://пример/y> .\n"
    rows = read_rows(text.encode(), DumpOptions(profile=profile))
    (triples,) = [table.to_pylist() for kind, table in rows.tables if kind == "triples"]
    assert [tuple(row.values()) for row in triples] == [("Ж1", "r", "é"), ("x", "http://пример/", "y")]
