"""Lines of a dump for tests: the well-formed ones by what becomes of them, the malformed ones by what is wrong."""

from __future__ import annotations

NS = "http://rdf.freebase.com/ns/"
HEAD = f"<{NS}m.0bcd1>"
PARENT = f"<{NS}people.person.parents>"
NAME, ALIAS, TYPE = f"<{NS}type.object.name>", f"<{NS}common.topic.alias>", f"<{NS}type.object.type>"
NOISE, LABEL = f"<{NS}common.topic.description>", "<http://www.w3.org/2000/01/rdf-schema#label>"
TAIL = f"<{NS}m.02mjmr>"


def line(*fields: str, between: str = "\t", end: str = "\t.") -> bytes:
    """Return a line without its line end, fields parted as in the dump."""
    return (between.join(fields) + end).encode()


WELL_FORMED: dict[str, list[bytes]] = {
    "triple": [
        line(HEAD, PARENT, TAIL),
        line(HEAD, PARENT, TAIL, between=" ", end=" ."),
        line(HEAD, PARENT, TAIL, between="  \t "),
        line(HEAD, PARENT, TAIL, between="", end="."),
        b" \t" + line(HEAD, PARENT, TAIL) + b" \t",
        line(HEAD, PARENT, TAIL) + b" # a remark",
        line(HEAD, PARENT, TAIL) + b"\r",
        line(f"<{NS}g.11b5lzsmmj>", PARENT, f"<{NS}en.john_smith>"),
        line(f"<{NS}people.person>", PARENT, f"<{NS}m.0bcdfghjklmn>"),  # twelve characters: no MID
        line(f"<{NS}m.0BC>", PARENT, f"<{NS}>"),
        line(HEAD, PARENT, "<http://rdf.freebase.com/key/wikipedia.en>"),
        line(HEAD, PARENT, "<http://de.wikipedia.org/wiki/Zürich>"),
        line(HEAD, PARENT, r"<http://example.org/\u00e9\U0001F600>"),
        line(HEAD, PARENT, "<urn:isbn:1>"),
        line("_:b0", PARENT, "_:ä.1"),
        line(HEAD, "<x:y>", TAIL),
        line(HEAD, r"<http://rdf.freebase.com/ns/people.person.p\u0061rents>", TAIL),
        line(HEAD, PARENT, '"1964"'),
        line(HEAD, PARENT, '"1964"^^<http://www.w3.org/2001/XMLSchema#gYear>'),
        line(HEAD, PARENT, '"m.02mjmr"'),
        line(HEAD, PARENT, r'"m.02mj\u006dr"'),
        line(HEAD, PARENT, r'"a \"b\" \\ \t\n\r\b\f\' é \u00e9\u20ac\U0001F600 é€😀"'),
        line(HEAD, PARENT, '"tab\tand\x00nul and <>{}"'),
        line(HEAD, PARENT, '"in English"@EN'),
        line(HEAD, PARENT, '"in English" @en'),
        line(HEAD, PARENT, '"1964" ^^\t<http://www.w3.org/2001/XMLSchema#gYear>'),
        line(HEAD, PARENT, '"a text"^^<http://www.w3.org/2001/XMLSchema#string>'),
        line(HEAD, PARENT, f'"{"long " * 3000}"'),
    ],
    "name": [line(HEAD, NAME, '"Barack"@en'), line(HEAD, NAME, '"no language"'), line(HEAD, NAME, r'"J\u00fcrgen"@en')],
    "alias": [line(HEAD, ALIAS, '"Barry"@en'), line("_:b1", ALIAS, '"Barry"@en')],
    "type": [line(HEAD, TYPE, f"<{NS}people.person>"), line(HEAD, TYPE, '"people.person"')],
    "noise": [
        line(HEAD, NOISE, r'"Er sagte \"hallo\" \u00e9 ö"@de'),
        line(HEAD, LABEL, '"Barack"@en'),
        line(HEAD, NAME, TAIL),
        line(HEAD, "<http://rdf.freebase.com/key/en>", '"barack"'),
    ],
    "other_language": [
        line(HEAD, NAME, '"Барак"@ru'),
        line(HEAD, NAME, '"again"@zh-hant'),
        line(f"<{NS}people.person>", NAME, '"Person"@de'),
        line(HEAD, ALIAS, '"b"@en-GB'),
        line(HEAD, PARENT, '"x"@eng'),
    ],
    "empty_text": [line(HEAD, PARENT, '""'), line(HEAD, NAME, '""@en')],
    "blank": [b"", b" \t ", b"\r", b"# a remark", b"  # <a:b> \xc3\xa9"],
}

