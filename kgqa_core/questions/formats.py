"""What a question format is, and reading the files of any; ``config_base.QUESTION_FORMATS`` lists the formats.

A format says which files of a folder are its own, and how to read one. Linking, splits and lint are those of all.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from kgqa_core.config_base import QUESTION_FORMATS, QuestionSection, open_entry
from kgqa_core.errors import ConfigError, InputError, nearest_beside, shorten
from kgqa_core.graph.formats import MARK_INSIDE, NOT_AN_OBJECT, NOT_JSON, WRONG_FIELDS
from kgqa_core.graph.input_files import BYTE_ORDER_MARK, NOT_UTF8, TRUNCATED, read_text, require_file, require_text
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import EVERY_SPLIT, SPLITS, Question, Reject, Span, Split

Text = Annotated[str, Field(min_length=1)]
LOOSE = ConfigDict(coerce_numbers_to_str=True, extra="ignore")
Parsed = TypeVar("Parsed")
KEY_TWICE = "a key twice in one object"
TABLE_OR_LIST = re.compile(r"(?i)\s*(\[\s*({|$)|{\s*(\w+\s*:\s*\[\s*{.*]\s*}\s*)?$|(\w+[,;\t])*question[,;\t]\w)")
MADE = "made, not asked: only for train and dev"


@dataclass(frozen=True, slots=True)
class RawQuestion:
    """One parsed line. Entities are still labels or names."""

    id: str
    text: str  # markup removed
    answers: tuple[str, ...]
    topics: tuple[str, ...]  # empty: to be linked by name
    mentions: tuple[Span, ...] = ()  # where the file itself marks the topics in ``text``
    hops: int | None = None
    chain: tuple[str, ...] | None = None  # relation labels, "~label" walks it backwards
    claim: str | None = None
    verdict: bool | None = None
    keep: bool = False  # also where graph or file lack its topics or answers: it is asked, and counts as wrong
    link: bool = False  # where the graph has none of ``topics``: by the longest name in the text, as without topics


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a line is rejected."""

    reason: str  # a short, fixed phrase
    unknown: str = ""  # the name that the graph does not know, where that is why


Placed = tuple[int, str, RawQuestion | Fault]  # line, or place in the file's array; its text; what it says
Parser = Callable[[str, int], RawQuestion | Fault]  # (text of a line or item, its number) -> what it says


@dataclass(slots=True)
class Loaded:
    """The outcome of one or more question files."""

    questions: list[Question] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    unknown: dict[tuple[str, int], str] = field(default_factory=dict)  # (file, line) of a reject -> the unknown name
    missing: list[tuple[str, str, str]] = field(default_factory=list)  # as in schemas.MISSING
    # What decides the split where a file has none: by text, and by the id of each question with that text.
    key_of_text: dict[str, str] = field(default_factory=dict)
    split_keys: dict[str, str] = field(default_factory=dict)
    notes: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # (kind, split) -> one example per case

    def reject(self, reject: Reject, *, unknown: str = "") -> None:
        """Keep a line that is not used, and the name in it that the graph does not know."""
        self.rejects.append(reject)
        if unknown:
            self.unknown[reject.file, reject.line] = unknown
            self.note("unknown_entity", "", f"{reject.file}:{reject.line}: {unknown}")

    def note(self, kind: str, split: str, example: str) -> None:
        """Count something doubtful about a line that is used."""
        self.notes.setdefault((kind, split), []).append(example)


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """One file, and what its place says about the questions in it."""

    path: Path
    split: Split | None = None  # None: its questions are split by hash
    hops: int | None = None  # None: the lines say it, or nobody does
    shares_name: bool = False  # has the file of another split the same name, whatever its suffix?

    @property
    def stem(self) -> str:
        """What ids by its file begin with: its name without a suffix, behind the split where another shares it."""
        return f"{self.split}-{self.path.stem}" if self.shares_name else self.path.stem

    @property
    def shown(self) -> str:
        """What its rejects call it."""
        folder = self.split if self.shares_name else None if self.hops is None else f"{self.hops}-hop"
        return f"{folder}/{self.path.name}" if folder else self.path.name


