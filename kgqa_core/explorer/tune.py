"""What is looked at and chosen on dev questions: figures after an epoch, and the two thresholds of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kgqa_core.explorer.batch import QuestionArrays, explorer_golds, question_arrays
from kgqa_core.explorer.explore import Exploration, ExploreOptions
from kgqa_core.explorer.frontier import Bool
from kgqa_core.explorer.loss import gold_mask
from kgqa_core.explorer.model import Explorer
from kgqa_core.explorer.predict import TIE, explore_all
from kgqa_core.explorer.texts import Texts
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Question

ANSWER_THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ATTENTION_THRESHOLDS = (1e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)


@dataclass(frozen=True)
class DevSet:
    """Dev questions that have a gold to find."""

    graph: KnowledgeGraph
    questions: QuestionArrays
    has_answers: Bool  # [Q] false for a claim whose real answers are unknown: it counts for Hits@1, not for F1
    texts: Texts

    def __len__(self) -> int:
        return len(self.questions)


@dataclass(frozen=True, slots=True)
class DevFigures:
    """How an explorer does on dev, in percent."""

    hits1: float  # in expectation over ties
    coverage: float  # questions with a gold among their candidates
    f1: dict[float, float]  # answer threshold -> mean F1; empty without questions to measure it on

    @property
    def best_f1(self) -> float:
        """The F1 of the best answer threshold."""
        return max(self.f1.values(), default=0.0)

    @property
    def answer_threshold(self) -> float:
        """The answer threshold of highest F1; of those within 0.01 points the one nearest to a half."""
        good = [threshold for threshold, value in self.f1.items() if value >= self.best_f1 - 0.01]
        return min(good, key=lambda threshold: abs(threshold - 0.5), default=0.5)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a checkpoint is used with."""

    attention: float
    answer: float
    figures: DevFigures  # with both


def dev_set(
    graph: KnowledgeGraph,
    questions: Sequence[Question],
    texts: Texts,
    text_row: dict[str, int],
    *,
    mask_topics: bool = True,
) -> DevSet:
    """Return the questions with a topic and a gold; see ``batch.question_arrays``."""
    golden = [question for question in questions if question.topics and explorer_golds(question)]
    has_answers = np.array([bool(question.answers) for question in golden], dtype=bool)
    return DevSet(graph, question_arrays(golden, text_row, mask_topics=mask_topics), has_answers, texts)


def measure(model: Explorer, dev: DevSet, options: ExploreOptions) -> DevFigures:
    """Return the figures of a model on dev questions."""
    hits = covered = 0.0
    totals = np.zeros(len(ANSWER_THRESHOLDS))
    for rows, batch, found in explore_all(model, dev.graph, dev.questions, texts=dev.texts, options=options):
        share, gold = share_of_best(found, len(batch)), gold_mask(found, batch, dev.graph.num_entities)
        top = share >= 1 - TIE
        num_tied = np.bincount(found.question[top], minlength=len(batch))
        hits += (np.bincount(found.question[top & gold], minlength=len(batch)) / num_tied).sum()
        covered += np.count_nonzero(np.bincount(found.question[gold], minlength=len(batch)))
        num_golds = np.bincount(batch.gold_question, minlength=len(batch))
        for index, threshold in enumerate(ANSWER_THRESHOLDS):
            taken = share >= threshold * (1 - TIE)
            right = np.bincount(found.question[taken & gold], minlength=len(batch))
            num_taken = np.bincount(found.question[taken], minlength=len(batch))
            totals[index] += (2 * right / (num_taken + num_golds))[dev.has_answers[rows]].sum()
    num_answered = np.count_nonzero(dev.has_answers)
    f1 = {} if not num_answered else dict(zip(ANSWER_THRESHOLDS, (100.0 * totals / num_answered).tolist(), strict=True))
    return DevFigures(100.0 * hits / max(len(dev), 1), 100.0 * covered / max(len(dev), 1), f1)


def choose_thresholds(model: Explorer, dev: DevSet, options: ExploreOptions) -> Thresholds:
    """Return the largest attention threshold that costs nothing on dev, and the answer threshold to use with it.

    Attention is not calibrated, so what is lossless differs from one checkpoint to the next. "Nothing" is measured in
    Hits@1 + F1 against the best of all thresholds, none included: an explorer that learned while pruning can be better
    with a threshold than without, and then the full walk is too low a bar. Without dev questions nothing is cut.
    """
    tried = {0.0: measure(model, dev, replace(options, attention_threshold=0.0))}
    if len(dev):
        for threshold in ATTENTION_THRESHOLDS:
            tried[threshold] = measure(model, dev, replace(options, attention_threshold=threshold))
    best = max(figures.hits1 + figures.best_f1 for figures in tried.values())
    chosen = max(at for at, figures in tried.items() if figures.hits1 + figures.best_f1 >= best)
    return Thresholds(chosen, tried[chosen].answer_threshold, tried[chosen])


def share_of_best(found: Exploration, num_questions: int) -> npt.NDArray[np.floating]:
    """Return [N] the probability of each candidate as a share of its question's best."""
    log_p = found.log_probability(num_questions).cpu().numpy()
    best = np.full(num_questions, -np.inf)
    np.maximum.at(best, found.question, log_p)
    share: npt.NDArray[np.floating] = np.exp(log_p - best[found.question])
    return share
