"""The topics and answers that question files name, as they name them: no graph is needed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from kgqa_core.errors import InputError, shorten
from kgqa_core.graph.formats import MAX_REJECT_TEXT
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.rejects import NUM_SHOWN, rejects_table, too_many_rejects
from kgqa_core.graph.subgraphs import Subgraphs
from kgqa_core.questions.coverage import LintReport, lint_questions, reach_table
from kgqa_core.questions.formats import QuestionSource, list_files, read_file
from kgqa_core.questions.link import Resolver, nearest_names
from kgqa_core.questions.records import Fault, Loaded, RawQuestion
from kgqa_core.questions.store import fill_splits, load_into, questions_table
from kgqa_core.questions.subset import ALL, Subset, SubsetReport, VariantReport, plan_variant, take_subset
from kgqa_core.questions.wc2014 import merge_repeats, note_other_golds
from kgqa_core.types import Reject


@dataclass(frozen=True, slots=True)
class SplitTopics:
    """What the questions of one split, or of all, name."""

    topics: tuple[str, ...]  # distinct, in byte order
    answers: tuple[str, ...]  # distinct, in byte order; a claimed entity is among them
    num_questions: int
    num_without_topic: int
    num_without_answer: int  # true/false questions of which only the claim is known are not counted


@dataclass(frozen=True, slots=True)
class Topics:
    """What all questions name. Labels, or names where the format has no labels (MetaQA, JSONL, RoG, WebQuestions)."""

    all: SplitTopics
    per_split: Mapping[str, SplitTopics]  # by the split of the file; "" where a file has none
    num_rejects: int  # lines that cannot be used

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of all questions, distinct and in byte order."""
        return self.all.topics

    @property
    def answers(self) -> tuple[str, ...]:
        """The answers of all questions, distinct and in byte order."""
        return self.all.answers


def read_topics(source: QuestionSource) -> Topics:
    """Read the topics and answers of all question files, of every variant: no question is left out.

    Raises InputError where a file is missing or is none of its format, or has too large a share of rejected lines.
    """
    found: dict[str, _Named] = {}
    rejects: list[Reject] = []
    for path, split, hops in list_files(source):
        named = found.setdefault(split or "", _Named())
        for number, text, parsed in read_file(path, format=source.format, split=split, hops=hops):
            if isinstance(parsed, Fault):
                rejects.append(Reject(path.name, number, parsed.reason, text[:MAX_REJECT_TEXT]))
            else:
                named.add(parsed)
    num_rows = len(rejects) + sum(named.num_questions for named in found.values())
    if len(rejects) > source.max_reject_ratio * num_rows:
        raise too_many_rejects(
            rejects,
            num_rejects=len(rejects),
            num_rows=num_rows,
            max_ratio=source.max_reject_ratio,
            key="dataset.questions.max_reject_ratio",
        )
    if not num_rows:
        raise InputError("questions: the files hold no question. docs/own-data.md shows what a line looks like.")
    return Topics(
        all=_merged(list(found.values())).frozen(),
        per_split={split: named.frozen() for split, named in found.items()},
        num_rejects=len(rejects),
    )


@dataclass(slots=True)
class _Named:
    topics: set[str] = field(default_factory=set)
    answers: set[str] = field(default_factory=set)
    num_questions: int = 0
    num_without_topic: int = 0
    num_without_answer: int = 0

    def add(self, question: RawQuestion) -> None:
        claimed = () if question.claim is None else (question.claim,)
        self.topics.update(question.topics)
        self.answers.update(question.answers, claimed)
        self.num_questions += 1
        self.num_without_topic += not question.topics
        self.num_without_answer += not question.answers and not claimed

    def frozen(self) -> SplitTopics:
        # byte order and the order of code points are one in UTF-8
        topics, answers = tuple(sorted(self.topics)), tuple(sorted(self.answers))
        return SplitTopics(topics, answers, self.num_questions, self.num_without_topic, self.num_without_answer)


def _merged(parts: list[_Named]) -> _Named:
    return _Named(
        topics=set().union(*(part.topics for part in parts)),
        answers=set().union(*(part.answers for part in parts)),
        num_questions=sum(part.num_questions for part in parts),
        num_without_topic=sum(part.num_without_topic for part in parts),
        num_without_answer=sum(part.num_without_answer for part in parts),
    )


