"""WebQSP (Yih et al. 2016), ComplexWebQuestions (Talmor and Berant 2018) and WebQuestions (Berant et al. 2013).

Official JSON: one array (WebQSP: in the field ``Questions``); other fields than those named here are ignored. Every
question is kept, also where the file gives no topic or answer, or the graph has none of them: it counts as wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from kgqa_core.errors import InputError
from kgqa_core.questions.formats import (
    Fault,
    Placed,
    QuestionFile,
    QuestionFormat,
    RawQuestion,
    Text,
    files_by_split,
    parse_items,
    reason_of,
)

NO_TEXT = "no question text"
LOOSE = ConfigDict(coerce_numbers_to_str=True, extra="ignore")
Words = Annotated[str, Field(min_length=1)] | None

MID = re.compile(r"\bns:([mg]\.[0-9a-z_]+)")  # a constant of a SPARQL query
TYPED = re.compile(r'^"(.*)"(?:\^\^\S+|@[\w-]+)?$', re.DOTALL)  # a literal as SPARQL prints it
ZONED = re.compile(r"^(-?\d{4}(?:-\d\d){0,2})(?:Z|[+-]\d\d:\d\d)$")  # a date with a time zone, which the dump has not


@dataclass(frozen=True, config=LOOSE)
class WebQspAnswer:
    """One answer; the argument of a value (a date, a number, a text) is the value itself."""

    label: Annotated[Words, Field(validation_alias="AnswerArgument")] = None
    name: Annotated[str | None, Field(validation_alias="EntityName")] = None


@dataclass(frozen=True, config=LOOSE)
class WebQspComment:
    """What the annotator thinks of a parse."""

    quality: Annotated[str | None, Field(validation_alias="ParseQuality")] = None


@dataclass(frozen=True, config=LOOSE)
class WebQspParse:
    """One way to read a question."""

    topic: Annotated[Words, Field(validation_alias="TopicEntityMid")] = None
    chain: Annotated[list[Text] | None, Field(validation_alias="InferentialChain")] = None
    answers: Annotated[list[WebQspAnswer] | None, Field(validation_alias="Answers")] = None
    comment: Annotated[WebQspComment | None, Field(validation_alias="AnnotatorComment")] = None


@dataclass(frozen=True, config=LOOSE)
class WebQspQuestion:
    """One item of ``Questions``."""

    id: Annotated[Text, Field(validation_alias="QuestionId")]
    parses: Annotated[list[WebQspParse], Field(validation_alias="Parses")]
    raw: Annotated[str | None, Field(validation_alias="RawQuestion")] = None
    processed: Annotated[str | None, Field(validation_alias="ProcessedQuestion")] = None


@dataclass(frozen=True, config=LOOSE)
class CwqAnswer:
    """One answer; ``answer_id`` is a MID, or a value."""

    answer_id: Words = None
    answer: Words = None


@dataclass(frozen=True, config=LOOSE)
class CwqQuestion:
    """One item of a ComplexWebQuestions file."""

    id: Annotated[Text, Field(validation_alias="ID")]
    question: Text
    sparql: str | None = None
    answers: list[CwqAnswer] | None = None


WEBQSP_ITEM = TypeAdapter(WebQspQuestion)
CWQ_ITEM = TypeAdapter(CwqQuestion)


def parse_webqsp(text: str, number: int) -> RawQuestion | Fault:
    """Read one question: topics and answers are those of all its parses together, as in prior work.

    The gold chain is that of the first complete parse that has one and an answer, else of the first that has one.
    """
    try:
        read = WEBQSP_ITEM.validate_json(text)
    except ValidationError as error:
        return Fault(reason_of(error))
    asked = (read.raw or "").strip() or (read.processed or "").strip()
    if not asked:
        return Fault(NO_TEXT)
    given = [answer.label or answer.name for parse in read.parses for answer in parse.answers or ()]
    chained = [parse for parse in read.parses if parse.chain]
    good = [p for p in chained if p.answers and p.comment is not None and p.comment.quality == "Complete"]
    best = next(iter(good or chained), None)
    return RawQuestion(
        id=read.id,
        text=asked,
        answers=_distinct(value_label(answer) for answer in given if answer),
        topics=_distinct(parse.topic for parse in read.parses if parse.topic),
        chain=tuple(best.chain) if best and best.chain else None,
        keep=True,
    )


def parse_cwq(text: str, number: int) -> RawQuestion | Fault:
    """Read one question: its topics are the entities that its SPARQL query names."""
    try:
        read = CWQ_ITEM.validate_json(text)
    except ValidationError as error:
        return Fault(reason_of(error))
    given = [answer.answer_id or answer.answer for answer in read.answers or ()]
    return RawQuestion(
        id=read.id,
        text=read.question,
        answers=_distinct(value_label(answer) for answer in given if answer),
        topics=_distinct(MID.findall(read.sparql or "")),
        keep=True,
    )


def read_webqsp(file: QuestionFile) -> Iterator[Placed]:
    """Yield the questions of a WebQSP file."""
    return parse_items(file.path, parse_webqsp, key="Questions")


def read_cwq(file: QuestionFile) -> Iterator[Placed]:
    """Yield the questions of a ComplexWebQuestions file.

    Raises InputError, at its end, where none of them has an answer: there is a test file without answers.
    """
    num_read, num_answered = 0, 0
    for number, text, parsed in parse_items(file.path, parse_cwq):
        num_read += 1
        num_answered += not isinstance(parsed, RawQuestion) or bool(parsed.answers)
        yield number, text, parsed
    if num_read and not num_answered:
        raise InputError(
            f"{file.path}: none of its {num_read} questions has an answer, so nothing could be right. There is a test "
            "file without answers: use the one with them (ComplexWebQuestions_test_wans.json), or leave this one out."
        )


def value_label(value: str) -> str:
    """Return the label of an answer: a literal without quotes and datatype, a date without its time zone."""
    typed = TYPED.match(value)
    bare = typed.group(1) if typed else value
    zoned = ZONED.match(bare)
    return zoned.group(1) if zoned else bare


def _distinct(labels: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(labels))


# ------ WebQuestions: answers are names, and the topic is a key of Freebase.


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


def read_webquestions(file: QuestionFile) -> Iterator[Placed]:
    """Yield the questions of a file. Ids are those that WebQSP has for the questions: WebQTrn-0, WebQTest-0."""
    stem = "WebQTest" if file.split == "test" else "WebQTrn"

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

    return parse_items(file.path, parse)


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


WEBQSP = QuestionFormat(
    files_by_split({"train": ("WebQSP.train.json",), "dev": ("WebQSP.dev.json",), "test": ("WebQSP.test.json",)}),
    read_webqsp,
    has_variants=True,
)
CWQ = QuestionFormat(
    files_by_split(
        {
            "train": ("ComplexWebQuestions_train.json",),
            "dev": ("ComplexWebQuestions_dev.json",),
            "test": (
                "ComplexWebQuestions_test_wans.json",
                "ComplexWebQuestions_test.json",
            ),  # the first has the answers
        }
    ),
    read_cwq,
    has_variants=True,
)
WEBQUESTIONS = QuestionFormat(
    files_by_split(
        {
            "train": ("webquestions.examples.train.json",),
            "dev": ("webquestions.examples.dev.json",),
            "test": ("webquestions.examples.test.json",),
        }
    ),
    read_webquestions,
)
