"""Explorer and planner fused: which of a few answer sets, each with evidence of its own, fits both best.

The options of a question are the explorer's answer set and what each plan reaches. An option's score is

    (1 - weight) * agreement with the explorer + weight * the plan's probability among the question's plans

so that weight 0 is the explorer alone and 1 the planner alone. Agreement is the F1 of the option with what the explorer
answers. Where the explorer and the first plan disagree, a language model may say how probable it thinks the plans, and
is believed in the planner's place. The weight, and whether the model's word is worth its calls, are chosen on dev.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from kgqa_core.evaluation.metrics import score_predictions, score_sets
from kgqa_core.types import Prediction, Question

WEIGHTS = tuple(tenth / 10 for tenth in range(11))
WORTH = 0.01  # points of the objective that a language model has to add to be asked

DecidedBy = Literal["planner", "lm"]


@dataclass(frozen=True, slots=True)
class Option:
    """One possible answer set."""

    entities: tuple[int, ...]
    plans: tuple[int, ...] = ()  # the places of those that reach it; none: the explorer's alone
    explored: bool = False  # is it the explorer's?

    def probability(self, weights: Sequence[float]) -> float:
        """Return the probability of its plans."""
        return sum(weights[place] for place in self.plans)


@dataclass(frozen=True, slots=True)
class Fusion:
    """How much the plans count, and who says how probable they are where explorer and planner disagree."""

    weight: float  # 0..1
    decided_by: DecidedBy = "planner"

    def choose(self, explored: Prediction, options: Sequence[Option], weights: Sequence[float]) -> Option:
        """Return the option of the highest score, of equals the first; ``weights`` are the plans' probabilities."""
        scores = [
            (1 - self.weight) * agreement(explored.answers, option.entities) + self.weight * option.probability(weights)
            for option in options
        ]
        return options[int(np.argmax(scores))]


@dataclass(frozen=True, slots=True)
class DevPoint:
    """What one way of answering gives on dev."""

    hits1: float  # percent
    f1: float  # percent
    asked: float = 0.0  # share of the questions with a call of a language model, 0..1

    @property
    def objective(self) -> float:
        """What is maximised: the mean of Hits@1 and F1."""
        return (self.hits1 + self.f1) / 2


@dataclass(frozen=True, slots=True)
class DevQuestion:
    """One dev question with all that is fused."""

    question: Question
    explored: Prediction
    options: tuple[Option, ...]
    weights: tuple[float, ...]  # of the planner
    lm_weights: tuple[float, ...] | None = None  # of the language model; None: not asked, or the run has none


def membership(explored: Prediction) -> dict[int, float]:
    """Return each candidate's probability as a share of the best."""
    best = explored.scores[0] if explored.scores and explored.scores[0] > 0 else 1.0
    return {entity: score / best for entity, score in zip(explored.candidates, explored.scores, strict=True)}


def agreement(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the F1 of two sets of entities."""
    return score_sets(frozenset(first), frozenset(second))[2]


def options_of(explored: Prediction, reached: Sequence[Sequence[int]]) -> tuple[Option, ...]:
    """Return the explorer's set, then what each plan reaches; equal sets are one option, empty ones none."""
    found: dict[frozenset[int], Option] = {}
    if explored.answers:
        found[frozenset(explored.answers)] = Option(explored.answers, explored=True)
    for place, entities in enumerate(reached):
        if key := frozenset(entities):
            before = found.get(key, Option(tuple(entities)))
            found[key] = replace(before, plans=(*before.plans, place))
    return tuple(found.values())


def disagree(options: Sequence[Option]) -> bool:
    """Say whether the first plan that reaches anything does not reach what the explorer answers."""
    first = min((place for option in options for place in option.plans), default=None)
    return first is not None and not any(option.explored and first in option.plans for option in options)


def fuse(
    question: Question, explored: Prediction, options: Sequence[Option], weights: Sequence[float], fusion: Fusion
) -> tuple[Prediction, Option | None]:
    """Return the fused prediction without evidence, and the option it took; None where there is none."""
    if not options:
        return explored, None
    chosen = fusion.choose(explored, options, weights)
    candidates, scores = ranked(explored, chosen)
    golds = set(question.answers)
    prediction = Prediction(
        question.id,
        candidates,
        scores,
        chosen.entities,
        covered=explored.covered or any(entity in golds for entity in candidates),
        verdict=question.claim in chosen.entities if question.claim is not None else None,
    )
    return prediction, chosen


def ranked(explored: Prediction, chosen: Option) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the candidates with the chosen ones first, each part by the explorer's probability, ties kept.

    No one else ties with a chosen one, be it unknown to the explorer: scores are 2/3 to 1, and 0 to 1/3.
    """
    side, taken = membership(explored), set(chosen.entities)
    order = sorted(chosen.entities, key=lambda entity: (-side.get(entity, 0.0), entity))
    rest = [entity for entity in explored.candidates if entity not in taken]
    scores = [(2 + side.get(entity, 0.0)) / 3 for entity in order] + [side[entity] / 3 for entity in rest]
    return (*order, *rest), tuple(scores)


def choose_fusion(asked: Sequence[DevQuestion]) -> tuple[Fusion, list[tuple[Fusion, DevPoint]]]:
    """Return the best fusion on dev, and all that were tried; the model decides only where that is worth its calls."""
    tried = [(fusion, _on_dev(asked, fusion)) for fusion in _fusions(asked)]
    best = {
        who: max((one for one in tried if one[0].decided_by == who), key=lambda one: one[1].objective, default=None)
        for who in ("planner", "lm")
    }
    planner, lm = best["planner"], best["lm"]
    assert planner is not None
    if lm is not None and lm[1].objective > planner[1].objective + WORTH:
        return lm[0], tried
    return planner[0], tried


def _fusions(asked: Sequence[DevQuestion]) -> list[Fusion]:
    has_lm = any(one.lm_weights is not None for one in asked)
    deciders: tuple[DecidedBy, ...] = ("planner", "lm") if has_lm else ("planner",)
    return [Fusion(weight, who) for who in deciders for weight in WEIGHTS]


def _on_dev(asked: Sequence[DevQuestion], fusion: Fusion) -> DevPoint:
    predictions, num_asked = [], 0
    for one in asked:
        use_lm = fusion.decided_by == "lm" and one.lm_weights is not None
        weights = one.lm_weights if use_lm and one.lm_weights is not None else one.weights
        num_asked += use_lm
        predictions.append(fuse(one.question, one.explored, one.options, weights, fusion)[0])
    return judge([one.question for one in asked], predictions, num_asked / max(1, len(asked)))


def judge(questions: Sequence[Question], predictions: Sequence[Prediction], asked: float = 0.0) -> DevPoint:
    """Return the figures of some predictions."""
    figures = score_predictions(questions, predictions).summary()
    return DevPoint(figures["hits1"], figures["f1"], asked)