# ------ Build a questions artifact: load every file, link to the graph, lint, write.


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
    source: QuestionSource,
    *,
    graph: KnowledgeGraph,
    max_steps: int,
    reenter_topic: bool,
    out_dir: Path,
    subset: Subset = ALL,
    subgraphs: Subgraphs | None = None,
) -> QuestionReport:
    """Build questions.parquet, rejects.parquet, coverage.parquet and lint.json in ``out_dir``; where not all questions
    are used, also variant.json or subset.json.

    ``max_steps``, ``reenter_topic`` and ``subgraphs`` are the explorer's, for coverage. Raises InputError where a file
    is missing, holds no usable question, has too large a share of rejected lines, or ``subset`` asks for what there is
    not.
    """
    loaded, resolver, seed = Loaded(), Resolver(graph), source.split_seed
    sources = list_files(source)
    variant = None if source.variant == "official" else plan_variant(source)
    load = partial(load_into, format=source.format, resolver=resolver, split_seed=seed, variant=variant)
    for file, split, hop in sources:
        load(loaded, file, split=split, hops=hop)
    _check(loaded, graph, source.max_reject_ratio)
    for dropped in variant.dropped if variant else ():
        loaded.note("dropped_by_variant", dropped.split, f"{dropped.id}: {dropped.reason}")
    if source.format == "wc2014":
        merge_repeats(loaded)
        note_other_golds(loaded, graph, reenter_topic=reenter_topic)
    questions = loaded.questions
    if {split for _, split, _ in sources} == {None}:
        questions = fill_splits(questions, graph, seed=seed)
    subset_report = None
    if subset:
        questions, subset_report = take_subset(questions, subset)
    lint = lint_questions(
        questions, graph, max_steps=max_steps, reenter_topic=reenter_topic, notes=loaded.notes, subgraphs=subgraphs
    )
    out_dir.mkdir(parents=True, exist_ok=True)
    pq.write_table(questions_table(questions), out_dir / "questions.parquet", compression="zstd")
    pq.write_table(rejects_table(loaded.rejects), out_dir / "rejects.parquet", compression="zstd")
    pq.write_table(reach_table(lint.reach), out_dir / "coverage.parquet", compression="zstd")
    _write_json(out_dir / "lint.json", lint)
    if subset_report:
        _write_json(out_dir / "subset.json", subset_report)
    if variant:
        _write_json(out_dir / "variant.json", variant)
    return QuestionReport(
        num_questions=len(questions),
        num_rejects=len(loaded.rejects),
        rejects=dict(sorted(Counter(reject.reason for reject in loaded.rejects).items())),
        per_split=dict(Counter(question.split for question in questions)),
        lint=lint,
        subset=subset_report,
        variant=variant,
    )


def _write_json(path: Path, report: LintReport | SubsetReport | VariantReport) -> None:
    path.write_text(json.dumps(asdict(report), indent=2, ensure_ascii=False) + "\n", "utf-8")


def _check(loaded: Loaded, graph: KnowledgeGraph, max_ratio: float) -> None:
    num_rows = len(loaded.questions) + len(loaded.rejects)
    if len(loaded.rejects) > max_ratio * num_rows:
        error = too_many_rejects(
            loaded.rejects,
            num_rejects=len(loaded.rejects),
            num_rows=num_rows,
            max_ratio=max_ratio,
            key="dataset.questions.max_reject_ratio",
        )
        raise InputError(f"{error}{_nearest(loaded, graph)}")
    if not loaded.questions:
        raise InputError("questions: the files hold no question. docs/own-data.md shows what a line looks like.")


def _nearest(loaded: Loaded, graph: KnowledgeGraph) -> str:
    """Return, for the unknown names among the rejects shown, what the graph has that is like them."""
    shown = [(reject.file, reject.line) for reject in loaded.rejects[:NUM_SHOWN]]
    unknown = list(dict.fromkeys(loaded.unknown[place] for place in shown if place in loaded.unknown))
    lines = [f"\n  nearest to {shorten(name)}: {', '.join(map(repr, nearest_names(name, graph)))}" for name in unknown]
    return f"\nNot in the graph:{''.join(lines)}" if lines else ""
