"""Lines that no reader of N-Triples may take, and some that it must although they look odd."""

from __future__ import annotations

from benchmarks.freebase.lines import NS

S, P, O = f"<{NS}m.0bad1>", f"<{NS}people.person.parents>", f"<{NS}m.0bad2>"  # noqa: E741 the letters of the form

# kind -> the line without its line feed
MALFORMED: dict[str, bytes] = {
    kind: line if isinstance(line, bytes) else line.encode()
    for kind, line in {
        "no dot at the end": f"{S}\t{P}\t{O}",
        "no object": f"{S}\t{P}\t.",
        "four terms": f"{S}\t{P}\t{O}\t{O}\t.",
        "text after the dot": f"{S}\t{P}\t{O}\t.\t{O}",
        "open IRI": f"<{NS}m.0bad1\t{P}\t{O}\t.",
        "blank in an IRI": f"<{NS}m.0 bad1>\t{P}\t{O}\t.",
        "no IRI as subject": f"m.0bad1\t{P}\t{O}\t.",
        "literal as subject": f'"m.0bad1"\t{P}\t{O}\t.',
        "literal as relation": f'{S}\t"parents"\t{O}\t.',
        "open literal": f'{S}\t{P}\t"no end\t.',
        "quotation mark inside": f'{S}\t{P}\t"one" two"\t.',
        "unknown escape": f'{S}\t{P}\t"a\\qb"\t.',
        "short escape": f'{S}\t{P}\t"a\\u00G9b"\t.',
        "empty language": f'{S}\t{P}\t"word"@\t.',
        "datatype without brackets": f'{S}\t{P}\t"1964"^^xsd:gYear\t.',
        "no UTF-8": f'{S}\t{P}\t"caf'.encode() + b'\xe9"@fr\t.',
        "cut short": f"{S}\t<{NS}people.per",
    }.items()
}

# kind -> a line that holds a triple, or nothing at all; not in the form that the dump has
ODD: dict[str, bytes] = {
    "blank line": b"",
    "blanks only": b" \t ",
    "blanks for tabs": f"{S} {P} {O} .".encode(),
    "no blank before the dot": f"{S}\t{P}\t{O}.".encode(),
    "two tabs": f"{S}\t\t{P}\t{O}\t.".encode(),
    "comment after the dot": f"{S}\t{P}\t{O}\t. # so it is".encode(),
    "comment": b"# nothing here",
}
