"""Questions over Freebase: WebQSP (Yih et al. 2016), ComplexWebQuestions (Talmor and Berant 2018), WebQuestions (Berant
et al. 2013), and sets whose lines bring a subgraph each, as NSM and GraftNet, and RoG publish them.

Official JSON: one array (WebQSP: in the field ``Questions``); other fields than those named here are ignored. What a
line with a subgraph says is read in ``graph.nsm``: graph, subgraphs and questions use the same lines. Every question is
kept, also where the file gives no topic or answer, or the graph has none of them: it counts as wrong in every figure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import AliasPath, ConfigDict, Field
from pydantic.alias_generators import to_pascal
from pydantic.dataclasses import dataclass

from kgqa_core.graph import given, nsm
from kgqa_core.graph.input_files import require_file
from kgqa_core.profiles import MID
from kgqa_core.questions import formats
from kgqa_core.questions.formats import LOOSE, Fault, Placed, QuestionFile, QuestionFormat, RawQuestion, Text

BAD_TARGET = "field targetValue: not (list (description …))"
PASCAL = LOOSE | ConfigDict(alias_generator=to_pascal)

CONSTANT = re.compile(rf"\bns:({MID})\b")  # of a SPARQL query
TYPED = re.compile(r'^"(.*)"(?:\^\^\S+|@[\w-]+)?\n?\Z', re.DOTALL)  # a literal as SPARQL prints it
ZONED = re.compile(r"^(-?\d{4}(?:-\d\d){0,2})(?:Z|[+-]\d\d:\d\d)\n?\Z")  # a date with a zone: no dump has one
DESCRIPTION = re.compile(r'\s*\(description\s+(?:"((?:[^"\\]|\\.)*)"|([^\s()"]+))\s*\)')
DESCRIPTIONS = re.compile(rf"\s*\(list(?:{DESCRIPTION.pattern})*\s*\)\s*")


def labels_of(values: Iterable[str | None]) -> tuple[str, ...]:
    """Return the distinct labels of answers: literals without quotes and datatype, dates without their time zone."""
    bare = (TYPED.sub(r"\1", value) for value in values if value)
    return tuple(dict.fromkeys(ZONED.sub(r"\1", value) for value in bare))


# ------ WebQSP. Fields bear the names of the file in another spelling: ``AnswerArgument`` is ``answer_argument``.


@dataclass(frozen=True, config=PASCAL)
class _Answer:
    answer_argument: Text | None = None  # of a value (a date, a number, a text) the value itself
    entity_name: str | None = None


@dataclass(frozen=True, config=PASCAL)
class _Parse:
    topic_entity_mid: Text | None = None
    inferential_chain: list[Text] | None = None
    answers: list[_Answer] | None = None
    quality: str | None = Field(default=None, validation_alias=AliasPath("AnnotatorComment", "ParseQuality"))


@dataclass(frozen=True, config=PASCAL)
class _WebQspQuestion:
    question_id: Text
    parses: list[_Parse]
    raw_question: str | None = None
    processed_question: str | None = None


def make_webqsp(read: _WebQspQuestion, number: int) -> RawQuestion | Fault:
    """Return one question: topics and answers are those of all its parses together, as in prior work.

    The gold chain is that of the first complete parse that has one and an answer, else of the first that has one.
    """
    asked = (read.raw_question or "").strip() or (read.processed_question or "").strip()
    if not asked:
        return Fault(nsm.NO_QUESTION)
    chained = [parse for parse in read.parses if parse.inferential_chain]
    complete = [p for p in chained if p.answers and p.quality == "Complete"]
    chain = next((parse.inferential_chain for parse in complete or chained), None)
    return RawQuestion(
        id=read.question_id,
        text=asked,
        answers=labels_of(
            one.answer_argument or one.entity_name for parse in read.parses for one in parse.answers or ()
        ),
        topics=tuple(dict.fromkeys(parse.topic_entity_mid for parse in read.parses if parse.topic_entity_mid)),
        chain=tuple(chain) if chain else None,
        keep=True,
    )


# ------ ComplexWebQuestions.


@dataclass(frozen=True, config=LOOSE)
class _CwqAnswer:
    answer_id: Text | None = None  # a MID, or a value
    answer: Text | None = None


@dataclass(frozen=True, config=LOOSE)
class _CwqQuestion:
    id: Annotated[Text, Field(validation_alias="ID")]
    question: Text
    sparql: str | None = None
    answers: list[_CwqAnswer] | None = None


def make_cwq(read: _CwqQuestion, number: int) -> RawQuestion:
    """Return one question: its topics are the entities that its SPARQL query names."""
    return RawQuestion(
        id=read.id,
        text=read.question,
        answers=labels_of(answer.answer_id or answer.answer for answer in read.answers or ()),
        topics=tuple(dict.fromkeys(CONSTANT.findall(read.sparql or ""))),
        keep=True,
    )


# ------ WebQuestions: answers are names, and the topic is a key of Freebase.


@dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class _WebQuestion:
    utterance: Text
    target: Annotated[Text, Field(validation_alias="targetValue")]
    url: str | None = None


def read_webquestions(file: QuestionFile) -> Iterator[Placed]:
    """Yield the questions of a file. Ids are those that WebQSP has for the questions: WebQTrn-0, WebQTest-0."""
    stem = "WebQTest" if file.split == "test" else "WebQTrn"

    def make(read: _WebQuestion, number: int) -> RawQuestion | Fault:
        answers = read_descriptions(read.target)
        if answers is None:
            return Fault(BAD_TARGET)
        key = (read.url or "").partition("/view/")[2]
        topics = (f"/{key}",) if key else ()
        return RawQuestion(f"{stem}-{number - 1}", read.utterance, answers, topics, keep=True, link=True)

    return formats.parse_items(file.path, formats.parser_of(_WebQuestion, make))


def read_descriptions(target: str) -> tuple[str, ...] | None:
    """Return the distinct names in ``(list (description "A B") (description C))``; None where it is no such list."""
    if not DESCRIPTIONS.fullmatch(target):
        return None
    names = (bare or re.sub(r"\\(.)", r"\1", quoted) for quoted, bare in DESCRIPTION.findall(target))
    return tuple(dict.fromkeys(name for name in names if name.strip()))


# ------ Lines that bring a subgraph, or paths: NSM and GraftNet, RoG, what another system retrieved.


def read_subgraph_lines(file: QuestionFile, line_parser: Callable[[Path], nsm.Parse]) -> Iterator[Placed]:
    """Yield the questions of a file of JSON lines, or of Parquet rows."""
    path, parse = file.path, line_parser(file.path)

    def question(read: nsm.QuestionLine | str, number: int) -> RawQuestion | Fault:
        if isinstance(read, str):
            return Fault(read)
        return RawQuestion(read.id or f"{file.stem}-{number}", read.question, read.answers, read.topics, keep=True)

    if path.suffix != ".parquet":
        return formats.parse_lines(path, lambda line, number: question(nsm.parse_line(line, parse), number))
    require_file(path, what="question file")
    rows = ((number, row, question(parse(row), number)) for number, row in enumerate(nsm.parquet_rows(path), 1))
    return ((number, nsm.row_text(row) if isinstance(read, Fault) else "", read) for number, row, read in rows)


WEBQSP = QuestionFormat(
    formats.files_by_split("WebQSP.{split}.json"),
    lambda file: formats.parse_items(file.path, formats.parser_of(_WebQspQuestion, make_webqsp), key="Questions"),
    has_variants=True,
)
CWQ = QuestionFormat(
    formats.files_by_split("ComplexWebQuestions_{split}_wans.json", "ComplexWebQuestions_{split}.json"),
    lambda file: formats.require_answers(  # there is a test file without
        formats.parse_items(file.path, formats.parser_of(_CwqQuestion, make_cwq)),
        file.path,
        "use ComplexWebQuestions_test_wans.json in place of ComplexWebQuestions_test.json",
    ),
    has_variants=True,
)
WEBQUESTIONS = QuestionFormat(formats.files_by_split("webquestions.examples.{split}.json"), read_webquestions)
NSM = QuestionFormat(
    formats.files_by_split("{split}.jsonl", "{split}_simple.json", "{split}.json"),
    partial(read_subgraph_lines, line_parser=nsm.FORMAT.parser_of),
    beside=nsm.vocabulary_files,
)
ROG = QuestionFormat(
    formats.files_by_split("{split}.jsonl", "{split}-*.parquet", "{split}.parquet", dev=("dev", "validation")),
    partial(read_subgraph_lines, line_parser=nsm.ROG.parser_of),
)
PATHS = QuestionFormat(
    formats.files_by_split("{split}.jsonl"), partial(read_subgraph_lines, line_parser=given.FORMAT.parser_of)
)
