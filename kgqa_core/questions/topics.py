"""The topics and answers that question files name, as they name them: no graph is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kgqa_core.errors import InputError
from kgqa_core.graph.formats import MAX_REJECT_TEXT
from kgqa_core.graph.rejects import too_many_rejects
from kgqa_core.questions.readers import read_file
from kgqa_core.questions.records import Fault, RawQuestion
from kgqa_core.questions.sources import QuestionSource, list_files
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
