"""How many questions a graph can answer at all: topics and answers in it, answers within reach, step by step."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kgqa_core.graph.csr import open_strings
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.graph.shortest import hops_to_many
from kgqa_core.profiles import MID
from kgqa_core.types import EVERY_SPLIT, LintFinding, Question

Hops = NDArray[np.int64]
MAX_HOPS = 4  # searched for a question's hops; beyond that most of any graph is near, and a path says nothing
NUM_EXAMPLES = 5  # of a finding
NAMES_AT_ONCE = 2**16

NAMELESS = re.compile(rf"{MID}( \(no name\))?")  # what is shown of a Freebase entity without a name


@dataclass(frozen=True, slots=True)
class Coverage:
    """Reachability of one group of questions within the allowed number of steps."""

    hops: int | None  # as the dataset says; None where it does not
    split: str
    num_questions: int  # all but true/false questions of which only the claim is known
    any_gold: float  # percent of questions with a gold within reach: the ceiling of Hits@1
    all_golds: float  # percent of questions with all golds within reach


@dataclass(frozen=True, slots=True)
class Reach:
    """What of one split is within so many steps: a row of coverage.parquet."""

    split: str
    steps: int  # 0: an answer is a topic itself, which no path of one step or more comes back to
    num_questions: int  # as in Coverage; questions that nothing can answer are among them
    num_with_topic: int  # a topic is in the graph
    num_with_answer: int  # an answer lies in a triple
    num_any: int  # an answer is at most so many steps from a topic
    num_all: int  # all answers that the file gives are


@dataclass(frozen=True, slots=True)
class Names:
    """How many of a split's topics and answers have a name, and are not shown as a bare MID."""

    split: str
    num_topics: int  # distinct entities
    num_topics_named: int
    num_answers: int
    num_answers_named: int


def find_answerable(placed: Sequence[Question], graph: KnowledgeGraph) -> NDArray[np.bool_]:
    """Return which questions [B], of entities of ``graph``, have an answer in a triple.

    True/false questions of which only the claim is known count as answerable.
    """
    has_triple = np.diff(graph.group_ptr) > 0
    return np.array([not _is_counted(one) or has_triple[list(one.answers)].any() for one in placed], dtype=bool)


def gold_hops(placed: Sequence[Question], search: SearchGraph, *, max_steps: int) -> list[Hops]:
    """Return the hop counts of each question's answers, -1 beyond; its entities are those of ``search.graph``."""
    searches = [(one.topics, one.answers) for one in placed]
    return hops_to_many(search.graph, searches, max_hops=max_steps, reenter_topic=search.reenter_topic)


def cover_hops(questions: Sequence[Question], reached: Sequence[Hops]) -> tuple[Coverage, ...]:
    """Return what is reached at all, for each split and number of hops that the dataset gives."""
    groups: dict[tuple[int | None, str], list[tuple[bool, bool]]] = defaultdict(list)
    for question, hops in zip(questions, reached, strict=True):
        if _is_counted(question):
            groups[question.hops, question.split].append((bool((hops > 0).any()), bool(len(hops) and (hops > 0).all())))
    rows = []
    for hops_given, split in sorted(groups, key=lambda group: (group[0] or 0, EVERY_SPLIT.index(group[1]))):
        cases = groups[hops_given, split]
        any_gold, all_golds = (100.0 * sum(column) / len(cases) for column in zip(*cases, strict=True))
        rows.append(Coverage(hops_given, split, len(cases), any_gold, all_golds))
    return tuple(rows)


def _is_counted(question: Question) -> bool:
    """Is there anything to reach? Not for true/false questions of which only the claim is known."""
    return bool(question.answers) or question.claim is None


def cover_steps(
    questions: Sequence[Question],
    reached: Sequence[Hops],
    answerable: NDArray[np.bool_],
    *,
    max_steps: int,
    partial: Collection[str],
) -> tuple[Reach, ...]:
    """Return what is within 0..max_steps steps, by split, of what ``gold_hops`` and ``find_answerable`` gave.

    ``partial``: ids of questions of whose answers some are not in the graph; all of them are never reached.
    """
    rows = []
    for split in EVERY_SPLIT:
        asked = [number for number, one in enumerate(questions) if one.split == split and _is_counted(one)]
        nearest, farthest = list[int](), list[int]()  # hops of a question's answers; more than all steps: out of reach
        for number in asked:
            question, hops = questions[number], np.where(reached[number] < 0, max_steps + 1, reached[number])
            hops = np.where(np.isin(question.answers, question.topics), 0, hops)  # an answer that is a topic itself
            nearest.append(int(hops.min(initial=max_steps + 1)))
            farthest.append(int(hops.max()) if len(hops) and question.id not in partial else max_steps + 1)
        with_topic = sum(bool(questions[number].topics) for number in asked)
        head = len(asked), with_topic, int(answerable[asked].sum())
        rows += [
            Reach(split, steps, *head, *(sum(hops <= steps for hops in ends) for ends in (nearest, farthest)))
            for steps in range(max_steps + 1)
            if asked
        ]
    return tuple(rows)