Reader = Callable[[QuestionFile], Iterator[Placed]]  # InputError: the file is missing, or none of the format


@dataclass(frozen=True, slots=True)
class QuestionFormat:
    """How the questions of one kind of dataset are found and read."""

    # (folder or file, wanted hops or None) -> files in reading order; InputError where there is none
    list_files: Callable[[Path, Sequence[int] | None], list[QuestionFile]]
    read: Reader
    beside: Callable[[Path], list[Path]] = lambda path: []  # further files that say what is in a question file
    finish: Callable[[Loaded, KnowledgeGraph, bool], None] | None = None  # mends all that was loaded; reenter_topic
    has_hops: bool = False  # files or folders go by number of hops: dataset.questions.hops chooses
    has_variants: bool = False  # papers use other splits than the files: dataset.questions.variant


def open_format(name: str) -> QuestionFormat:
    """Return the format of a name in ``config_base.QUESTION_FORMATS``; ConfigError where there is none."""
    found: QuestionFormat = open_entry(QUESTION_FORMATS, name, what="question format")
    return found


def list_files(section: QuestionSection) -> list[QuestionFile]:
    """Return the question files in the order in which they are read. Raises InputError where there is none."""
    if section.files is not None:
        hops = section.hops[0] if section.hops else None
        names = Counter(path.stem for path in section.files.values())
        given = [(section.files[split], split) for split in EVERY_SPLIT if split in section.files]
        return [QuestionFile(path, split, hops, names[path.stem] > 1) for path, split in given]
    assert section.path is not None  # QuestionSection checks it
    return open_format(section.format).list_files(section.path, section.hops)


def question_files(section: QuestionSection) -> dict[str, Path]:
    """Return every file that the questions depend on, by a name that is free of this machine.

    A name holds the file's own name, which goes into question ids, but no folder above the dataset's. Raises
    ConfigError where a folder has no question files.
    """
    beside, folder = open_format(section.format).beside, section.path
    if section.files is not None:
        named = {f"questions/{split}/{path.name}": path for split, path in section.files.items()}
    elif folder is not None and folder.is_dir():
        try:
            found = [file.path for file in list_files(section)]
        except InputError as error:
            raise ConfigError(f"dataset.questions.path: {error}") from error
        more = [path for file in found for path in beside(file) if path.is_relative_to(folder)]
        named = {f"questions/{path.relative_to(folder).as_posix()}": path for path in sorted({*found, *more})}
    else:
        assert folder is not None
        named = {f"questions/{folder.name}": folder}
    extra = {f"{name} {path.name}": path for name, file in named.items() for path in beside(file)}
    return named | {name: path for name, path in extra.items() if path not in named.values()}


def files_by_split(*patterns: str, dev: Sequence[str] = ("dev",)) -> Callable[..., list[QuestionFile]]:
    """Return a ``QuestionFormat.list_files`` for folders with a file per split, or one file without splits.

    ``patterns`` are file names with ``{split}``, by whose names in ``dev`` the dev split is called. The first that is
    there counts, in the folder or in its folder ``data``; a packed one, which readers refuse, where no other is there.
    """

    def find(path: Path, hops: Sequence[int] | None = None) -> list[QuestionFile]:
        if path.is_file():
            return [QuestionFile(path)]
        found = []
        for split in SPLITS:
            called = dev if split == "dev" else (split,)
            names = [pattern.format(split=name) for pattern in patterns for name in called]
            packed = [f"{name}{suffix}" for suffix in (".gz", ".bz2", ".xz", ".zst", ".zip") for name in names]
            places = [(at, name) for some in (names, packed) for at in (path, path / "data") for name in some]
            matches = (sorted(at.glob(name)) for at, name in places)
            found += [QuestionFile(file, split) for file in next((files for files in matches if files), [])]
        if not found:
            names = [patterns[0].format(split=split) for split in SPLITS]
            hint = nearest_beside(path / names[0] if path.is_dir() else path)
            raise InputError(f"questions: {path} is neither a file nor a folder with {', '.join(names)}{hint}")
        return found

    return find


# ------ Reading a file: line by line, or one large JSON array.


