"""Questions whose lines bring a subgraph each: those of NSM and GraftNet, and those of RoG.

What a line says is read in ``graph``: the graph, the subgraphs and the questions use the same lines. A question without
a topic or a known answer, or whose answers lie in no triple, is kept: it counts as not answered in every figure.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kgqa_core.graph import rog
from kgqa_core.graph.formats import require_file
from kgqa_core.graph.nsm import NsmLine, default_id, parse_line, vocabulary_files, vocabulary_of
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


def read_nsm(file: QuestionFile) -> Iterator[Placed]:
    """Yield the questions of a file; ``entities.txt`` and ``relations.txt`` beside it say what its numbers mean."""
    vocabulary = vocabulary_of(file.path)
    return parse_lines(file.path, lambda line, number: _question(parse_line(line, vocabulary), file.path, number))


def read_rog(file: QuestionFile) -> Iterator[Placed]:
    """Yield the questions of a file of JSON lines, or of Parquet rows."""
    path = file.path
    if path.suffix != ".parquet":
        return parse_lines(path, lambda line, number: _question(rog.parse_line(line), path, number))
    return _parquet_rows(path)


def _parquet_rows(path: Path) -> Iterator[Placed]:
    require_file(path, what="question file")
    for number, row in enumerate(rog.parquet_rows(path), 1):
        parsed = _question(rog.parse_row(row), path, number)
        yield number, rog.row_text(row) if isinstance(parsed, Fault) else "", parsed


def _question(read: NsmLine | str, path: Path, number: int) -> RawQuestion | Fault:
    if isinstance(read, str):
        return Fault(read)
    return RawQuestion(
        id=read.id or default_id(path, number),
        text=read.question,
        answers=read.answers,
        topics=read.topics,
        keep=True,
    )


FORMAT = QuestionFormat(
    files_by_split({split: (f"{split}.jsonl", f"{split}_simple.json", f"{split}.json") for split in SPLITS}),
    read_nsm,
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
    read_rog,
)