def _shared_names(graph: KnowledgeGraph) -> tuple[int, tuple[str, ...]]:
    """Return how many names several entities have, and the first of them; memory stays flat."""
    num: int = json.loads((graph.folder / "graph.json").read_text("utf-8"))["num_shared_names"]
    names, order = open_strings(graph.folder, "name"), graph.name_index.ids
    pieces = (names.take(pa.array(order[at : at + NAMES_AT_ONCE])) for at in range(0, len(order), NAMES_AT_ONCE))
    equal = groupby(chain.from_iterable(piece.to_pylist() for piece in pieces))
    shared = (name for name, bearers in equal if len(list(islice(bearers, 2))) > 1)
    return num, tuple(islice(shared, min(num, NUM_EXAMPLES)))


def cover_names(questions: Sequence[Question], graph: KnowledgeGraph) -> tuple[Names, ...]:
    """Return how many topics and answers have a name, split by split."""
    rows = []
    for split in EVERY_SPLIT:
        asked = [question for question in questions if question.split == split]
        topics = {topic for question in asked for topic in question.topics}
        answers = {answer for question in asked for answer in question.answers}
        named = {entity for entity in topics | answers if not NAMELESS.fullmatch(graph.name_of(entity))}
        if asked:
            rows.append(Names(split, len(topics), len(topics & named), len(answers), len(answers & named)))
    return tuple(rows)


def fill_hops(questions: Sequence[Question], search: SearchGraph) -> list[Question]:
    """Return the questions with ``hops`` wherever it can be known.

    What the dataset says stays; then the length of the gold chain; then the shortest path, in any direction, to the
    nearest gold within ``MAX_HOPS``, inside the question's subgraph where each has one.
    """
    asked = [question for question in questions if question.hops is None and not question.chain]
    reached = gold_hops(search.place(asked), search, max_steps=MAX_HOPS)
    known = {one.id: int(hops[hops > 0].min()) for one, hops in zip(asked, reached, strict=True) if (hops > 0).any()}
    return [
        replace(one, hops=len(one.chain) if one.chain else known.get(one.id)) if one.hops is None else one
        for one in questions
    ]


@dataclass(frozen=True, slots=True)
class LintReport:
    """Findings and coverage, as lint.json holds them."""

    max_steps: int
    reenter_topic: bool
    findings: tuple[LintFinding, ...]
    coverage: tuple[Coverage, ...]  # within max_steps, by split and hops
    reach: tuple[Reach, ...] = ()  # by split and number of steps, as in coverage.parquet
    names: tuple[Names, ...] = ()


def lint_questions(
    questions: Sequence[Question], search: SearchGraph, notes: Mapping[tuple[str, str], list[str]]
) -> LintReport:
    """Check linked questions against what is searched for them; ``notes`` are the doubts that loading raised."""
    placed, max_steps = search.place(questions), search.max_hops
    reached, answerable = gold_hops(placed, search, max_steps=max_steps), find_answerable(placed, search.graph)
    doubts: dict[tuple[str, str], list[str]] = defaultdict(list, notes)
    for question, hops, can_be in zip(questions, reached, answerable, strict=True):
        if (hops < 0).any():
            doubts["unreachable_answer", question.split].append(question.id)
        if not can_be:
            doubts["no_answer_in_graph", question.split].append(question.id)
    first: dict[tuple[str, tuple[int, ...], int | None], Question] = {}
    for question in questions:
        earlier = first.setdefault((question.masked, question.topics, question.claim), question)
        if earlier is not question:
            kind = "duplicate_question" if earlier.split == question.split else "question_in_two_splits"
            doubts[kind, question.split].append(f"{earlier.id} = {question.id}")
    findings = [
        LintFinding(kind=kind, count=len(cases), split=split, examples=tuple(cases[:NUM_EXAMPLES]))
        for (kind, split), cases in sorted(doubts.items())
    ]
    num_shared, some = _shared_names(search.entities)
    if num_shared:
        findings.insert(0, LintFinding("shared_name", num_shared, examples=some))
    partial = {id for (kind, _), ids in doubts.items() if kind == "partial_gold" for id in ids}
    return LintReport(
        max_steps=max_steps,
        reenter_topic=search.reenter_topic,
        findings=tuple(findings),
        coverage=cover_hops(questions, reached),
        reach=cover_steps(questions, reached, answerable, max_steps=max_steps, partial=partial),
        names=cover_names(questions, search.entities),
    )