def parse_lines(path: Path, parse: Callable[[str, int], Parsed | Fault]) -> Iterator[tuple[int, str, Parsed | Fault]]:
    """Yield (line number, line, what it says) for each line of a question file that is not blank.

    Raises InputError where the file is missing, packed, or in UTF-16.
    """
    try:
        file = path.open("rb")  # or a pipe
    except OSError:
        require_file(path, what="question file")
        raise
    with file:
        for number, raw in enumerate(file, 1):
            bare = (raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw).removesuffix(b"\n").removesuffix(b"\r")
            line = bare.decode("utf-8", errors="replace")
            if number == 1 and ("\0" in line or "\ufffd" in line):
                require_text(raw, path)
            if line.encode() != bare:
                yield number, line, Fault(NOT_UTF8)
            elif line.startswith("\ufeff"):
                yield number, line, Fault(MARK_INSIDE)
            elif line.strip():
                parsed = parse(line, number)
                unfinished = isinstance(parsed, Fault) and parsed.reason in (NOT_JSON, WRONG_FIELDS)
                yield number, line, Fault(TRUNCATED) if unfinished and not raw.endswith(b"\n") else parsed


def read_object(adapter: TypeAdapter[Parsed], text: str) -> Parsed | Fault:
    """Return what a JSON text holds, or the first thing that is wrong with it; places in lists are left out."""
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return Fault(NOT_JSON)
    names = [str(part) for part in first["loc"] if isinstance(part, str)]
    return Fault(f"field {'.'.join(names)}: {first['msg']}" if names else NOT_AN_OBJECT)


def parser_of(model: type[Parsed], make: Callable[[Parsed, int], RawQuestion | Fault]) -> Parser:
    """Return what reads a JSON text as a ``model``, and makes a question of it and its number."""
    adapter = TypeAdapter(model)

    def parse(text: str, number: int) -> RawQuestion | Fault:
        read = read_object(adapter, text)
        if isinstance(read, JsonQuestion):
            twice, floats = list[bool](), list[str]()
            json.loads(text, object_pairs_hook=lambda p: twice.append(len(dict(p)) < len(p)), parse_float=floats.append)
            if any(twice):  # readers take the last of equal keys, and who wrote the line may mean the first
                return Fault(KEY_TWICE)
            if floats:  # else 1837.0 would be called 1837, which may be another entity
                read = read_object(adapter, json.dumps(json.loads(text, parse_float=str)))
        if isinstance(read, JsonQuestion) and read.topic:
            if read.topics:
                return Fault("topic and topics are both given")
            read = replace(read, topics=[read.topic])
        return read if isinstance(read, Fault) else make(read, number)

    return parse


def parse_items(path: Path, parse: Parser, *, key: str | None = None) -> Iterator[Placed]:
    """Yield (place in the array, from 1 on; its text; what it says) for each question of a JSON file.

    ``key``: the field of the file's object that holds the array; None: the file is the array. Raises InputError where
    the file is missing, or is no such JSON, with the line and character where it stops being.
    """
    require_file(path, what="question file")
    try:
        for number, item in enumerate(_json_items(read_text(path), key), 1):
            yield number, item, parse(item, number)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}, line {error.lineno}, character {error.colno}: not the expected JSON ({shorten(error.msg)}). "
            "Was the file copied whole, and is dataset.questions.format the right one?"
        ) from error


def require_answers(placed: Iterator[Placed], path: Path, cure: str) -> Iterator[Placed]:
    """Yield what a file says. Raises InputError, at its end, where none of its questions has an answer."""
    num_read = num_answered = 0
    for one in placed:
        num_read += 1
        num_answered += isinstance(one[2], Fault) or bool(one[2].answers)
        yield one
    if num_read and not num_answered:
        raise InputError(f"{path}: no question in it has an answer, so nothing could be right: {cure}")


