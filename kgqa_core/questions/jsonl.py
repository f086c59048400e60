"""Own questions, one JSON object per line; docs/own-data.md lists the fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from kgqa_core.questions.formats import (
    Fault,
    Placed,
    QuestionFile,
    QuestionFormat,
    RawQuestion,
    Text,
    files_by_split,
    parse_lines,
    read_object,
)


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


def read_jsonl(file: QuestionFile) -> Iterator[Placed]:
    """Yield the questions of a file; a line without an id is called ``<split or file>-<line number>``."""

    def parse(line: str, number: int) -> RawQuestion | Fault:
        read = read_object(LINE, line)
        if isinstance(read, Fault):
            return read
        if (read.claim is None) != (read.verdict is None):
            return Fault("claim and verdict belong together")
        if not read.answers and read.claim is None:
            return Fault("no answers given")
        return RawQuestion(
            id=read.id or f"{file.split or file.path.stem}-{number}",
            text=read.question,
            answers=tuple(read.answers),
            topics=tuple(read.topics),
            hops=read.hops or (len(read.chain) if read.chain else None),
            chain=tuple(read.chain) if read.chain else None,
            claim=read.claim,
            verdict=read.verdict,
        )

    return parse_lines(file.path, parse)


FORMAT = QuestionFormat(files_by_split("{split}.jsonl"), read_jsonl)
