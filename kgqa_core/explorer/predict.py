"""From explored candidates to predictions: ranking, the answer set, and evidence paths.

Evidence is found by backtracking the strongest edges (EtD appendix B.3, Algorithm 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from math import log, log1p
from sys import float_info

import numpy as np
import torch

from kgqa_core.explorer.batch import Batch, Int, QuestionArrays, question_arrays
from kgqa_core.explorer.explore import Exploration, ExploreOptions, StepTrace, explore_rows, gold_mask
from kgqa_core.explorer.model import Explorer, Texts
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Prediction, Question, ReasoningPath, Step

MIN_CANDIDATES = 10  # kept per question at least
TIE = 1e-4  # relative difference of probabilities up to which candidates count as tied (evaluation.metrics)
MANY_CANDIDATES = 200  # per question: from here on, the low ones are set aside before candidates are sorted
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
        predictions = _answer_batch(found, batch, asked, graph, answer_threshold, wanted)
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
) -> Iterator[Prediction]:
    """Yield the prediction of each question; ``evidence``: for how many candidates, and for all answers as well?"""
    log_p = np.round(found.log_probability(len(batch)).cpu().numpy().astype(np.float64), ROUND)
    covered = np.bincount(found.question[gold_mask(found, batch, graph.num_entities)], minlength=len(batch)) > 0
    high = _worth_ranking(log_p, found.question, len(batch), answer_threshold)
    order = high[np.lexsort((found.entity[high], -log_p[high], found.question[high]))]  # best first, ties by entity id
    bounds = np.searchsorted(found.question[high], np.arange(len(batch) + 1))
    ranked = [order[first:end] for first, end in pairwise(bounds)]
    num_answers = [_num_within(log_p[nodes], 0, answer_threshold) for nodes in ranked]
    kept = [
        nodes[: _num_within(log_p[nodes], max(count, MIN_CANDIDATES) - 1)]
        for nodes, count in zip(ranked, num_answers, strict=True)
    ]
    traced = []
    for nodes, question, count in zip(kept, questions, num_answers, strict=True):
        num = max(evidence[0], count if evidence[1] else 0)
        claimed = np.flatnonzero(found.entity[nodes] == (-1 if question.claim is None else question.claim))
        traced.append(nodes[: max(num, int(claimed[0]) + 1)] if len(claimed) else nodes[:num])
    paths = iter(backtrack(found, np.concatenate(traced), num_relations=graph.num_relations) if found.traces else ())
    for index, question in enumerate(questions):
        answers = found.entity[kept[index][: num_answers[index]]]
        yield Prediction(
            question_id=question.id,
            candidates=tuple(found.entity[kept[index]].tolist()),
            scores=tuple(np.exp(log_p[kept[index]]).tolist()),
            answers=tuple(answers.tolist()),
            paths=tuple(islice(paths, len(traced[index]))),
            covered=bool(covered[index]),
            verdict=None if question.claim is None else bool((answers == question.claim).any()),
        )


def _worth_ranking(log_p: np.ndarray, question: Int, num_questions: int, answer_threshold: float) -> Int:
    """Return the candidates that may be kept, ascending; sorting the thousands below them is most of the cost."""
    if len(log_p) <= MANY_CANDIDATES * num_questions:
        return np.arange(len(log_p))
    high = []
    for first, end in pairwise(np.searchsorted(question, np.arange(num_questions + 1))):
        values, least = log_p[first:end], -np.inf
        if len(values) > MIN_CANDIDATES:
            best = np.partition(values, len(values) - MIN_CANDIDATES)[-MIN_CANDIDATES:]
            answer = best.max() + log(max(answer_threshold, float_info.min)) + log1p(-TIE)
            least = min(best[0], answer) + log1p(-TIE)
        high.append(first + np.flatnonzero(values >= least))
    return np.concatenate(high)


def _num_within(log_p: np.ndarray, place: int, share: float = 1.0) -> int:
    """Count the candidates that have at least ``share`` of the probability at ``place`` (or the last), ties included.

    In logarithms: far down the list, probabilities are 0 in floating point, and all would count as tied.
    """
    least = log_p[min(place, len(log_p) - 1)] + log(max(share, float_info.min)) + log1p(-TIE)
    return int(np.count_nonzero(log_p >= least))


def backtrack(found: Exploration, nodes: Int, *, num_relations: int) -> list[ReasoningPath]:
    """Trace each of the candidates ``nodes`` back to a topic, along the edge of highest attention in every step.

    Ties go to the smaller head entity, then the smaller relation; identity steps are dropped, so a topic itself has
    the empty path. ``found`` was made with ``trace=True``; ``nodes`` [n] are indices into ``found.entity``. Paths begin
    at the topic; every step has the direction in which the triple is stored.
    """
    current = np.asarray(nodes, dtype=np.int64)
    paths: list[list[Step]] = [[] for _ in current]
    tail_entity = found.entity
    for trace in reversed(found.traces):
        edge = _strongest_edges(trace, current, len(tail_entity))
        heads, relations = trace.head_entity[trace.head[edge]], trace.relation[edge]
        for path, head, relation, tail in zip(paths, heads, relations, tail_entity[current], strict=True):
            if relation < 2 * num_relations:
                path.append(as_stored(int(head), int(relation), int(tail), num_relations))
        current, tail_entity = trace.head[edge].astype(np.int64), trace.head_entity
    return [tuple(reversed(path)) for path in paths]


def as_stored(head: int, relation: int, tail: int, num_relations: int) -> Step:
    """Return the step of walking ``relation`` (0..2R-1) from ``head`` to ``tail``, as the stored triple."""
    if relation >= num_relations:
        return Step(tail, relation - num_relations, head, reverse=True)
    return Step(head, relation, tail)


def _strongest_edges(trace: StepTrace, targets: Int, num_nodes: int) -> Int:
    """Return for each target the index of the edge into it that has the highest attention."""
    wanted = np.zeros(num_nodes, dtype=bool)
    wanted[targets] = True
    edges = np.flatnonzero(wanted[trace.target])
    ranks = (trace.relation[edges], trace.head_entity[trace.head[edges]], -trace.attention[edges])
    order = edges[np.lexsort(ranks)][::-1]  # the best last: of a target's edges the last one stays
    best = np.empty(num_nodes, dtype=np.int64)
    best[trace.target[order]] = order
    return best[targets]
