"""Doubts about a dataset, counted, and how many of its answers the explorer could reach at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.subgraphs import Subgraphs
from kgqa_core.questions.coverage import (
    Coverage,
    Names,
    Reach,
    cover_hops,
    cover_names,
    cover_steps,
    find_answerable,
    gold_hops,
)
from kgqa_core.types import LintFinding, Question

NUM_EXAMPLES = 5


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
    answerable = find_answerable(questions, graph, subgraphs=subgraphs)
    for question, can_be in zip(questions, answerable, strict=True):
        if not can_be:
            doubts["no_answer_in_graph", question.split].append(question.id)
    for kind, split, example in _repeats(questions):
        doubts[kind, split].append(example)
    findings = [
        LintFinding(kind=kind, count=len(cases), split=split, examples=tuple(cases[:NUM_EXAMPLES]))
        for (kind, split), cases in sorted(doubts.items())
    ]
    partial = {id for (kind, _), ids in doubts.items() if kind == "partial_gold" for id in ids}
    return LintReport(
        max_steps=max_steps,
        reenter_topic=reenter_topic,
        findings=(*_shared_names(graph), *findings),
        coverage=cover_hops(questions, reached),
        reach=cover_steps(questions, reached, answerable, max_steps=max_steps, partial=partial),
        names=cover_names(questions, graph),
    )


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
