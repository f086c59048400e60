"""Loading question files of any format, and reading a built questions artifact."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.errors import ArtifactError, InputError
from kgqa_core.graph.formats import MAX_REJECT_TEXT
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.formats import QuestionFormat, read_file
from kgqa_core.questions.link import Resolver
from kgqa_core.questions.records import Fault, Loaded
from kgqa_core.questions.subset import VariantReport
from kgqa_core.types import SPLITS, Question, Reject, Split

DUPLICATE_ID = "id used before"
TRAIN_SHARE, DEV_SHARE = 0.8, 0.1  # of a single file that is split by hash; the rest is test


def load_question_file(
    path: Path,
    *,
    format: QuestionFormat,
    graph: KnowledgeGraph,
    split: Split = "test",
    hops: int | None = None,
) -> tuple[list[Question], list[Reject]]:
    """Return the questions of one file, linked to ``graph``, and the lines that could not be used.

    ``hops`` is for MetaQA files, whose lines do not say. Raises InputError where the file is missing.
    """
    loaded = Loaded()
    load_into(loaded, path, format=format, resolver=Resolver(graph), split=split, hops=hops)
    return loaded.questions, loaded.rejects


def load_into(
    loaded: Loaded,
    path: Path,
    *,
    format: QuestionFormat,
    resolver: Resolver,
    split: Split | None,
    hops: int | None = None,
    split_seed: int = 0,
    variant: VariantReport | None = None,
) -> None:
    """Add one file's questions, rejects and notes to ``loaded``; ``split=None`` splits the file by hash."""
    moved = set(variant.dev_ids) if variant else set()
    dropped = {question.id for question in variant.dropped} if variant else set()
    shown = f"{hops}-hop/{path.name}" if hops is not None else path.name
    used = {question.id for question in loaded.questions}

    def by_hash(masked: str, topics: tuple[int, ...]) -> Split:
        return split_of(masked, [resolver.graph.label_of(topic) for topic in topics], seed=split_seed)

    for number, line, parsed in read_file(path, format=format, split=split, hops=hops):
        if isinstance(parsed, Fault):
            read: Question | Fault = parsed
        elif parsed.id in used:
            read = Fault(DUPLICATE_ID)
        elif parsed.id in dropped:
            continue
        else:
            read = resolver.resolve(parsed, "dev" if parsed.id in moved else split or by_hash, loaded)
        if isinstance(read, Fault):
            loaded.reject(Reject(shown, number, read.reason, line[:MAX_REJECT_TEXT]), unknown=read.unknown)
        else:
            used.add(read.id)
            loaded.questions.append(read)


def split_of(masked: str, topic_labels: list[str], *, seed: int) -> Split:
    """Return the split (80/10/10) of a question in a file without splits.

    It depends on the masked text, the topics' labels and the seed alone: a repeated question never falls into two
    splits, and adding lines to the file moves none.
    """
    share = hash_share(masked, topic_labels, seed=seed)
    return "train" if share < TRAIN_SHARE else "dev" if share < TRAIN_SHARE + DEV_SHARE else "test"


def hash_share(masked: str, topic_labels: list[str], *, seed: int) -> float:
    """Return a number in [0, 1) that a question's masked text, topics and the seed decide."""
    key = "\x1f".join([str(seed), masked, *topic_labels])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64


def fill_splits(questions: list[Question], graph: KnowledgeGraph, *, seed: int) -> list[Question]:
    """Return the questions with no split empty: a file of a few questions is split by the order of their hashes.

    Raises InputError where there are fewer than three different questions to share out.
    """
    if {question.split for question in questions} == set(SPLITS):
        return questions
    keys = [(question.masked, question.topics) for question in questions]
    order = sorted(
        set(keys), key=lambda key: hash_share(key[0], [graph.label_of(topic) for topic in key[1]], seed=seed)
    )
    if len(order) < len(SPLITS):
        raise InputError(
            f"a file without splits needs at least {len(SPLITS)} different questions, one each for train, dev and "
            f"test, and this one has {len(order)}. Add some, or name a file for each split: dataset.questions.files"
        )
    held = max(1, round(DEV_SHARE * len(order)))
    place = {key: rank for rank, key in enumerate(order)}

    def split_at(rank: int) -> Split:
        return "test" if rank >= len(order) - held else "dev" if rank >= len(order) - 2 * held else "train"

    return [replace(question, split=split_at(place[key])) for question, key in zip(questions, keys, strict=True)]


def questions_table(questions: list[Question]) -> pa.Table:
    """Return questions as a table of schemas.QUESTIONS."""
    columns = [[getattr(question, name) for question in questions] for name in schemas.QUESTIONS.names]
    return pa.table(columns, schema=schemas.QUESTIONS)


def read_questions(folder: Path, split: Split | None = None) -> list[Question]:
    """Return the questions of a built artifact, all or one split, in the order of their files.

    Raises ArtifactError where the folder is none or is damaged.
    """
    try:
        table = pq.read_table(folder / "questions.parquet", schema=schemas.QUESTIONS)
    except (OSError, pa.ArrowInvalid) as error:
        raise ArtifactError(
            f"{folder} holds no usable questions ({error}). Build them again: kgqa build CONF"
        ) from error
    if split is not None:
        table = table.filter(pc.equal(table["split"], split))
    columns = {name: table[name].to_pylist() for name in schemas.QUESTIONS.names}
    for name in ("topics", "answers", "chain"):
        columns[name] = [None if ids is None else tuple(ids) for ids in columns[name]]
    return [Question(*row) for row in zip(*(columns[field.name] for field in fields(Question)), strict=True)]
