"""From explored candidates to predictions, and the answer threshold that is chosen on dev."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from math import log, log1p
from sys import float_info

import numpy as np
import numpy.typing as npt
import torch

from kgqa_core.explorer.backtrack import backtrack
from kgqa_core.explorer.batch import Batch, QuestionArrays, explorer_golds, question_arrays
from kgqa_core.explorer.explore import Exploration, ExploreOptions, explore
from kgqa_core.explorer.frontier import Int
from kgqa_core.explorer.model import Explorer
from kgqa_core.explorer.train import Texts, gold_mask
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Prediction, Question

MIN_CANDIDATES = 10  # kept per question at least
TIE = 1e-4  # relative difference of probabilities up to which candidates count as tied (evaluation.metrics)
ROUND = 5  # decimals of a log probability: equal states summed in another order must tie
THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def predict(
    model: Explorer,
    graph: KnowledgeGraph,
    questions: Sequence[Question],
    *,
    texts: Texts,
    text_row: dict[str, int],
    options: ExploreOptions,
    answer_threshold: float,
    evidence_paths: int = 3,
    batch_size: int = 64,
    progress: Callable[[int, int], None] = lambda done, total: None,
    on_batch: Callable[[Exploration, int], None] = lambda found, num_questions: None,
) -> list[Prediction]:
    """Answer every question.

    Args:
        model: a trained explorer.
        graph: the knowledge graph.
        questions: linked questions; those without topics are answered with an abstention.
        texts: encodings of the masked texts and relations.
        text_row: row of each masked text in ``texts.questions``.
        options: how to walk; ``trace`` is set here, as evidence needs it.
        answer_threshold: a candidate is an answer from this share of the best probability on.
        evidence_paths: candidates per question that get an evidence path (a claim among those kept gets one always).
        batch_size: questions per batch.
        progress: called with (done, total).
        on_batch: called with what was found for a batch, and its number of questions.

    Returns:
        one prediction per question, in the order of the questions.
    """
    needs_trace = evidence_paths > 0 or any(question.claim is not None for question in questions)
    options = replace(options, trace=needs_trace)
    answered: dict[int, Prediction] = {}
    linked = [index for index, question in enumerate(questions) if question.topics]
    arrays = question_arrays([questions[index] for index in linked], text_row)
    for rows, batch, found in _explore_all(model, graph, arrays, texts=texts, options=options, batch_size=batch_size):
        on_batch(found, len(batch))
        asked = [questions[linked[row]] for row in rows]
        predictions = _answer_batch(found, batch, asked, graph, answer_threshold, evidence_paths)
        for row, prediction in zip(rows, predictions, strict=True):
            answered[linked[row]] = prediction
        progress(len(answered) + len(questions) - len(linked), len(questions))
    return [
        answered.get(index, Prediction(question.id, (), (), (), abstained=True))
        for index, question in enumerate(questions)
    ]


def choose_threshold(
    model: Explorer,
    graph: KnowledgeGraph,
    questions: Sequence[Question],
    *,
    texts: Texts,
    text_row: dict[str, int],
    options: ExploreOptions,
) -> tuple[float, dict[float, float]]:
    """Return the answer threshold of highest mean F1 on dev questions, and the F1 (percent) of every threshold tried.

    Of thresholds within 0.01 points of the best, the one nearest 0.5 is taken: it is the furthest from both mistakes.
    """
    golden = [question for question in questions if question.answers and question.topics]
    if not golden:
        return 0.5, {}
    arrays = question_arrays(golden, text_row)
    totals = np.zeros(len(THRESHOLDS))
    for _, batch, found in _explore_all(model, graph, arrays, texts=texts, options=options):
        share, gold = _share_of_best(found, len(batch)), gold_mask(found, batch, graph.num_entities)
        num_golds = np.bincount(batch.gold_question, minlength=len(batch))
        for index, threshold in enumerate(THRESHOLDS):
            taken = share >= threshold * (1 - TIE)
            right = np.bincount(found.question[taken & gold], minlength=len(batch))
            num_taken = np.bincount(found.question[taken], minlength=len(batch))
            totals[index] += (2 * right / (num_taken + num_golds)).sum()
    f1 = {threshold: float(100.0 * total / len(golden)) for threshold, total in zip(THRESHOLDS, totals, strict=True)}
    good = [threshold for threshold in THRESHOLDS if f1[threshold] >= max(f1.values()) - 0.01]
    return min(good, key=lambda threshold: abs(threshold - 0.5)), f1


def top_hits(
    model: Explorer,
    graph: KnowledgeGraph,
    questions: Sequence[Question],
    *,
    texts: Texts,
    text_row: dict[str, int],
    options: ExploreOptions,
) -> tuple[float, float]:
    """Return Hits@1 in expectation over ties, and coverage, in percent, of questions with golds; to watch training."""
    golden = [question for question in questions if question.topics and explorer_golds(question)]
    arrays = question_arrays(golden, text_row)
    hits = covered = 0.0
    for _, batch, found in _explore_all(model, graph, arrays, texts=texts, options=options):
        top = _share_of_best(found, len(batch)) >= 1 - TIE
        gold = gold_mask(found, batch, graph.num_entities)
        num_tied = np.bincount(found.question[top], minlength=len(batch))
        hits += (np.bincount(found.question[top & gold], minlength=len(batch)) / num_tied).sum()
        covered += np.count_nonzero(np.bincount(found.question[gold], minlength=len(batch)))
    return 100.0 * hits / max(len(golden), 1), 100.0 * covered / max(len(golden), 1)


def _explore_all(
    model: Explorer,
    graph: KnowledgeGraph,
    arrays: QuestionArrays,
    *,
    texts: Texts,
    options: ExploreOptions,
    batch_size: int = 64,
) -> Iterator[tuple[Int, Batch, Exploration]]:
    """Yield (rows, batch, what was found), without gradients."""
    was_training = model.training
    model.eval()
    for rows, batch in arrays.in_order(batch_size):
        with torch.no_grad():  # not around the yield: it would hold for whoever iterates
            found = explore(
                model, graph, batch, question_vectors=texts.questions, relation_vectors=texts.relations, options=options
            )
        yield rows, batch, found
    model.train(was_training)


def _share_of_best(found: Exploration, num_questions: int) -> npt.NDArray[np.floating]:
    """Return [N] the probability of each candidate as a share of its question's best."""
    log_p = found.log_probability(num_questions).cpu().numpy()
    best = np.full(num_questions, -np.inf)
    np.maximum.at(best, found.question, log_p)
    share: npt.NDArray[np.floating] = np.exp(log_p - best[found.question])
    return share


