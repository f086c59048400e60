"""Questions as arrays: what the explorer needs of a batch, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kgqa_core.explorer.frontier import Int, expand_ranges
from kgqa_core.types import Question


@dataclass(frozen=True, slots=True)
class Batch:
    """B questions; topics and golds are (question, entity) pairs, sorted by both."""

    text: Int  # [B] row of each question's text in the table of encodings
    topic_question: Int  # [T] 0..B-1
    topic_entity: Int  # [T]
    gold_question: Int  # [A] 0..B-1
    gold_entity: Int  # [A]

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True, slots=True)
class QuestionArrays:
    """All Q questions of a split in flat arrays, from which batches are gathered."""

    text: Int  # [Q]
    topic_ptr: Int  # [Q+1] question i owns topic_entity[topic_ptr[i]:topic_ptr[i + 1]], ascending
    topic_entity: Int
    gold_ptr: Int  # [Q+1] the same for golds
    gold_entity: Int

    def __len__(self) -> int:
        return len(self.text)

    def batch(self, rows: Int) -> Batch:
        """Gather the questions ``rows`` into one batch."""
        topic_question, topic_at = expand_ranges(self.topic_ptr, rows)
        gold_question, gold_at = expand_ranges(self.gold_ptr, rows)
        return Batch(
            self.text[rows], topic_question, self.topic_entity[topic_at], gold_question, self.gold_entity[gold_at]
        )

    def teaching(self) -> Int:
        """Return the rows that can be learned from: those with a topic and a gold."""
        return np.flatnonzero((np.diff(self.topic_ptr) > 0) & (np.diff(self.gold_ptr) > 0))

    def in_order(self) -> Int:
        """Return all rows, questions of equal text together: in one batch they share state classes."""
        return np.argsort(self.text, kind="stable")


def question_arrays(
    questions: Sequence[Question], text_row: dict[str, int], *, mask_topics: bool = True
) -> QuestionArrays:
    """Flatten questions.

    A true/false question whose claim is right teaches and expects the claimed entity; one whose claim is wrong has no
    gold here unless its real answers are known.

    Args:
        questions: linked questions.
        text_row: row of each text, as an explorer reads it, in the table of encodings.
        mask_topics: see ``Question.asked``.
    """
    # As sets: a topic given twice would send its messages twice, a gold given twice would weigh twice.
    topics = [set(question.topics) for question in questions]
    golds = [set(explorer_golds(question)) for question in questions]
    return QuestionArrays(
        text=np.array([text_row[question.asked(mask_topics)] for question in questions], dtype=np.int64),
        topic_ptr=_pointers(topics),
        topic_entity=_flat(topics),
        gold_ptr=_pointers(golds),
        gold_entity=_flat(golds),
    )


def explorer_golds(question: Question) -> tuple[int, ...]:
    """Return the entities that exploration should end at."""
    if question.answers or question.claim is None:
        return question.answers
    return (question.claim,) if question.verdict else ()


def _pointers(groups: Sequence[set[int]]) -> Int:
    return np.cumsum([0, *map(len, groups)], dtype=np.int64)


def _flat(groups: Sequence[set[int]]) -> Int:
    return np.array([entity for group in groups for entity in sorted(group)], dtype=np.int64)
