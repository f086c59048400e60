"""Doubts about a dataset, counted, and how many of its answers the explorer could reach at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.paths import hops_to_answers, hops_to_many
from kgqa_core.graph.subgraphs import Subgraphs
from kgqa_core.types import SPLITS, LintFinding, Question

NUM_EXAMPLES = 5

Hops = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Reachability of one group of questions within the allowed number of steps."""

    hops: int | None  # as the dataset says; None where it does not
    split: str
    num_questions: int  # all but true/false questions of which only the claim is known
    any_gold: float  # percent of questions with a gold within reach: the ceiling of Hits@1
    all_golds: float  # percent of questions with all golds within reach


@dataclass(frozen=True, slots=True)
class LintReport:
    """Findings and coverage, as lint.json holds them."""

    max_steps: int
    reenter_topic: bool
    findings: tuple[LintFinding, ...]
    coverage: tuple[Coverage, ...]


def lint_questions(
    questions: Sequence[Question],
    graph: KnowledgeGraph,
    *,
    max_steps: int,
    reenter_topic: bool,
    notes: dict[tuple[str, str], list[str]] | None = None,
    subgraphs: Subgraphs | None = None,
) -> LintReport:
    """Check linked questions against their graph, or each against its subgraph.

    ``notes`` are the doubts that loading the questions already raised.
    """
    reached = gold_hops(questions, graph, max_steps=max_steps, reenter_topic=reenter_topic, subgraphs=subgraphs)
    doubts: dict[tuple[str, str], list[str]] = defaultdict(list, notes or {})
    for question, hops in zip(questions, reached, strict=True):
        if (hops < 0).any():
            doubts["unreachable_answer", question.split].append(question.id)
    for question, answerable in zip(questions, find_answerable(questions, graph, subgraphs=subgraphs), strict=True):
        if not answerable:
            doubts["no_answer_in_graph", question.split].append(question.id)
    for kind, split, example in _repeats(questions):
        doubts[kind, split].append(example)
    findings = [
        LintFinding(kind=kind, count=len(cases), split=split, examples=tuple(cases[:NUM_EXAMPLES]))
        for (kind, split), cases in sorted(doubts.items())
    ]
    return LintReport(
        max_steps=max_steps,
        reenter_topic=reenter_topic,
        findings=(*_shared_names(graph), *findings),
        coverage=_coverage(questions, reached),
    )


def find_answerable(
    questions: Sequence[Question], graph: KnowledgeGraph, *, subgraphs: Subgraphs | None = None
) -> NDArray[np.bool_]:
    """Return which questions [B] have an answer in a triple of the graph, or of their subgraph.

    True/false questions of which only the claim is known count as answerable.
    """
    explored, asked = (subgraphs.graph, subgraphs.all_to_rows(questions)) if subgraphs else (graph, questions)
    has_triple = np.diff(explored.group_ptr) > 0
    found = [
        (question.claim is not None and not question.answers) or has_triple[list(question.answers)].any()
        for question in asked
    ]
    return np.array(found, dtype=bool)


def gold_hops(
    questions: Sequence[Question],
    graph: KnowledgeGraph,
    *,
    max_steps: int,
    reenter_topic: bool,
    subgraphs: Subgraphs | None = None,
) -> list[Hops]:
    """Return each question's shortest hop counts to its answers, -1: not within ``max_steps``.

    Questions that share their topics share one search. In subgraphs all of them do: no edge joins two.
    """
    if subgraphs:
        asked = subgraphs.all_to_rows(questions)
        topics = [topic for question in asked for topic in question.topics]
        answers = [answer for question in asked for answer in question.answers]
        found = hops_to_answers(subgraphs.graph, topics, answers, max_hops=max_steps, reenter_topic=reenter_topic)
        return _share_out(found, questions)
    members: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, question in enumerate(questions):
        members[question.topics].append(number)
    searches = [
        (topics, [answer for number in numbers for answer in questions[number].answers])
        for topics, numbers in members.items()
    ]
    hops = hops_to_many(graph, searches, max_hops=max_steps, reenter_topic=reenter_topic)
    result: list[Hops] = [np.empty(0, dtype=np.int64)] * len(questions)
    for numbers, found in zip(members.values(), hops, strict=True):
        for number, piece in zip(numbers, _share_out(found, [questions[number] for number in numbers]), strict=True):
            result[number] = piece
    return result


def _share_out(hops: Hops, questions: Sequence[Question]) -> list[Hops]:
    """Cut the hop counts of all answers into those of each question."""
    ends = np.cumsum([len(question.answers) for question in questions])
    return np.split(hops, ends[:-1]) if questions else []


def _repeats(questions: Iterable[Question]) -> list[tuple[str, str, str]]:
    """Return (kind, split, example) for questions asked twice: inside a split, or again in another one."""
    first: dict[tuple[str, tuple[int, ...], int | None], Question] = {}
    found: list[tuple[str, str, str]] = []
    for question in questions:
        earlier = first.setdefault((question.masked, question.topics, question.claim), question)
        if earlier is not question:
            kind = "duplicate_question" if earlier.split == question.split else "question_in_two_splits"
            found.append((kind, question.split, f"{earlier.id} = {question.id}"))
    return found


def _shared_names(graph: KnowledgeGraph) -> list[LintFinding]:
    """Return the names that several entities bear, where there are any."""
    counts: dict[str, int] = defaultdict(int)
    for name in graph.entity_names:
        counts[name] += 1
    shared = sorted(name for name, count in counts.items() if count > 1)
    return [LintFinding("shared_name", len(shared), examples=tuple(shared[:NUM_EXAMPLES]))] if shared else []


def _coverage(questions: Sequence[Question], reached: Sequence[Hops]) -> tuple[Coverage, ...]:
    groups: dict[tuple[int | None, str], list[tuple[bool, bool]]] = defaultdict(list)
    for question, hops in zip(questions, reached, strict=True):
        if len(hops) or question.claim is None:
            groups[question.hops, question.split].append((bool((hops > 0).any()), bool(len(hops) and (hops > 0).all())))
    order = sorted(groups, key=lambda group: (group[0] or 0, SPLITS.index(group[1])))
    return tuple(_coverage_row(hops, split, groups[hops, split]) for hops, split in order)


def _coverage_row(hops: int | None, split: str, cases: list[tuple[bool, bool]]) -> Coverage:
    any_gold, all_golds = (100.0 * sum(column) / len(cases) for column in zip(*cases, strict=True))
    return Coverage(hops, split, len(cases), any_gold, all_golds)
