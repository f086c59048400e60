"""From question files to a questions artifact: load, link to the graph, split, lint, write; and reading it back."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.config_base import QuestionSection
from kgqa_core.errors import ArtifactError, InputError, shorten
from kgqa_core.graph.formats import MAX_REJECT_TEXT
from kgqa_core.graph.input_files import NUM_SHOWN, rejects_table, too_many_rejects
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.search_graph import Subgraphs
from kgqa_core.questions.coverage import LintReport, lint_questions, reach_table
from kgqa_core.questions.formats import Fault, Loaded, QuestionFile, list_files, open_format
from kgqa_core.questions.link import Resolver, nearest_names
from kgqa_core.questions.subset import SubsetReport, VariantReport, plan_variant, take_subset
from kgqa_core.types import SPLITS, Question, Reject, Split

DUPLICATE_ID = "id used before"
TRAIN_SHARE, DEV_SHARE = 0.8, 0.1  # of a single file that is split by hash; the rest is test
SPLIT_SEED = 0  # other seeds would move questions from split to split


@dataclass(frozen=True, slots=True)
class QuestionReport:
    """What a build found."""

    num_questions: int
    num_rejects: int
    rejects: dict[str, int]  # reason -> lines
    per_split: dict[str, int]  # split -> questions
    lint: LintReport
    subset: SubsetReport | None = None  # None: all questions are used
    variant: VariantReport | None = None  # None: the files as they are


def build_questions(
    section: QuestionSection,
    *,
    graph: KnowledgeGraph,
    max_steps: int,
    reenter_topic: bool,
    out_dir: Path,
    subgraphs: Subgraphs | None = None,
) -> QuestionReport:
    """Build questions.parquet, rejects.parquet, coverage.parquet and lint.json in ``out_dir``.

    Where not all questions are used, variant.json and subset.json say which. ``max_steps``, ``reenter_topic`` and
    ``subgraphs`` are the explorer's, for coverage. Raises InputError where a file is missing, holds no usable question,
    has too large a share of rejected lines, or the section asks for more questions than there are.
    """
    files, variant = list_files(section), plan_variant(section)
    loaded, resolver = Loaded(), Resolver(graph)
    for file in files:
        load_file(loaded, file, format=section.format, resolver=resolver, variant=variant)
    _check(loaded, section, graph)
    for dropped in variant.dropped if variant else ():
        loaded.note("dropped_by_variant", dropped.split, f"{dropped.id}: {dropped.reason}")
    if finish := open_format(section.format).finish:
        finish(loaded, graph, reenter_topic)
    questions = loaded.questions
    if all(file.split is None for file in files):
        questions = fill_splits(questions, graph)
    questions, subset = take_subset(
        questions, train_size=section.train_size, hold_out_templates=section.hold_out_templates, draw=section.draw
    )
    lint = lint_questions(
        questions, graph, max_steps=max_steps, reenter_topic=reenter_topic, notes=loaded.notes, subgraphs=subgraphs
    )
    out_dir.mkdir(parents=True, exist_ok=True)
    pq.write_table(questions_table(questions), out_dir / "questions.parquet", compression="zstd")
    pq.write_table(rejects_table(loaded.rejects), out_dir / "rejects.parquet", compression="zstd")
    pq.write_table(reach_table(lint.reach), out_dir / "coverage.parquet", compression="zstd")
    reports: dict[str, Any] = {"lint": lint, "subset": subset, "variant": variant}
    for name, report in reports.items():
        if report is not None:
            text = json.dumps(asdict(report), indent=2, ensure_ascii=False)
            (out_dir / f"{name}.json").write_text(f"{text}\n", "utf-8")
    return QuestionReport(
        num_questions=len(questions),
        num_rejects=len(loaded.rejects),
        rejects=dict(sorted(Counter(reject.reason for reject in loaded.rejects).items())),
        per_split=dict(Counter(question.split for question in questions)),
        lint=lint,
        subset=subset,
        variant=variant,
    )


def read_topics(section: QuestionSection) -> list[str]:
    """Return the distinct topics that the question files name, in byte order, before there is a graph.

    They are labels, or names where the format has no labels; questions of every variant and split count. Raises
    InputError where a file is missing or is none of its format, or has too large a share of rejected lines.
    """
    loaded, topics, num_questions = Loaded(), set[str](), 0
    for file in list_files(section):
        for number, text, parsed in open_format(section.format).read(file):
            if isinstance(parsed, Fault):
                loaded.reject(Reject(file.path.name, number, parsed.reason, text[:MAX_REJECT_TEXT]))
            else:
                topics.update(parsed.topics)
                num_questions += 1
    _check_rejects(loaded.rejects, num_questions, section)
    return sorted(topics)  # the order of code points is that of bytes in UTF-8


def _check(loaded: Loaded, section: QuestionSection, graph: KnowledgeGraph) -> None:
    """Raise InputError as ``_check_rejects``; it says what of the graph is like the unknown names that it shows."""
    try:
        _check_rejects(loaded.rejects, len(loaded.questions), section)
    except InputError as error:
        shown = [(reject.file, reject.line) for reject in loaded.rejects[:NUM_SHOWN]]
        unknown = list(dict.fromkeys(loaded.unknown[place] for place in shown if place in loaded.unknown))
        lines = [f"\n  nearest to {shorten(one)}: {', '.join(map(repr, nearest_names(one, graph)))}" for one in unknown]
        if not lines:
            raise
        raise InputError(f"{error}\nNot in the graph:{''.join(lines)}") from error


def _check_rejects(rejects: Sequence[Reject], num_questions: int, section: QuestionSection) -> None:
    num_rows, max_ratio = len(rejects) + num_questions, section.max_reject_ratio
    if len(rejects) > max_ratio * num_rows:
        key = "dataset.questions.max_reject_ratio"
        raise too_many_rejects(rejects, num_rejects=len(rejects), num_rows=num_rows, max_ratio=max_ratio, key=key)
    if not num_questions:
        raise InputError("questions: the files hold no question. docs/own-data.md shows what a line looks like.")


# ------ Loading a file: its questions, linked to the graph and placed in a split.


def load_question_file(
    path: Path, *, format: str, graph: KnowledgeGraph, split: Split = "test", hops: int | None = None
) -> tuple[list[Question], list[Reject]]:
    """Return the questions of one file, linked to ``graph``, and the lines that could not be used.

    ``hops`` is for MetaQA files, whose lines do not say. Raises InputError where the file is missing.
    """
    loaded = Loaded()
    load_file(loaded, QuestionFile(path, split, hops), format=format, resolver=Resolver(graph))
    return loaded.questions, loaded.rejects


def load_file(
    loaded: Loaded, file: QuestionFile, *, format: str, resolver: Resolver, variant: VariantReport | None = None
) -> None:
    """Add one file's questions, rejects and notes to ``loaded``; a file without a split is split by hash."""
    moved = set(variant.dev_ids) if variant else set()
    dropped = {question.id for question in variant.dropped} if variant else set()
    shown = file.path.name if file.hops is None else f"{file.hops}-hop/{file.path.name}"
    used = {question.id for question in loaded.questions}

    def by_hash(masked: str, topics: tuple[int, ...]) -> Split:
        return split_of(masked, [resolver.graph.label_of(topic) for topic in topics])

    for number, line, parsed in open_format(format).read(file):
        if isinstance(parsed, Fault):
            read: Question | Fault = parsed
        elif parsed.id in used:
            read = Fault(DUPLICATE_ID)
        elif parsed.id in dropped:
            continue
        else:
            read = resolver.resolve(parsed, "dev" if parsed.id in moved else file.split or by_hash, loaded)
        if isinstance(read, Fault):
            loaded.reject(Reject(shown, number, read.reason, line[:MAX_REJECT_TEXT]), unknown=read.unknown)
        else:
            used.add(read.id)
            loaded.questions.append(read)


def split_of(masked: str, topic_labels: Sequence[str]) -> Split:
    """Return the split (80/10/10) of a question in a file without splits.

    It depends on the masked text and the topics' labels alone: a repeated question never falls into two splits, and
    adding lines to the file moves none.
    """
    share = _hash_share(masked, topic_labels)
    return "train" if share < TRAIN_SHARE else "dev" if share < TRAIN_SHARE + DEV_SHARE else "test"


def _hash_share(masked: str, topic_labels: Sequence[str]) -> float:
    """Return a number in [0, 1) that a question's masked text and topics decide."""
    key = "\x1f".join([str(SPLIT_SEED), masked, *topic_labels])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64


def fill_splits(questions: list[Question], graph: KnowledgeGraph) -> list[Question]:
    """Return the questions with no split empty: a file of a few questions is split by the order of their hashes.

    Raises InputError where there are fewer than three different questions to share out.
    """
    if {question.split for question in questions} == set(SPLITS):
        return questions
    keys = [(question.masked, question.topics) for question in questions]
    order = sorted(set(keys), key=lambda key: _hash_share(key[0], [graph.label_of(topic) for topic in key[1]]))
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


# ------ Questions at rest.


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
