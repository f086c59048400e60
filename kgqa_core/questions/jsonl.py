"""Own questions, one JSON object per line; the fields are listed in docs/own-data.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from kgqa_core.errors import InputError, nearest
from kgqa_core.graph.formats import NOT_AN_OBJECT, NOT_JSON
from kgqa_core.questions.records import Fault, Parser, RawQuestion
from kgqa_core.types import SPLITS, Split

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
