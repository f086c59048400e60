"""WebQuestions (Berant et al. 2013): one JSON array; answers are names, the topic is a key of Freebase's in a URL.

    {"utterance": "…", "url": "http://www.freebase.com/view/en/ada", "targetValue": "(list (description \\"London\\"))"}

A graph seldom has the key (``/en/ada``) as a label; the topic is then the longest entity name in the text.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from kgqa_core.questions.jsonl import Text, reason_of
from kgqa_core.questions.records import Fault, Parser, RawQuestion
from kgqa_core.types import Split

BAD_TARGET = "field targetValue: not (list (description …))"
DESCRIPTION = re.compile(r'\s*\(description\s+(?:"((?:[^"\\]|\\.)*)"|([^\s()"]+))\s*\)')
ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class WebQuestion:
    """One item."""

    utterance: Text
    target: Annotated[Text, Field(validation_alias="targetValue")]
    url: str | None = None


ITEM = TypeAdapter(WebQuestion)


def webquestions_parser(split: Split | None) -> Parser:
    """Return the parser of one file's items. Ids are those that WebQSP has for the questions: WebQTrn-0, WebQTest-0."""
    stem = "WebQTest" if split == "test" else "WebQTrn"

    def parse(text: str, number: int) -> RawQuestion | Fault:
        try:
            read = ITEM.validate_json(text)
        except ValidationError as error:
            return Fault(reason_of(error))
        answers = read_descriptions(read.target)
        if answers is None:
            return Fault(BAD_TARGET)
        key = (read.url or "").partition("/view/")[2]
        return RawQuestion(
            id=f"{stem}-{number - 1}",
            text=read.utterance,
            answers=answers,
            topics=(f"/{key}",) if key else (),
            keep=True,
            link=True,
        )

    return parse


def read_descriptions(target: str) -> tuple[str, ...] | None:
    """Return the distinct names in ``(list (description "A B") (description C))``; None where it is no such list."""
    body = target.strip()
    if not body.startswith("(list") or not body.endswith(")"):
        return None
    body, at, names = body[5:-1], 0, []
    while found := DESCRIPTION.match(body, at):
        quoted, bare = found.groups()
        names.append(bare if quoted is None else ESCAPED.sub(r"\1", quoted))
        at = found.end()
    return tuple(dict.fromkeys(name for name in names if name.strip())) if not body[at:].strip() else None
