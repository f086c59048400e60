"""Reading a question file of any format, without a graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from kgqa_core.graph import rog
from kgqa_core.graph.formats import require_file
from kgqa_core.graph.nsm import NsmLine, default_id, parse_line, vocabulary_of
from kgqa_core.questions.freebase import parse_cwq_file, parse_webqsp
from kgqa_core.questions.json_items import parse_items
from kgqa_core.questions.jsonl import jsonl_parser
from kgqa_core.questions.metaqa import metaqa_parser
from kgqa_core.questions.mooc import parse_mooc_file
from kgqa_core.questions.records import Fault, Parser, RawQuestion, parse_lines
from kgqa_core.questions.wc2014 import wc2014_parser
from kgqa_core.questions.webquestions import webquestions_parser
from kgqa_core.types import Split

QuestionFormat = Literal["metaqa", "jsonl", "nsm", "wc2014", "webqsp", "cwq", "webquestions", "mooc", "rog"]
HOLDS_TRIPLES = ("nsm", "rog")  # formats whose lines bring a subgraph each

Placed = tuple[int, str, RawQuestion | Fault]  # line, or place in the file's array; its text; what it says


def read_file(
    path: Path, *, format: QuestionFormat, split: Split | None = None, hops: int | None = None
) -> Iterator[Placed]:
    """Yield all questions and unusable lines of one file.

    ``split`` goes into the ids of questions without one; ``hops`` is for MetaQA files, whose lines do not say. Raises
    InputError where the file is missing, or is no file of the format at all.
    """
    if format == "webqsp":
        return parse_items(path, parse_webqsp, key="Questions")
    if format == "cwq":
        return parse_cwq_file(path)
    if format == "webquestions":
        return parse_items(path, webquestions_parser(split))
    if format == "mooc":
        return parse_mooc_file(path, split or path.stem)
    if format == "rog" and path.suffix == ".parquet":
        return _parquet_rows(path)
    return parse_lines(path, _line_parser(path, format, split, hops))


def _line_parser(path: Path, format: QuestionFormat, split: Split | None, hops: int | None) -> Parser:
    if format == "metaqa":
        return metaqa_parser(path, split=split or "test", hops=hops)
    if format == "wc2014":
        return wc2014_parser(path.stem)
    if format == "nsm":
        vocabulary = vocabulary_of(path)
        return lambda line, number: question_of(parse_line(line, vocabulary), path, number)
    if format == "rog":
        return lambda line, number: question_of(rog.parse_line(line), path, number)
    return jsonl_parser(split or path.stem)


def _parquet_rows(path: Path) -> Iterator[Placed]:
    require_file(path, what="question file")
    for number, row in enumerate(rog.parquet_rows(path), 1):
        parsed = question_of(rog.parse_row(row), path, number)
        yield number, rog.row_text(row) if isinstance(parsed, Fault) else "", parsed


def question_of(read: NsmLine | str, path: Path, number: int) -> RawQuestion | Fault:
    """Return the question of a line with a subgraph.

    One without a topic, without a known answer, or whose answers lie in no triple is kept: it counts as not answered in
    every figure.
    """
    if isinstance(read, str):
        return Fault(read)
    return RawQuestion(
        id=read.id or default_id(path, number),
        text=read.question,
        answers=read.answers,
        topics=read.topics,
        keep=True,
    )
