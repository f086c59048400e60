"""What users do with what is trained: ask an explorer, or one system, questions in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from kgqa_core.errors import InputError, LinkError
from kgqa_core.evaluation.predictions import render_path
from kgqa_core.run.compare import open_bench, section_of
from kgqa_core.run.open import open_system
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages.systems import system_key
from kgqa_core.systems.types import AskedCall
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

    def ask(self, question: str, topic: str | None = None) -> Answer:
        """Answer one question; raises as ``link_asked``."""
        return self._answer([link_asked(question, topic, self.system.graph)])[0]

    def ask_all(self, asked: Sequence[Asked]) -> list[Answer]:
        """Answer many questions at once, in order; one that cannot be asked becomes an answer that says why."""
        linked: list[Question | Answer] = []
        for row in asked:
            try:
                linked.append(link_asked(row.question, row.topic, self.system.graph))
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


def link_asked(question: str, topic: str | None, graph: KnowledgeGraph) -> Question:
    """Return a question with the topic that was named, or that its text names.

    Raises InputError where the question is empty, LinkError with the nearest names where no topic is found.
    """
    from kgqa_core.questions.link import link_question

    if not question.strip():
        raise InputError("the question is empty")
    return link_question(question, graph, topics=[topic] if topic else [])


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


# ------ Asking one system one question, and showing prompt by prompt what happened.


@dataclass(frozen=True, slots=True)
class SystemLine:
    """One answer, or one of the candidates behind the answers."""

    name: str
    label: str  # tells homonyms apart
    score: float
    is_answer: bool
    supported: bool  # is there a path in the graph that ends in it?
    path: str  # readable triples; empty where there is none


@dataclass(frozen=True, slots=True)
class SystemReply:
    """What a system made of one question."""

    system: str
    answered_by: str  # empty: it asks no language model
    question: str
    topics: tuple[str, ...]  # names
    status: str
    candidates: tuple[SystemLine, ...]  # answers first
    unmatched: tuple[str, ...]  # names that were answered, and that nothing in the graph bears
    verdict: bool | None
    calls: tuple[AskedCall, ...]
    tokens: int  # read and given
    seconds: float
    error: str = ""
    confidence: float | None = None  # 0..1; None: no answer, or nobody told


def asked_key(pipeline: Pipeline, row: str | None = None) -> str:
    """Return the stage of a row of the run's comparison, the first by default: its first answerer and seed."""
    systems = section_of(pipeline)
    rows, seed = systems.rows(), (systems.seeds or pipeline.config.exploration.seeds)[0]
    row = next(iter(rows)) if row is None else row
    return system_key(row, rows[row][1][0], seed)


def ask_system(pipeline: Pipeline, question: str, topic: str | None = None, *, row: str | None = None) -> SystemReply:
    """Ask one row of the run's comparison, the first by default, played by its first answerer, with the first seed.

    Raises as ``link_asked``, but LinkError only where a topic was named or the system needs one.
    """
    with open_bench(pipeline, asked_key(pipeline, row)) as bench:
        if bench.search.subgraphs is not None:
            raise InputError("in this run each question has its own subgraph (dataset.subgraphs): a new one has none")
        graph = bench.search.entities
        try:
            asked = link_asked(question, topic, graph)
        except LinkError:
            if topic or bench.system.needs_topic:
                raise
            asked = Question("asked", question, question, (), (), "test")
        done = bench.answer([asked])
    (one,) = done.answered
    prediction, usage = one.answer.prediction, done.usage.to_pydict()
    supported = dict(zip(prediction.answers, one.faithful, strict=True))
    lines = []
    scored = zip(prediction.candidates, prediction.scores, strict=True)
    for (entity, score), path in zip_longest(scored, prediction.paths[: len(prediction.candidates)]):
        shown = render_path(path or (), entity_names=graph.entity_names, relation_names=graph.relation_names)
        named, is_supported = (graph.name_of(entity), graph.label_of(entity)), supported.get(entity, bool(path))
        lines.append(SystemLine(*named, score, entity in supported, is_supported, shown))
    return SystemReply(
        system=bench.system.name,
        answered_by=bench.source.answered_by,
        question=question,
        topics=tuple(graph.name_of(entity) for entity in asked.topics),
        status=one.status,
        candidates=tuple(lines),
        unmatched=one.answer.unmatched,
        verdict=prediction.verdict,
        calls=one.calls,
        tokens=sum(usage["num_prompt_tokens"]) + sum(usage["num_tokens"]),
        seconds=sum(usage["seconds"]),
        error=one.error,
        confidence=one.confidence,
    )
