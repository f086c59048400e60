"""The vocabulary: one noun, one meaning, everywhere in the project.

Shape letters used in comments and docstrings: B questions, N nodes (entities), E edges, R relations, D width,
L steps, K kept edges.

Relation ids: ``0..R-1`` forward, ``R..2R-1`` the same relations walked backwards, ``2R`` identity (stay).
Entity and relation ids follow the sorted order of their labels, so the same graph always gets the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import ge
from typing import Any, Literal

from kgqa_core.errors import InputError, shorten

Split = Literal["train", "dev", "test", "gate"]  # gate: releases are compared on it, and nothing learns from it
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
EVERY_SPLIT: tuple[Split, ...] = (*SPLITS, "gate")

MapTasks = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""How tasks are mapped: ``map``, or ``run.cluster.fan_out`` over Dask; results come in the order of the tasks."""

Span = tuple[int, int]
"""Characters of a text: start, one past the end."""

RelationPath = tuple[int, ...]
"""Relation ids (forward or reverse) from a topic entity on; no entities."""

LabelPath = tuple[str, ...]
"""Steps of a relation path by label, "^label" backward: see ``graph.kg``."""


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of a reasoning path, always in the direction that it is stored in the graph."""

    head: int  # entity id of the stored triple's head
    relation: int  # forward relation id, 0..R-1
    tail: int  # entity id of the stored triple's tail
    reverse: bool = False  # True: the path walked it from tail to head


ReasoningPath = tuple[Step, ...]
"""Edges from a topic entity to an answer, topic first."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question, linked to the graph.

    A true/false question carries the entity that it claims to be the answer (``claim``) and the right ``verdict``;
    its ``answers`` are then the entities that really answer it, where known, else empty.
    """

    id: str  # unique within a dataset
    text: str  # as a person would read it, without markup
    masked: str  # text with every topic mention (and claim) replaced by a placeholder
    topics: tuple[int, ...]  # topic entity ids, sorted
    answers: tuple[int, ...]  # gold entity ids, sorted
    split: Split
    hops: int | None = None  # given by the dataset; None where it does not say
    chain: RelationPath | None = None  # gold relation path; for ceilings and analysis, never a training signal
    claim: int | None = None  # true/false questions: the entity claimed to be the answer
    verdict: bool | None = None  # true/false questions: is the claim right?

    def asked(self, mask_topics: bool) -> str:
        """Return the text that an explorer reads: masked (ours), or as it was asked (the papers)."""
        return self.masked if mask_topics else self.text


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one system answered to one question.

    ``candidates`` and ``scores`` are parallel, best first, ties by ascending entity id. They always reach to the
    end of the top tie group and of the answer set, and hold at least the ten best candidates where there are ten.
    """

    question_id: str
    candidates: tuple[int, ...]  # entity ids
    scores: tuple[float, ...]  # probabilities (EtD Eq. 3), non-increasing
    answers: tuple[int, ...]  # the answer set: what set metrics (precision, recall, F1, exact match) judge
    paths: tuple[ReasoningPath, ...] = ()  # evidence of the first len(paths) candidates
    covered: bool = False  # was any gold among all candidates explored (not only the kept ones)?
    verdict: bool | None = None  # true/false questions


def check_ranking(question_id: str, candidates: Sequence[int], scores: Sequence[float]) -> None:
    """Raise ``InputError`` unless candidates are distinct and their scores as many and non-increasing."""
    if len(scores) != len(candidates):
        problem = f"{len(candidates)} candidates but {len(scores)} scores"
    elif len(set(candidates)) != len(candidates):
        problem = "the same candidate twice"
    elif not all(map(ge, scores, scores[1:])) or any(score != score for score in scores[:1]):
        problem = "scores that increase or are not numbers"
    else:
        return
    raise InputError(
        f"the prediction for question {shorten(question_id)} has {problem}; "
        "list every candidate once, best first, with one score each"
    )


@dataclass(frozen=True, slots=True)
class Reject:
    """One input row that was not used, and why. Rejects are kept, counted and reported, never dropped silently."""

    file: str
    line: int  # 1-based line number in ``file``
    reason: str  # a short, fixed phrase: rejects are counted by it
    text: str  # the offending line, undecodable bytes replaced, cut to 500 characters


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One kind of doubt about a dataset, with how often it occurs and a few examples."""

    kind: str  # e.g. "duplicate_gold", "shared_name", "unreachable_answer"
    count: int
    split: str = ""  # empty where the finding is about the graph
    examples: tuple[str, ...] = field(default=())
