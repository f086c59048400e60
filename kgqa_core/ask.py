"""What users do with a trained explorer: ask one question, or score a file of questions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgqa_core.config import EmbeddedDataset
from kgqa_core.errors import InputError
from kgqa_core.pipeline import Pipeline
from kgqa_core.types import Question, Reject
from kgqa_core.workspace import open_system


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
    """The answer to one question."""

    question: str
    topics: tuple[str, ...]  # names of the topic entities
    candidates: tuple[AnswerLine, ...]  # best first


def ask(pipeline: Pipeline, text: str, *, topic: str | None = None) -> Answer:
    """Answer one question with the run's first explorer.

    Args:
        pipeline: a run whose explorer is trained.
        text: the question.
        topic: label or name of the topic entity; found by exact name in the text where it is not given.

    Raises:
        ArtifactError: the explorer is not trained.
        LinkError: no topic, with the five nearest names.
    """
    from kgqa_core.questions.linking import link_topics, mask_topics, require_ids

    system = open_system(pipeline)
    graph = system.graph
    topics = require_ids(topic, graph) if topic is not None else link_topics(text, graph)
    names = tuple(dict.fromkeys(graph.name_of(entity) for entity in topics))
    question = Question("asked", text, mask_topics(text, names), topics, (), "test")
    (prediction,) = system.answer([question])
    answers = set(prediction.answers)
    paths = [system.render(path) for path in prediction.paths]
    lines = [
        AnswerLine(graph.name_of(entity), graph.label_of(entity), 100.0 * score, entity in answers, path)
        for entity, score, path in zip(
            prediction.candidates,
            prediction.scores,
            paths + [""] * (len(prediction.candidates) - len(paths)),
            strict=True,
        )
    ]
    return Answer(text, names, tuple(lines))


def score_question_file(pipeline: Pipeline, path: Path) -> tuple[dict[str, Any], list[Reject]]:
    """Score the run's first explorer, and its controls, on any question file in the dataset's format.

    Returns:
        ``{"n", "hits1", "f1", "em", "coverage", "seconds", "controls": {name: {...}}}`` (percent; seconds of answering,
        encoding of new texts included), and the lines that could not be used.

    Raises:
        InputError: no usable question.
        ArtifactError: the explorer or its controls are not built.
    """
    from kgqa_core.evaluation.metrics import score_predictions
    from kgqa_core.questions.loaders import load_question_file
    from kgqa_core.systems.control_report import score_controls
    from kgqa_core.systems.controls import load_template_control

    dataset = pipeline.config.dataset
    system = open_system(pipeline)
    control = load_template_control(pipeline.artifact("controls").folder / "template_control.json", system.graph)
    questions, rejects = load_question_file(
        path, format="jsonl" if isinstance(dataset, EmbeddedDataset) else dataset.questions.format, graph=system.graph
    )
    if not questions:
        raise InputError(f"{path} holds no usable question{_first_reject(rejects)}")
    started = time.perf_counter()
    predictions = system.answer(questions, progress=lambda done, total: pipeline.progress("answering", done, total))
    seconds = time.perf_counter() - started
    scores = _headline(score_predictions(questions, predictions).summary())
    rows = score_controls(control, questions, max_hops=pipeline.config.explorer.steps)
    controls = {row["system"]: _headline(row["overall"]) for row in rows}
    return {**scores, "seconds": seconds, "controls": controls}, rejects


def _headline(summary: dict[str, float]) -> dict[str, float]:
    return {"n": int(summary["n"])} | {name: summary[name] for name in ("hits1", "f1", "em", "coverage")}


def _first_reject(rejects: Sequence[Reject]) -> str:
    return f"; the first line that cannot be used is {rejects[0].line}: {rejects[0].reason}" if rejects else ""
