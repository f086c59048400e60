"""Asking one system one question, and showing prompt by prompt what happened."""

from __future__ import annotations

from dataclasses import dataclass

from kgqa_core.comparing import Bench, open_bench, section_of
from kgqa_core.errors import InputError, LinkError
from kgqa_core.pipeline import Pipeline
from kgqa_core.stage_specs_systems import system_key
from kgqa_core.systems.types import AskedCall
from kgqa_core.types import Question


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


def ask_system(pipeline: Pipeline, question: str, topic: str | None = None, *, row: str | None = None) -> SystemReply:
    """Ask one row of the run's comparison, the first by default, played by its first answerer, with the first seed.

    Raises:
        InputError: an empty question.
        LinkError: a topic that is not in the graph, or none in the text where the system needs one.
        ArtifactError: something that the system stands on is not made.
    """
    systems = section_of(pipeline)
    seed = (systems.seeds or pipeline.config.exploration.seeds)[0]
    rows = systems.rows()
    row = next(iter(rows)) if row is None else row
    answerers = rows[row][1]
    with open_bench(pipeline, system_key(row, answerers[0], seed)) as bench:
        asked = _link(bench, question, topic)
        done = bench.answer([asked])
    (one,) = done.answered
    graph, prediction = bench.walk.entities, one.answer.prediction
    supported = dict(zip(prediction.answers, one.faithful, strict=True))
    paths = dict(zip(prediction.candidates, prediction.paths, strict=False))
    lines = [
        SystemLine(
            graph.name_of(entity),
            graph.label_of(entity),
            score,
            entity in supported,
            supported.get(entity, bool(paths.get(entity))),
            bench.render(paths[entity]) if paths.get(entity) else "",
        )
        for entity, score in zip(prediction.candidates, prediction.scores, strict=True)
    ]
    usage = done.usage.to_pydict()
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
    )


def _link(bench: Bench, question: str, topic: str | None) -> Question:
    """Return the question with the topic that was named, or that its text names; none where none is needed."""
    from kgqa_core.questions.resolve import link_question

    if not question.strip():
        raise InputError("the question is empty")
    if bench.walk.subgraphs is not None:
        raise InputError("in this run each question has its own subgraph (dataset.subgraphs): a new one has none")
    try:
        return link_question(question, bench.walk.entities, topics=[topic] if topic else [])
    except LinkError:
        if topic or bench.system.needs_topic:
            raise
        return Question("asked", question, question, (), (), "test")
