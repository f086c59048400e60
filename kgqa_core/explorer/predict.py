"""From explored candidates to predictions: ranking, the answer set, and evidence paths.

Evidence is found by backtracking the strongest edges (EtD appendix B.3, Algorithm 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, repeat
from math import log, log1p
from sys import float_info
from typing import Any

import numpy as np

from kgqa_core.explorer.batch import Batch, Int, question_arrays
from kgqa_core.explorer.explore import Exploration, ExploreOptions, Lessons, barred_topics, explore_rows, gold_mask
from kgqa_core.explorer.kernels import EMPTY, Arrays, scratch
from kgqa_core.explorer.model import Explorer, Texts
from kgqa_core.graph.csr import I32, I64, compiled
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Prediction, Question, ReasoningPath, Step

MIN_CANDIDATES = 10  # kept per question at least
TIE = 1e-4  # relative difference of probabilities up to which candidates count as tied (evaluation.metrics)
ENTITY = (1 << 32) - 1  # of a rank key: its low half
LOWEST = (1 << 31) - 1  # rank of a probability so small that none is told from it, or of what is no number
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
    answered: dict[int, Prediction] = {}
    linked = [index for index, question in enumerate(questions) if question.topics]
    arrays = question_arrays([questions[index] for index in linked], text_row, mask_topics=mask_topics)
    asked = Lessons(graph, arrays, texts, replace(options, trace=needs_trace))
    for rows, batch, found in explore_all(model, asked, batch_size=batch_size):
        on_batch(found, len(batch))
        own = [questions[linked[row]] for row in rows]
        wanted = (evidence_paths, evidence_of_answers)
        predictions = _answer_batch(found, batch, own, asked, answer_threshold, wanted)
        for row, prediction in zip(rows, predictions, strict=True):
            answered[linked[row]] = prediction
        progress(len(answered) + len(questions) - len(linked), len(questions))
    return [answered.get(index, Prediction(question.id, (), (), ())) for index, question in enumerate(questions)]


def explore_all(model: Explorer, asked: Lessons, *, batch_size: int = 256) -> Iterator[tuple[Int, Batch, Exploration]]:
    """Yield (rows, batch, what was found), without gradients; questions of equal text come together.

    A batch that was too large for memory is halved, and so are all after it: to try would be to walk in vain.
    """
    rows, size = np.argsort(asked.questions.text, kind="stable"), batch_size  # equal texts share state classes
    while len(rows):
        largest = 0
        for part in explore_rows(model, asked, rows[:size], at_once=size, learn=False):
            largest = max(largest, len(part[0]))
            yield part
        rows, size = rows[size:], largest


def _answer_batch(
    found: Exploration,
    batch: Batch,
    questions: Sequence[Question],
    asked: Lessons,
    answer_threshold: float,
    evidence: tuple[int, bool],
) -> Iterator[Prediction]:
    """Yield the prediction of each question; ``evidence``: for how many candidates, and for all answers as well?

    Candidates are ranked by their rounded probability, ties by entity id, and kept down to the last answer and to the
    tenth; no tie is cut.
    """
    covered = np.bincount(found.question[gold_mask(found, batch, asked.graph.num_entities)], minlength=len(batch)) > 0
    tie = log1p(-TIE)
    limits = (len(batch), log(max(answer_threshold, float_info.min)) + tie, tie, MIN_CANDIDATES, 10.0**ROUND)
    log_p = found.log_probability(len(batch)).cpu().numpy()
    keys, num_kept, num_answers = rank_keys(log_p, found.question, found.entity, limits)
    ranked, traced = np.split(keys, np.cumsum(num_kept)[:-1]), []
    for own, question, count in zip(ranked, questions, num_answers.tolist(), strict=True):
        own.sort()
        first = max(evidence[0], count if evidence[1] else 0)
        claimed = np.flatnonzero((own & ENTITY) == (-1 if question.claim is None else question.claim))
        traced.append(own[: max(first, int(claimed[0]) + 1)] if len(claimed) else own[:first])
    paths: Iterator[ReasoningPath] = iter(())
    if found.traces:
        owner, barred = np.repeat(np.arange(len(batch)), list(map(len, traced))), barred_topics(batch, asked.options)
        paths = iter(backtrack(found, owner, np.concatenate(traced) & ENTITY, asked.graph, barred))
    for index, question in enumerate(questions):
        entities, level = tuple((ranked[index] & ENTITY).tolist()), ranked[index] >> 32
        ends = np.flatnonzero(np.diff(level, append=-1)) + 1  # of what is tied: one number for all
        times = zip(np.exp(-level[ends - 1] / 10.0**ROUND).tolist(), np.diff(ends, prepend=0).tolist(), strict=True)
        answers = entities[: num_answers[index]]
        yield Prediction(
            question_id=question.id,
            candidates=entities,
            scores=tuple(chain.from_iterable(repeat(score, count) for score, count in times)),
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
        head, relation = strongest_edges(
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
                path.append(graph.step(start, kind, tail))
        entity = heads
    return [tuple(reversed(path)) for path in paths]


@compiled
def strongest_edges(
    csr: Arrays, nodes: Arrays, groups: Arrays, topics: Arrays, place: I32, weight: Arrays, targets: Arrays
) -> tuple[I64, I64]:
    """Return head (a node) and relation of the edge of highest attention into each target, as one step walked them.

    Ties go to the smaller head entity, then to the smaller relation. ``csr``: group_ptr, edge_ptr, edge_tail and
    group_relation; ``nodes``: question, entity and class before the step; ``groups``, ``topics`` and ``place`` as in
    ``walk_edges``; ``weight``: attention of each message [M], the first identity message, and the identity relation;
    ``targets``: question (ascending) and entity of nodes after the step [T].
    """
    group_ptr, edge_ptr, edge_tail, group_relation = csr
    node_question, node_entity, node_class = nodes
    first, message, entered = groups
    topic_ptr, topic_entity = topics
    attention, identity, stay = weight
    target_question, target_entity = targets
    best, relation = np.full(len(target_entity), EMPTY, np.int64), np.empty(len(target_entity), np.int64)
    same, value = np.empty(len(target_entity), np.int64), np.empty(len(target_entity), attention.dtype)
    leads, low = np.empty(stay, np.bool_), 0
    while low < len(target_entity):
        asked, high = target_question[low], low
        while high < len(target_entity) and target_question[high] == asked:
            if place[target_entity[high]] == EMPTY:
                place[target_entity[high]] = high
            same[high] = place[target_entity[high]]
            high += 1
        begin, end = np.searchsorted(node_question, asked), np.searchsorted(node_question, asked + 1)
        leads[:] = False  # relations by which something leads to a target: the reverses of its own
        for one in target_entity[low:high]:
            for group in range(group_ptr[one], group_ptr[one + 1]):
                leads[(group_relation[group] + stay // 2) % stay] = True
        for node in range(begin, end):  # staying first: what may not be entered can be stayed at
            slot = place[node_entity[node]]
            if slot >= 0:
                best[slot], relation[slot], value[slot] = node, stay, attention[identity + node_class[node]]
        place[topic_entity[topic_ptr[asked] : topic_ptr[asked + 1]]] = EMPTY
        for node in range(begin, end):
            start, head = group_ptr[node_entity[node]] - first[node], node_entity[node]
            for at in range(first[node], first[node + 1]):
                kind = group_relation[start + at]
                if not (entered[at] and leads[kind]):
                    continue
                strength = attention[message[at]]
                for position in range(edge_ptr[start + at], edge_ptr[start + at + 1]):
                    slot = place[edge_tail[position]]
                    if slot < 0:
                        continue
                    if best[slot] != EMPTY and strength <= value[slot]:
                        if strength < value[slot] or head > node_entity[best[slot]]:
                            continue
                        if head == node_entity[best[slot]] and kind >= relation[slot]:
                            continue
                    best[slot], relation[slot], value[slot] = node, kind, strength
        place[target_entity[low:high]] = EMPTY
        low = high
    return best[same], relation[same]


@compiled
def rank_keys(log_p: Any, question: I64, entity: I64, limits: Arrays) -> tuple[I64, I64, I64]:
    """Return sort keys of the candidates worth keeping, by question, and for each question how many, and answers.

    A key is minus the rounded log probability in units of ``1 / scale``, then the entity: ascending is best first.
    ``limits``: number of questions; the log of the least share of an answer of the best probability, ties in; the log
    of what still ties; candidates kept at least; scale. No tie is cut.
    """
    num_questions, least_share, tie, at_least, scale = limits
    keys = np.empty(len(log_p), np.int64)
    num_kept, num_answers = np.zeros(num_questions, np.int64), np.zeros(num_questions, np.int64)
    level = np.empty(len(log_p), np.int64)
    top = np.empty(at_least, np.int64)
    used = begin = 0
    for asked in range(num_questions):
        end, held = begin, 0
        while end < len(question) and question[end] == asked:
            value = np.int64(LOWEST)
            if -log_p[end] * scale < LOWEST:  # and a number
                value = np.int64(np.rint(-np.float64(log_p[end]) * scale))
            level[end] = value
            if held < at_least or value < top[held - 1]:  # the best few, ascending
                at = held = min(held + 1, at_least)
                at -= 1
                while at > 0 and top[at - 1] > value:
                    top[at] = top[at - 1]
                    at -= 1
                top[at] = value
            end += 1
        if end == begin or top[0] == LOWEST:  # a best one is never so small: it is no number
            begin = end
            continue
        bound, worst = -top[0] / scale + least_share, top[0]
        for node in range(begin, end):
            if -level[node] / scale >= bound:
                num_answers[asked] += 1
                worst = max(worst, level[node])
        last = worst if num_answers[asked] >= at_least else top[held - 1]
        bound = -last / scale + tie
        for node in range(begin, end):
            if -level[node] / scale >= bound:
                keys[used] = (level[node] << 32) | entity[node]
                used += 1
                num_kept[asked] += 1
        begin = end
    return keys[:used], num_kept, num_answers
