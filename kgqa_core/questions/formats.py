"""Reading a question file of any format, without a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kgqa_core.errors import InputError, nearest
from kgqa_core.graph import rog
from kgqa_core.graph.formats import require_file
from kgqa_core.graph.nsm import NsmLine, default_id, parse_line, vocabulary_of
from kgqa_core.questions.jsonl import jsonl_files, jsonl_parser, parse_items
from kgqa_core.questions.metaqa import metaqa_files, metaqa_parser
from kgqa_core.questions.mooc import parse_mooc_file
from kgqa_core.questions.records import Fault, Parser, RawQuestion, parse_lines
from kgqa_core.questions.wc2014 import wc2014_files, wc2014_parser
from kgqa_core.questions.webqsp import parse_cwq_file, parse_webqsp, webquestions_parser
from kgqa_core.types import SPLITS, Split

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


# ------ Where questions come from: the files of each format, by split.


Variant = Literal["official", "etd", "rog"]

SPLIT_FILES: dict[QuestionFormat, dict[Split, tuple[str, ...]]] = {
    "nsm": {split: (f"{split}.jsonl", f"{split}_simple.json", f"{split}.json") for split in SPLITS},
    "webqsp": {"train": ("WebQSP.train.json",), "dev": ("WebQSP.dev.json",), "test": ("WebQSP.test.json",)},
    "cwq": {
        "train": ("ComplexWebQuestions_train.json",),
        "dev": ("ComplexWebQuestions_dev.json",),
        "test": ("ComplexWebQuestions_test_wans.json", "ComplexWebQuestions_test.json"),  # the first has the answers
    },
    "webquestions": {
        "train": ("webquestions.examples.train.json",),
        "dev": ("webquestions.examples.dev.json",),
        "test": ("webquestions.examples.test.json",),
    },
    "mooc": {split: (f"{split}.jsonl", f"{split}.json") for split in SPLITS},
    "rog": {
        "train": ("train.jsonl", "train-*.parquet", "train.parquet"),
        "dev": ("dev.jsonl", "validation.jsonl", "validation-*.parquet", "dev-*.parquet", "dev.parquet"),
        "test": ("test.jsonl", "test-*.parquet", "test.parquet"),
    },
}
"""File names in a folder, by split; the first pattern that is there counts. Parquet may lie in a folder ``data``."""


@dataclass(frozen=True, slots=True)
class QuestionSource:
    """Where the questions are.

    ``path``: a MetaQA folder; a WorldCup2014 folder or one of its files, split by hash (``split_seed``); or for the
    other formats a folder with a file per split (``SPLIT_FILES``; JSONL: train, dev and test.jsonl) or one
    file, then split by hash too. ``files`` names the files one by one instead, and then ``path`` is not looked at.
    """

    format: QuestionFormat
    path: Path | None = None
    files: Mapping[Split, Path] | None = None
    hops: tuple[int, ...] | None = None  # of a MetaQA or WorldCup2014 folder; None: all it has
    max_reject_ratio: float = 0.001  # a larger share of rejected lines stops the build
    split_seed: int = 0
    variant: Variant = "official"  # of WebQSP and ComplexWebQuestions: see ``variants``
    dev_ids: Path | None = None  # which training questions are the dev split of a variant; None: drawn by hash


def list_files(source: QuestionSource) -> list[tuple[Path, Split | None, int | None]]:
    """Return (file, split or None: by hash, hops or None) of all files, in the order in which they are read.

    Raises InputError where there is none.
    """
    hops = source.hops
    if source.files:
        hop = hops[0] if hops and len(hops) == 1 else None
        return [(file, split, hop) for split, file in sorted(source.files.items(), key=_by_split)]
    if source.path is None:
        raise InputError("questions: neither a path nor files are given. Set dataset.questions.path or .files.")
    if source.format == "metaqa":
        return list(metaqa_files(source.path, hops))
    if source.format == "wc2014":
        return [(file, None, None) for file in wc2014_files(source.path, hops)]
    if source.format in SPLIT_FILES:
        return [(file, split, None) for file, split in split_files(source.path, source.format)]
    return [(file, split, None) for file, split in jsonl_files(source.path)]


def source_files(source: QuestionSource) -> list[Path]:
    """Return the question files, in the order in which they are read."""
    return [file for file, _, _ in list_files(source)]


def split_files(path: Path, format: QuestionFormat) -> list[tuple[Path, Split | None]]:
    """Return (file, split) of a folder by ``SPLIT_FILES``, or one file without a split. InputError: there is none."""
    if path.is_file():
        return [(path, None)]
    wanted = SPLIT_FILES[format]
    found: list[tuple[Path, Split | None]] = [
        (file, split) for split in SPLITS for file in _first_match(path, wanted[split])
    ]
    if not found:
        beside = [entry.name for entry in path.iterdir()] if path.is_dir() else []
        names = [names[0] for names in wanted.values()]
        near = nearest(names[0], beside)
        hint = f" Nearest there: {near[0]}." if near else ""
        raise InputError(f"questions: {path} is neither a file nor a folder with {', '.join(names)}.{hint}")
    return found


def _first_match(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    for place in (folder, folder / "data"):
        for pattern in patterns:
            if matches := sorted(place.glob(pattern)):
                return matches
    return []


def _by_split(item: tuple[Split, Path]) -> int:
    return SPLITS.index(item[0])