def _answer_batch(
    found: Exploration,
    batch: Batch,
    questions: Sequence[Question],
    graph: KnowledgeGraph,
    answer_threshold: float,
    evidence_paths: int,
) -> Iterator[Prediction]:
    log_p = np.round(found.log_probability(len(batch)).cpu().numpy().astype(np.float64), ROUND)
    gold = gold_mask(found, batch, graph.num_entities)
    order = np.lexsort((found.entity, -log_p, found.question))  # by question, best first, ties by entity id
    bounds = np.searchsorted(found.question, np.arange(len(batch) + 1))
    ranked = [order[first:end] for first, end in pairwise(bounds)]
    num_answers = [_num_within(log_p[nodes], 0, answer_threshold) for nodes in ranked]
    kept = [
        nodes[: _num_within(log_p[nodes], max(count, MIN_CANDIDATES) - 1)]
        for nodes, count in zip(ranked, num_answers, strict=True)
    ]
    evidence = [
        _evidence_nodes(found, nodes, question, evidence_paths) for nodes, question in zip(kept, questions, strict=True)
    ]
    paths = iter(backtrack(found, np.concatenate(evidence), num_relations=graph.num_relations) if found.traces else ())
    for index, question in enumerate(questions):
        answers = found.entity[kept[index][: num_answers[index]]]
        yield Prediction(
            question_id=question.id,
            candidates=tuple(found.entity[kept[index]].tolist()),
            scores=tuple(np.exp(log_p[kept[index]]).tolist()),
            answers=tuple(answers.tolist()),
            paths=tuple(islice(paths, len(evidence[index]))),
            covered=bool(gold[ranked[index]].any()),
            verdict=None if question.claim is None else bool((answers == question.claim).any()),
        )


def _num_within(log_p: np.ndarray, place: int, share: float = 1.0) -> int:
    """Count the candidates that have at least ``share`` of the probability at ``place`` (or the last), ties included.

    In logarithms: far down the list, probabilities are 0 in floating point, and all would count as tied.
    """
    least = log_p[min(place, len(log_p) - 1)] + log(max(share, float_info.min)) + log1p(-TIE)
    return int(np.count_nonzero(log_p >= least))


def _evidence_nodes(found: Exploration, nodes: Int, question: Question, count: int) -> Int:
    """The first ``count`` candidates, on to the claim of a true/false question where it is among those kept."""
    claimed = np.flatnonzero(found.entity[nodes] == (-1 if question.claim is None else question.claim))
    return nodes[: max(count, int(claimed[0]) + 1)] if len(claimed) else nodes[:count]
