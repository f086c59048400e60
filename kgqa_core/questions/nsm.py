"""Questions whose lines bring a subgraph each: those of NSM and GraftNet, and those of RoG.

What a line says is read in ``graph``: the graph, the subgraphs and the questions use the same lines. A question without
a topic or a known answer, or whose answers lie in no triple, is kept: it counts as not answered in every figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kgqa_core.graph.formats import require_file
from kgqa_core.graph.nsm import (
    Parse,
    QuestionLine,
    default_id,
    nsm_parser,
    parquet_rows,
    parse_line,
    rog_parser,
    row_text,
    vocabulary_files,
)
from kgqa_core.questions.formats import (
    Fault,
    Placed,
    QuestionFile,
    QuestionFormat,
    RawQuestion,
    files_by_split,
    parse_lines,
)
from kgqa_core.types import SPLITS


def _read(file: QuestionFile, parser_of: Callable[[Path], Parse]) -> Iterator[Placed]:
    """Yield the questions of a file of JSON lines, or of Parquet rows."""
    path, parse = file.path, parser_of(file.path)
    if path.suffix != ".parquet":
        return parse_lines(path, lambda line, number: _question(parse_line(line, parse), path, number))
    require_file(path, what="question file")
    rows = ((number, row, _question(parse(row), path, number)) for number, row in enumerate(parquet_rows(path), 1))
    return ((number, row_text(row) if isinstance(read, Fault) else "", read) for number, row, read in rows)


def _question(read: QuestionLine | str, path: Path, number: int) -> RawQuestion | Fault:
    if isinstance(read, str):
        return Fault(read)
    return RawQuestion(
        id=read.id or default_id(path, number),
        text=read.question,
        answers=read.answers,
        topics=read.topics,
        keep=True,
    )


NSM = QuestionFormat(
    files_by_split({split: (f"{split}.jsonl", f"{split}_simple.json", f"{split}.json") for split in SPLITS}),
    partial(_read, parser_of=nsm_parser),
    beside=vocabulary_files,
)
ROG = QuestionFormat(
    files_by_split(
        {
            "train": ("train.jsonl", "train-*.parquet", "train.parquet"),
            "dev": ("dev.jsonl", "validation.jsonl", "validation-*.parquet", "dev-*.parquet", "dev.parquet"),
            "test": ("test.jsonl", "test-*.parquet", "test.parquet"),
        }
    ),
    partial(_read, parser_of=rog_parser),
)
