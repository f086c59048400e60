"""RDF in other syntaxes than N-Triples, rewritten as N-Triples by pyoxigraph: Turtle, TriG and RDF/XML.

Triples of all named graphs count alike. A blank node belongs to its file: behind its name, or ``_:unnamed-7`` for the
seventh without one, stands a checksum of the file's name. A fault leaves open what follows, so it is an error.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyoxigraph as ox

from kgqa_core.errors import InputError, shorten
from kgqa_core.graph.input_files import BYTE_ORDER_MARK

SYNTAXES = {
    ".ttl": ox.RdfFormat.TURTLE,
    ".trig": ox.RdfFormat.TRIG,
    **dict.fromkeys((".rdf", ".owl", ".xml"), ox.RdfFormat.RDF_XML),
}
MADE = re.compile(r"_:[0-9a-f]{16,32}")  # what pyoxigraph calls a blank node without a name: at random


class Rewritten:
    """The triples of an open file as a stream of N-Triples."""

    def __init__(self, file: IO[bytes], path: Path, suffix: str) -> None:
        self._lines, self._left = _rewrite(file, path, SYNTAXES[suffix]), bytearray()

    def read(self, size: int) -> bytes:
        """Return so many bytes; fewer at the end. Raises InputError, with the place, where the file has a fault."""
        while len(self._left) < size and (line := next(self._lines, b"")):
            self._left += line
        text = bytes(self._left[:size])
        del self._left[:size]
        return text


def _rewrite(file: IO[bytes], path: Path, form: ox.RdfFormat) -> Iterator[bytes]:
    made: dict[str, int] = {}
    own = f"{zlib.crc32(path.name.encode()):08x}"

    def written(node: object) -> str:
        text = str(node)
        if not isinstance(node, ox.BlankNode):
            return text
        return f"_:unnamed-{made.setdefault(text, len(made) + 1)}-{own}" if MADE.fullmatch(text) else f"{text}-{own}"

    if file.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
        file.seek(0)
    try:
        for quad in ox.parse(file, format=form, base_iri="file:///"):
            yield f"{written(quad.subject)} {quad.predicate} {written(quad.object)} .\n".encode()
    except SyntaxError as error:
        place = f":{error.lineno}" if error.lineno else ""
        raise InputError(
            f"{path}{place}: not {form.name} ({shorten(error.msg)}). Mend the file: what follows cannot be told."
        ) from error