def _json_items(text: str, key: str | None) -> Iterator[str]:
    """Yield the text of each item. The items are not kept as objects: official files are arrays of up to 100 MB."""
    decode = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode  # Python reads no int of 4,301 digits
    blanks, at = re.compile(r"[ \t\n\r]*"), 0

    def peek() -> str:
        nonlocal at
        at = blanks.match(text, at).end()  # type: ignore[union-attr] # it matches nothing, too
        return text[at : at + 1]

    def step_over(character: str, else_say: str = "") -> None:
        nonlocal at
        if peek() != character:
            found = f"{peek()!r} found" if peek() else "the file ends too early"
            raise json.JSONDecodeError(else_say or f"{character!r} expected, {found}", text, at)
        at += 1

    def value() -> str:
        nonlocal at
        peek()
        start = at
        try:
            _, at = decode(text, start)
        except RecursionError:
            raise json.JSONDecodeError("nested too deeply", text, start) from None
        return text[start:at]

    if key is not None:
        missing = f"no field {key!r}: is this the right file?"
        step_over("{", missing)
        while value() != json.dumps(key):
            step_over(":")
            value()
            step_over(",", missing)
        step_over(":")
    step_over("[", "no list")
    more = peek() != "]"
    while more:
        yield value()
        if more := peek() == ",":
            step_over(",")
    step_over("]")
    while key is not None and peek() == ",":
        step_over(",")
        value()
        step_over(":")
        value()
    if key is not None:
        step_over("}")
    if peek():
        raise json.JSONDecodeError("something follows the end of the JSON", text, at)


# ------ Own questions, one JSON object per line; docs/own-data.md lists the fields.


@pydantic_dataclass(frozen=True, config=LOOSE)
class JsonQuestion:
    """One line; null is as if left out. Unknown keys are ignored: people keep notes in such files."""

    question: Annotated[str, Field(min_length=1, pattern=r"\S")]
    answers: list[Text] | None = None  # labels or names
    topics: list[Text] | None = None  # labels or names; none: linked by name
    topic: Text | None = None  # the same, of one; ``parser_of`` makes it that list
    id: Text | None = None
    hops: Annotated[int, Field(ge=1, le=99)] | None = None
    chain: list[Text] | None = None  # relation labels, "~label" walks it backwards
    claim: Text | None = None
    verdict: bool | None = None
    made: bool | None = None  # by kgqa make-questions


def read_jsonl(file: QuestionFile) -> Iterator[Placed]:
    """Yield the questions of a file; a line without an id is called ``<split or file>-<line number>``."""

    def make(read: JsonQuestion, number: int) -> RawQuestion | Fault:
        if (read.claim is None) != (read.verdict is None):
            return Fault("claim and verdict belong together")
        if not read.answers and read.claim is None:
            return Fault("no answers given")
        if read.made and file.split not in ("train", "dev"):
            return Fault(MADE)
        return RawQuestion(
            id=read.id or f"{file.split or file.path.stem}-{number}",
            text=read.question,
            answers=tuple(read.answers or ()),
            topics=tuple(read.topics or ()),
            hops=read.hops or (len(read.chain) if read.chain else None),
            chain=tuple(read.chain) if read.chain else None,
            claim=read.claim,
            verdict=read.verdict,
        )

    return parse_lines(file.path, parser_of(JsonQuestion, make))


def read_asked(file: QuestionFile) -> Iterator[Placed]:
    """Yield what people ask: a question per line, as text or as a JSON object like that of ``JsonQuestion``.

    Golds are left aside. Ids that lack are ``<file>-<line number>``. InputError: line 1 is ``id,question`` or ``[{``.
    """

    def make(read: JsonQuestion, number: int) -> RawQuestion:
        id = read.id or f"{file.path.stem}-{number}"
        return RawQuestion(id, read.question, (), tuple(read.topics or ()), claim=read.claim)

    parse_json = parser_of(JsonQuestion, make)

    def parse(line: str, number: int) -> RawQuestion | Fault:
        if number == 1 and TABLE_OR_LIST.match(line.replace('"', "")):
            raise InputError(f"{file.path} is a table or a JSON list. Put a question, or an object, on each line")
        text = line.strip()
        return parse_json(text, number) if text[:1] == "{" else make(JsonQuestion(question=text), number)

    return parse_lines(file.path, parse)


JSONL = QuestionFormat(files_by_split("{split}.jsonl", dev=("dev", "valid", "validation", "val")), read_jsonl)
