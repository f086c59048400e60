"""How well topics were found: sets of linked topics against those given, and what kind of mistake was made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.link_names import words_of
from kgqa_core.types import Question

ErrorKind = Literal["no topic", "missing topic", "extra homonym", "extra name", "homonym", "nested name", "other name"]
ERRORS: tuple[ErrorKind, ...] = (
    "no topic",  # nothing was found
    "missing topic",  # some of the topics, not all
    "extra homonym",  # all topics, and others of the same name, case and accents aside
    "extra name",  # all topics, and others
    "homonym",  # only others of the same name
    "nested name",  # only others, whose name is part of the topic's, or the reverse
    "other name",  # only others
)


@dataclass(frozen=True, slots=True)
class LinkScore:
    """Figures over questions that have a topic; shares in 0..1, precision, recall and F1 means over questions."""

    num_questions: int
    precision: float
    recall: float
    f1: float
    exact: float  # the linked topics are those given
    holds_topic: float  # one of those given is among the linked
    errors: Mapping[ErrorKind, int]


def score_links(given: Sequence[Question], linked: Sequence[Question], graph: KnowledgeGraph) -> LinkScore:
    """Compare questions as they were given with the same ones linked anew, in the same order.

    Questions that were given without a topic are left out; without any other, all figures are 0.
    """
    pairs = [(set(one.topics), set(other.topics)) for one, other in zip(given, linked, strict=True) if one.topics]
    shared = [len(one & other) for one, other in pairs]
    number = max(len(pairs), 1)
    errors = Counter(error_kind(one, other, graph) for one, other in pairs if one != other)
    return LinkScore(
        num_questions=len(pairs),
        precision=sum(both / max(len(other), 1) for both, (_, other) in zip(shared, pairs, strict=True)) / number,
        recall=sum(both / len(one) for both, (one, _) in zip(shared, pairs, strict=True)) / number,
        f1=sum(2 * both / (len(one) + len(other)) for both, (one, other) in zip(shared, pairs, strict=True)) / number,
        exact=sum(one == other for one, other in pairs) / number,
        holds_topic=sum(both > 0 for both in shared) / number,
        errors={kind: errors[kind] for kind in ERRORS if errors[kind]},
    )


def error_kind(given: set[int], linked: set[int], graph: KnowledgeGraph) -> ErrorKind:
    """Return what went wrong where ``linked`` are not the topics ``given``."""
    if not linked:
        return "no topic"
    if given & linked and given - linked:
        return "missing topic"
    names = [_words(graph, entity) for entity in given]
    others = [_words(graph, entity) for entity in linked - given]
    same = all(other in names for other in others)
    if given <= linked:
        return "extra homonym" if same else "extra name"
    if same:
        return "homonym"
    nested = any(f" {other} " in f" {name} " or f" {name} " in f" {other} " for other in others for name in names)
    return "nested name" if nested else "other name"


def _words(graph: KnowledgeGraph, entity: int) -> str:
    return " ".join(word for word, _, _ in words_of(graph.name_of(entity)))
