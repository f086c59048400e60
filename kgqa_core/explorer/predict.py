"""From explored candidates to predictions: ranking, the answer set, and evidence paths.

Evidence is found by backtracking the strongest edges (EtD appendix B.3, Algorithm 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import log, log1p
from sys import float_info

import numpy as np
import torch

from kgqa_core.explorer import kernels
from kgqa_core.explorer.batch import Batch, Int, QuestionArrays, question_arrays
from kgqa_core.explorer.explore import Exploration, ExploreOptions, barred_topics, explore_rows, gold_mask, scratch
from kgqa_core.explorer.model import Explorer, Texts
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Prediction, Question, ReasoningPath, Step

MIN_CANDIDATES = 10  # kept per question at least
TIE = 1e-4  # relative difference of probabilities up to which candidates count as tied (evaluation.metrics)
ROUND = 5  # decimals of a log probability: equal states summed in another order must tie


def predict(
    model: Explorer,
    graph: KnowledgeGraph,
    questions: Sequence[Question],
    *,
    texts: Texts,
    text_row: dict[str, int],
    options: ExploreOptions,
    answer_threshold: float,
    mask_topics: bool = True,
    evidence_paths: int = 3,
    evidence_of_answers: bool = False,
    batch_size: int = 64,
    progress: Callable[[int, int], None] = lambda done, total: None,
    on_batch: Callable[[Exploration, int], None] = lambda found, num_questions: None,
) -> list[Prediction]:
    """Answer every linked question, in order; those without topics with an abstention.

    ``text_row`` is the row of each text in ``texts.questions``; ``options.trace`` is set here, as evidence needs it. A
    candidate is an answer from the share ``answer_threshold`` of the best probability on. The first ``evidence_paths``
    candidates get an evidence path, a claim that was kept always, and every answer where ``evidence_of_answers``. A
    batch too large for memory is halved. ``progress`` gets (done, total), ``on_batch`` what so many questions found.
    """
    needs_trace = evidence_paths > 0 or evidence_of_answers or any(question.claim is not None for question in questions)
    options = replace(options, trace=needs_trace)
    answered: dict[int, Prediction] = {}
    linked = [index for index, question in enumerate(questions) if question.topics]
    arrays = question_arrays([questions[index] for index in linked], text_row, mask_topics=mask_topics)
    for rows, batch, found in explore_all(model, graph, arrays, texts=texts, options=options, batch_size=batch_size):
        on_batch(found, len(batch))
        asked = [questions[linked[row]] for row in rows]
        wanted = (evidence_paths, evidence_of_answers)
        predictions = _answer_batch(found, batch, asked, graph, answer_threshold, wanted, options)
        for row, prediction in zip(rows, predictions, strict=True):
            answered[linked[row]] = prediction
        progress(len(answered) + len(questions) - len(linked), len(questions))
    return [
        answered.get(index, Prediction(question.id, (), (), (), abstained=True))
        for index, question in enumerate(questions)
    ]


def explore_all(
    model: Explorer,
    graph: KnowledgeGraph,
    arrays: QuestionArrays,
    *,
    texts: Texts,
    options: ExploreOptions,
    batch_size: int = 256,
) -> Iterator[tuple[Int, Batch, Exploration]]:
    """Yield (rows, batch, what was found), without gradients; questions of equal text come together.

    A batch that was too large for memory is halved, and so are all after it: to try would be to walk in vain.
    """
    was_training = model.training
    model.eval()
    rows, size = arrays.in_order(), batch_size
    while len(rows):
        parts, largest = explore_rows(model, graph, arrays, rows[:size], texts=texts, options=options), 0
        while True:
            with torch.inference_mode():  # not around the yield: it would hold for whoever iterates
                part = next(parts, None)
            if part is None:
                break
            largest = max(largest, len(part[0]))
            yield part
        rows, size = rows[size:], largest
    model.train(was_training)


def _answer_batch(
    found: Exploration,
    batch: Batch,
    questions: Sequence[Question],
    graph: KnowledgeGraph,
    answer_threshold: float,
    evidence: tuple[int, bool],
    options: ExploreOptions,
) -> Iterator[Prediction]:
    """Yield the prediction of each question; ``evidence``: for how many candidates, and for all answers as well?

    Candidates are ranked by their rounded probability, ties by entity id, and kept down to the last answer and to the
    tenth; no tie is cut.
    """
    covered = np.bincount(found.question[gold_mask(found, batch, graph.num_entities)], minlength=len(batch)) > 0
    tie = log1p(-TIE)
    limits = (len(batch), log(max(answer_threshold, float_info.min)) + tie, tie, MIN_CANDIDATES, 10.0**ROUND)
    log_p = found.log_probability(len(batch)).cpu().numpy()
    keys, num_kept, num_answers = kernels.rank_keys(log_p, found.question, found.entity, limits)
    ranked, traced = np.split(keys, np.cumsum(num_kept)[:-1]), []
    for own, question, count in zip(ranked, questions, num_answers.tolist(), strict=True):
        own.sort()
        first = max(evidence[0], count if evidence[1] else 0)
        claimed = np.flatnonzero((own & kernels.ENTITY) == (-1 if question.claim is None else question.claim))
        traced.append(own[: max(first, int(claimed[0]) + 1)] if len(claimed) else own[:first])
    paths: Iterator[ReasoningPath] = iter(())
    if found.traces:
        asked = np.repeat(np.arange(len(batch)), list(map(len, traced)))
        paths = iter(
            backtrack(found, asked, np.concatenate(traced) & kernels.ENTITY, graph, barred_topics(batch, options))
        )
    for index, question in enumerate(questions):
        entities = tuple((ranked[index] & kernels.ENTITY).tolist())
        answers = entities[: num_answers[index]]
        yield Prediction(
            question_id=question.id,
            candidates=entities,
            scores=tuple(np.exp(-(ranked[index] >> 32) / 10.0**ROUND).tolist()),
            answers=answers,
            paths=tuple(islice(paths, len(traced[index]))),
            covered=bool(covered[index]),
            verdict=None if question.claim is None else question.claim in answers,
        )


def backtrack(
    found: Exploration, question: Int, entity: Int, graph: KnowledgeGraph, barred: tuple[Int, Int]
) -> list[ReasoningPath]:
    """Trace candidates back to a topic each, along the edge of highest attention in every step.

    Ties go to the smaller head entity, then the smaller relation; identity steps are dropped, so a topic itself has
    the empty path. ``found`` was made with ``trace=True``; ``question`` (ascending) and ``entity`` [n] are candidates,
    ``barred`` is of ``barred_topics``. Paths begin at the topic; every step has the direction in which the triple is
    stored.
    """
    paths: list[list[Step]] = [[] for _ in entity]
    place = scratch(graph.num_entities)
    for trace in reversed(found.traces):
        before, messages = trace.nodes, trace.messages
        identity = len(messages.message_class) - len(before.class_question)
        head, relation = kernels.strongest_edges(
            (graph.group_ptr, graph.edge_ptr, graph.edge_tail, graph.group_relation),
            (before.question, before.entity, before.node_class),
            (messages.first_group, messages.group_message, trace.entered),
            barred,
            place,
            (trace.attention, identity, graph.identity),
            (question, entity),
        )
        heads = before.entity[head]
        for path, start, kind, tail in zip(paths, heads.tolist(), relation.tolist(), entity.tolist(), strict=True):
            if kind < graph.identity:
                path.append(as_stored(start, kind, tail, graph.num_relations))
        entity = heads
    return [tuple(reversed(path)) for path in paths]


def as_stored(head: int, relation: int, tail: int, num_relations: int) -> Step:
    """Return the step of walking ``relation`` (0..2R-1) from ``head`` to ``tail``, as the stored triple."""
    if relation >= num_relations:
        return Step(tail, relation - num_relations, head, reverse=True)
    return Step(head, relation, tail)
