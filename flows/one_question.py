"""One system asked one question, and what happened prompt by prompt: what ``kgqa ask --system`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from kgqa_core.errors import InputError, LinkError
from kgqa_core.evaluation.predictions import render_path
from kgqa_core.graph.follow import execute_plans
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.render import ARROW
from kgqa_core.run.ask import link_asked
from kgqa_core.run.compare import open_bench
from kgqa_core.run.pipeline import Pipeline
from kgqa_core.run.stages.systems import system_key
from kgqa_core.systems.types import AskedCall
from kgqa_core.types import LabelPath, Question

MOST_NAMED = 3  # entities that a missing fact is told of


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
    missing: tuple[str, ...] = ()  # which fact is not in the graph, of each plan that leads nowhere


def asked_key(pipeline: Pipeline, row: str | None = None) -> str:
    """Return the stage of a row of the run's comparison, the first by default: its first answerer and seed."""
    systems = pipeline.config.comparison
    rows, seed = systems.rows(), (systems.seeds or pipeline.config.exploration.seeds)[0]
    row = next(iter(rows)) if row is None else row
    return system_key(row, rows[row][1][0], seed)


def ask_system(pipeline: Pipeline, question: str, *topics: str, row: str | None = None) -> SystemReply:
    """Ask one row of the run's comparison, the first by default, played by its first answerer, with the first seed.

    Raises as ``link_asked``, but LinkError only where a topic was named or the system needs one.
    """
    key = asked_key(pipeline, row)
    with open_bench(pipeline, key) as bench:
        if bench.search.subgraphs is not None:
            raise InputError("in this run each question has its own subgraph (dataset.subgraphs): a new one has none")
        graph = bench.search.entities
        try:
            asked = link_asked(question, topics, graph)
        except LinkError:
            if any(topics) or bench.system.needs_topic:
                raise
            asked = Question("asked", question, question, (), (), "test")
        done = bench.answer([asked])
        search = bench.search
    (one,) = done.answered
    prediction, usage = one.answer.prediction, done.usage.to_pydict()
    supported = dict(zip(prediction.answers, one.faithful, strict=True))
    lines = []
    scored = zip(prediction.candidates, prediction.scores, strict=True)
    for (entity, score), path in zip_longest(scored, prediction.paths[: len(prediction.candidates)]):
        shown = render_path(path or (), graph)
        named, is_supported = (graph.name_of(entity), graph.label_of(entity)), supported.get(entity, bool(path))
        lines.append(SystemLine(*named, score, entity in supported, is_supported, shown))
    return SystemReply(
        system=str(pipeline.specs[key].section["system"]),
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
        missing=tuple(missing_facts(search, asked, one.answer.plans)),
    )


def missing_facts(search: SearchGraph, asked: Question, plans: Sequence[LabelPath]) -> Iterator[str]:
    """Say of each plan that leads nowhere at which relation it ends, and of what: "no born_in of Ada Lovelace".

    One who is asked on a graph with gaps sees what was looked for and is not there.
    """
    for plan in plans:
        begun = [plan[: place + 1] for place in range(len(plan))]
        (reached,) = execute_plans(search.graph, [asked.topics], [begun], reenter_topic=True)  # back there is no gap
        sets = [list(asked.topics), *(ends.tolist() for ends in reached)]
        lost = next((place for place, ends in enumerate(sets) if not ends), None)
        if lost:  # at 0 there is no topic to start from
            named = [search.name_of(entity) for entity in sets[lost - 1][:MOST_NAMED]]
            more = f" and {len(sets[lost - 1]) - MOST_NAMED} more" if len(sets[lost - 1]) > MOST_NAMED else ""
            yield f"no {plan[lost - 1]} of {', '.join(named)}{more} (plan {ARROW.join(plan)})"