MALFORMED: dict[str, list[bytes]] = {
    "missing final dot": [
        line(HEAD, PARENT, TAIL, end=""),
        line(HEAD, PARENT, '"a"', end="\t"),
        line(HEAD, PARENT, TAIL, end=" ;"),
    ],
    "missing field": [line(HEAD, PARENT), line(HEAD), b".", line(HEAD, "", TAIL), line('"a"', PARENT, TAIL), b"\x0c"],
    "unterminated IRI": [line(HEAD[:-1], PARENT, TAIL), line(HEAD, PARENT[:-1], TAIL), line(HEAD, PARENT, TAIL[:-1])],
    "bad character in an IRI": [
        line(HEAD, PARENT, f"<{NS}m.0b c>"),
        line(HEAD, PARENT, f'<{NS}m.0b"c>'),
        line(f"<{NS}m.0b\x01c>", PARENT, TAIL),
        line(HEAD, f"<{NS}a|b>", TAIL),
        line(HEAD, PARENT, r"<http://example.org/\u0020>"),
        line(HEAD, PARENT, '"a"^^<http://example.org/\\u003e>'),
    ],
    "relative IRI": [line(HEAD, PARENT, "<m.0bc>"), line("</ns/m.0bc>", PARENT, TAIL)],
    "unterminated literal": [line(HEAD, PARENT, '"abc'), line(HEAD, PARENT, r'"abc\"'), line(HEAD, PARENT, '"a\rb"')],
    "bad escape": [
        line(HEAD, PARENT, r'"\q"'),
        line(HEAD, PARENT, r'"\u12"'),
        line(HEAD, PARENT, r'"\u123g"'),
        line(HEAD, PARENT, r'"\ud800"'),
        line(HEAD, PARENT, r'"\U00110000"'),
        line(HEAD, PARENT, r"<http://example.org/\n>"),
    ],
    "bad language tag or datatype": [
        line(HEAD, PARENT, '"a"@'),
        line(HEAD, PARENT, '"a"@e1'),
        line(HEAD, PARENT, '"a"@en-'),
        line(HEAD, PARENT, '"a"@en_US'),
        line(HEAD, PARENT, '"a"^<http://example.org/t>'),
        line(HEAD, PARENT, '"a"^^date'),
    ],
    "text after the final dot": [
        line(HEAD, PARENT, TAIL) + b" .",
        line(HEAD, PARENT, TAIL) + b"x",
        line(HEAD, PARENT, TAIL) + b"\r\r",
    ],
    "not UTF-8": [
        line(HEAD, PARENT, '"a?b"').replace(b"?", bytes(broken))
        for broken in (
            [0xFF],  # no such byte
            [0xC0, 0x80],  # NUL, too long
            [0xE0, 0x80, 0x80],
            [0xED, 0xA0, 0x80],  # a surrogate
            [0xF0, 0x80, 0x80, 0x80],
            [0xF4, 0x90, 0x80, 0x80],  # beyond U+10FFFF
            [0xE2, 0x82],  # cut off
            [0x80],
        )
    ]
    + [line(f"<{NS}m.0b?>", PARENT, TAIL).replace(b"?", b"\xfc")],
}
TRUNCATED = line(HEAD, PARENT, '"cut o', end="")
