"""What users do with a trained explorer: ask it questions in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from kgqa_core.errors import InputError, LinkError, shorten
from kgqa_core.run.open import open_system
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.types import Prediction, Question

if TYPE_CHECKING:
    from kgqa_core.graph.kg import KnowledgeGraph
    from kgqa_core.systems.etd import ExplorerSystem


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as a person asks it."""

    question: str
    topic: str | None = None  # label or name of the topic entity; None or empty: the exact name in the question


@dataclass(frozen=True, slots=True)
class AnswerLine:
    """One candidate of an answer."""

    name: str
    label: str  # tells homonyms apart
    score: float  # percent: the probability of Eq. 3 over all candidates
    is_answer: bool  # in the answer set, by the threshold chosen on dev
    path: str  # evidence: readable triples in walking order, empty where none is kept


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question, or why there is none."""

    question: str
    topics: tuple[str, ...]  # names of the topic entities
    candidates: tuple[AnswerLine, ...]  # best first
    error: str = ""  # why the question could not be asked; empty where it was
    nearest: tuple[str, ...] = ()  # names in the graph that look most like a topic that is not there


@dataclass(frozen=True, slots=True)
class Answerer:
    """Answers questions in words with one explorer: ``kgqa ask`` and the served model are this class."""

    system: ExplorerSystem

    def ask(self, question: str, *topics: str) -> Answer:
        """Answer one question; raises as ``link_asked``."""
        return self._answer([link_asked(question, topics, self.system.graph)])[0]

    def ask_all(self, asked: Sequence[Asked]) -> list[Answer]:
        """Answer many questions at once, in order; one that cannot be asked becomes an answer that says why."""
        linked: list[Question | Answer] = []
        for row in asked:
            try:
                linked.append(link_asked(row.question, [row.topic or ""], self.system.graph))
            except InputError as problem:
                near = problem.nearest if isinstance(problem, LinkError) else ()
                linked.append(Answer(row.question, (), (), error=str(problem), nearest=near))
        answers = iter(self._answer([item for item in linked if isinstance(item, Question)]))
        return [next(answers) if isinstance(item, Question) else item for item in linked]

    def _answer(self, questions: Sequence[Question]) -> list[Answer]:
        with torch_threads(1):
            return list(map(self._in_words, questions, self.system.answer(questions)))

    def _in_words(self, question: Question, prediction: Prediction) -> Answer:
        graph, answers = self.system.graph, set(prediction.answers)
        paths = [self.system.render(path) for path in prediction.paths]
        lines = tuple(
            AnswerLine(graph.name_of(entity), graph.label_of(entity), 100.0 * score, entity in answers, path or "")
            for (entity, score), path in zip_longest(
                zip(prediction.candidates, prediction.scores, strict=True), paths[: len(prediction.candidates)]
            )
        )
        names = dict.fromkeys(graph.name_of(entity) for entity in question.topics)
        return Answer(question.text, tuple(names), lines)


def link_asked(question: str, topics: Sequence[str], graph: KnowledgeGraph) -> Question:
    """Return a question with the topics that were named (empty names are none), or the one that its text names.

    Raises InputError where the question is empty or no text, LinkError with the nearest names where no topic is found.
    """
    from kgqa_core.questions.link import link_question

    if not question.strip():
        raise InputError("the question is empty")
    try:
        "".join((question, *topics)).encode()
    except UnicodeEncodeError:
        raise InputError(f"{shorten(question)} or its topic holds half a character, which no text has") from None
    return link_question(question, graph, topics=list(filter(None, topics)))


@contextmanager
def torch_threads(num: int) -> Iterator[None]:
    """Let torch compute with ``num`` threads for a while.

    A few questions are too small to share out: on a busy machine threads that wait for each other cost forty times
    what one does. torch keeps the number per thread that calls it, so a server sets it at each request.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def open_answerer(pipeline: Pipeline) -> Answerer:
    """Open the run's first explorer for questions in words, which explore the whole graph."""
    return Answerer(replace(open_system(pipeline), subgraphs=None))
