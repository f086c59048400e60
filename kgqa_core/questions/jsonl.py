"""The items of one large JSON array, one at a time: official question files are single arrays of up to 100 MB."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn, TextIO

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from kgqa_core.errors import InputError, nearest, shorten
from kgqa_core.graph.formats import NOT_AN_OBJECT, NOT_JSON, require_file
from kgqa_core.questions.records import Fault, Parser, RawQuestion
from kgqa_core.types import SPLITS, Split

BLOCK = 2**20  # characters read at once
BLANK = re.compile(r"[ \t\n\r]*")


def parse_items(path: Path, parse: Parser, *, key: str | None = None) -> Iterator[tuple[int, str, RawQuestion | Fault]]:
    """Yield (place in the array, from 1 on; its text; what it says) for each question of a file.

    ``key``: the field of the file's object that holds the array; None: the file is the array. Raises InputError where
    the file is missing, or is no such JSON, with the line and character where it stops being.
    """
    for number, text in json_items(path, key=key):
        yield number, text, parse(text, number)


def json_items(path: Path, *, key: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield (place, text) of each item; memory holds one block and one item. See ``parse_items``."""
    require_file(path, what="question file")
    with path.open(encoding="utf-8-sig", newline="") as file:
        cursor = _Cursor(file, path)
        if key is not None:
            cursor.expect("{")
            while cursor.key() != key:
                cursor.value()
                if not cursor.takes(","):
                    cursor.fail(f"no field {key!r}: is this the right file?")
        yield from _array(cursor)
        while key is not None and cursor.takes(","):
            cursor.key()
            cursor.value()
        if key is not None:
            cursor.expect("}")
        if cursor.peek():
            cursor.fail("something follows the end of the JSON")


def _array(cursor: _Cursor) -> Iterator[tuple[int, str]]:
    cursor.expect("[")
    if cursor.takes("]"):
        return
    number = 1
    yield number, cursor.value()
    while cursor.takes(","):
        number += 1
        yield number, cursor.value()
    cursor.expect("]")


class _Cursor:
    """A place in a JSON text that is read block by block."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self._file, self._path = file, path
        self._text, self._at = "", 0
        self._line, self._character = 1, 1  # of the first character of ``_text``
        self._decoder = json.JSONDecoder()

    def peek(self) -> str:
        """Return the next character that is not blank, "" at the end of the file."""
        while True:
            self._at = _end_of_blanks(self._text, self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_on():
                return ""

    def takes(self, character: str) -> bool:
        """Step over ``character`` if it is next."""
        found = self.peek() == character
        self._at += found
        return found

    def expect(self, character: str) -> None:
        """Step over ``character``; InputError where another one is next."""
        if not self.takes(character):
            self.fail(f"{character!r} expected, {self.peek()!r} found" if self.peek() else "the file ends too early")

    def key(self) -> str:
        """Step over the key of a field and its colon, and return it."""
        name: str = json.loads(self.value()) if self.peek() == '"' else self.fail("a field name expected")
        self.expect(":")
        return name

    def value(self) -> str:
        """Step over one value and return its text."""
        self.peek()
        while True:
            try:
                _, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._read_on():
                    self._at = min(error.pos, len(self._text))
                    self.fail(error.msg)
                continue
            except RecursionError:
                self.fail("nested too deeply")
            if end < len(self._text) or not self._read_on():  # at the end of a block a number might go on
                text = self._text[self._at : end]
                self._at = end
                return text

    def fail(self, reason: str) -> NoReturn:
        """Raise InputError with the place."""
        line, character = self._place(self._at)
        raise InputError(
            f"{self._path}, line {line}, character {character}: not the expected JSON ({shorten(reason)}). "
            "Was the file copied whole, and is dataset.questions.format the right one?"
        )

    def _place(self, at: int) -> tuple[int, int]:
        before = self._text[:at]
        lines = before.count("\n")
        start = self._character if not lines else 1
        return self._line + lines, start + at - (before.rfind("\n") + 1)

    def _read_on(self) -> bool:
        """Drop what was stepped over and read another block; False at the end of the file."""
        try:
            more = self._file.read(BLOCK)
        except UnicodeDecodeError as error:
            line, _ = self._place(len(self._text))
            raise InputError(f"{self._path}: not UTF-8 after line {line} ({shorten(str(error))})") from error
        if not more:
            return False
        self._line, self._character = self._place(self._at)
        self._text, self._at = self._text[self._at :] + more, 0
        return True


def _end_of_blanks(text: str, at: int) -> int:
    found = BLANK.match(text, at)
    return found.end() if found else at


# ------ Own questions, one JSON object per line; the fields are listed in docs/own-data.md.


Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, config=ConfigDict(coerce_numbers_to_str=True, extra="ignore"))
class JsonQuestion:
    """One line. Unknown keys are ignored: people keep notes in such files."""

    question: Text
    answers: list[Text] = Field(default_factory=list)  # labels or names
    topics: list[Text] = Field(default_factory=list)  # labels or names; empty: linked by name
    id: Text | None = None
    hops: Annotated[int, Field(ge=1)] | None = None
    chain: list[Text] | None = None  # relation labels, "~label" walks it backwards
    claim: Text | None = None
    verdict: bool | None = None


LINE = TypeAdapter(JsonQuestion)


def jsonl_parser(stem: str) -> Parser:
    """Return the line parser; a line without an id becomes ``<stem>-<line number>``."""

    def parse(line: str, number: int) -> RawQuestion | Fault:
        try:
            read = LINE.validate_json(line)
        except ValidationError as error:
            return Fault(reason_of(error))
        if (read.claim is None) != (read.verdict is None):
            return Fault("claim and verdict belong together")
        if not read.answers and read.claim is None:
            return Fault("no answers given")
        return RawQuestion(
            id=read.id or f"{stem}-{number}",
            text=read.question,
            answers=tuple(read.answers),
            topics=tuple(read.topics),
            hops=read.hops or (len(read.chain) if read.chain else None),
            chain=tuple(read.chain) if read.chain else None,
            claim=read.claim,
            verdict=read.verdict,
        )

    return parse


def reason_of(error: ValidationError) -> str:
    """Return the first thing that is wrong with an object; the field by name, without places in lists."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return NOT_JSON
    names = [str(part) for part in first["loc"] if isinstance(part, str)]
    return f"field {'.'.join(names)}: {first['msg']}" if names else NOT_AN_OBJECT


def jsonl_files(path: Path) -> list[tuple[Path, Split | None]]:
    """Return the files of ``path``: a folder with train, dev and test.jsonl (at least one), or one file to be split.

    Raises InputError where there is none.
    """
    if path.is_file():
        return [(path, None)]
    found: list[tuple[Path, Split | None]] = [
        (path / f"{split}.jsonl", split) for split in SPLITS if (path / f"{split}.jsonl").is_file()
    ]
    if not found:
        folder = path if path.is_dir() else path.parent
        beside = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        near = nearest("train.jsonl" if path.is_dir() else path.name, beside)
        hint = f" Nearest there: {near[0]}." if near else ""
        raise InputError(
            f"questions: {path} is neither a JSONL file nor a folder with train.jsonl, dev.jsonl or test.jsonl.{hint}"
        )
    return found
