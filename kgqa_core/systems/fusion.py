"""Explorer and planner fused: which of a few answer sets, each with evidence of its own, fits both best.

The options of a question are the explorer's answer set and what each plan reaches. An option's score is

    (1 - weight) * agreement with the explorer + weight * the plan's probability among the question's plans

so that weight 0 is the explorer alone and 1 the planner alone. Agreement is F1 with fuzzy membership: a candidate
belongs to the explorer's side as far as its probability is that of the best. A plan costs a call of a language model,
so plans are asked for only where the explorer is in doubt: where its answers stand out less than a limit. Weight and
limit are chosen on dev, as whatever is tuned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kgqa_core.evaluation.metrics import score_predictions
from kgqa_core.types import Prediction, Question

WEIGHTS = tuple(tenth / 10 for tenth in range(11))
QUANTILES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)  # of doubt on dev: limits that are tried
ALWAYS = 1.1  # nothing stands out so far
WORTH = 0.01  # points of the objective below the best that fewer calls are worth


@dataclass(frozen=True, slots=True)
class Option:
    """One possible answer set."""

    entities: tuple[int, ...]
    probability: float = 0.0  # of its plan among the question's plans; 0 of the explorer's own set
    plan: int | None = None  # its place among the plans; None: the explorer's own


@dataclass(frozen=True, slots=True)
class Fusion:
    """How much the planner counts, and when it is asked."""

    weight: float  # 0..1
    stand_out: float  # plans are asked for where the explorer's answers stand out less; 0: never, ALWAYS: always

    def is_in_doubt(self, explored: Prediction) -> bool:
        """Say whether plans are worth a call."""
        return stands_out(explored) < self.stand_out

    def choose(self, explored: Prediction, options: Sequence[Option]) -> Option:
        """Return the option of the highest score; of equals the first."""
        side = membership(explored)
        scores = [
            (1 - self.weight) * agreement(side, option.entities) + self.weight * option.probability
            for option in options
        ]
        return options[int(np.argmax(scores))]


@dataclass(frozen=True, slots=True)
class DevPoint:
    """What one fusion gives on dev."""

    weight: float
    stand_out: float
    hits1: float
    f1: float
    asked: float  # share of the questions, 0..1

    @property
    def objective(self) -> float:
        """What is maximised: the mean of Hits@1 and F1."""
        return (self.hits1 + self.f1) / 2


def membership(explored: Prediction) -> dict[int, float]:
    """Return each candidate's probability as a share of the best."""
    best = explored.scores[0] if explored.scores and explored.scores[0] > 0 else 1.0
    return {entity: score / best for entity, score in zip(explored.candidates, explored.scores, strict=True)}


def stands_out(explored: Prediction) -> float:
    """Return by how much the least of the answers is above the best of the others, as a share of the best: 0..1."""
    side, answers = membership(explored), set(explored.answers)
    least = min((side[entity] for entity in answers if entity in side), default=0.0)
    return max(0.0, least - max((value for entity, value in side.items() if entity not in answers), default=0.0))


def agreement(side: Mapping[int, float], entities: Sequence[int]) -> float:
    """Return the F1 of a set with a fuzzy one: twice the shared membership by the sum of both sizes."""
    size = len(entities) + sum(side.values())
    return 2 * sum(side.get(entity, 0.0) for entity in entities) / size if size else 0.0


def options_of(explored: Prediction, reached: Sequence[Sequence[int]], weights: Sequence[float]) -> list[Option]:
    """Return the explorer's set, then what each plan reaches, those of equal sets together and empty ones left out."""
    found: dict[frozenset[int], Option] = {}
    if explored.answers:
        found[frozenset(explored.answers)] = Option(explored.answers)
    for place, (entities, weight) in enumerate(zip(reached, weights, strict=True)):
        key = frozenset(entities)
        if key:
            before = found.get(key, Option(tuple(entities), plan=place))
            plan = place if before.plan is None else before.plan
            found[key] = Option(before.entities, before.probability + weight, plan)
    return list(found.values())


def ranked(explored: Prediction, chosen: Option) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the candidates with the chosen ones first, each part by the explorer's probability, ties kept."""
    side, taken = membership(explored), set(chosen.entities)
    order = sorted(chosen.entities, key=lambda entity: (-side.get(entity, 0.0), entity))
    rest = [entity for entity in explored.candidates if entity not in taken]
    scores = [(1 + side.get(entity, 0.0)) / 2 for entity in order] + [side[entity] / 2 for entity in rest]
    return (*order, *rest), tuple(scores)


def fuse(
    question: Question, explored: Prediction, options: Sequence[Option], fusion: Fusion
) -> tuple[Prediction, Option | None]:
    """Return the fused prediction without evidence, and the option it took; None where there is none."""
    if not options:
        return explored, None
    chosen = fusion.choose(explored, options)
    candidates, scores = ranked(explored, chosen)
    verdict = question.claim in chosen.entities if question.claim is not None else None
    golds = set(question.answers)
    covered = explored.covered or any(entity in golds for entity in candidates)
    return Prediction(question.id, candidates, scores, chosen.entities, covered=covered, verdict=verdict), chosen


def choose_fusion(
    questions: Sequence[Question], explored: Sequence[Prediction], options: Sequence[Sequence[Option]]
) -> tuple[Fusion, list[DevPoint]]:
    """Return the best fusion on these (dev) questions, and all points tried, the parts alone among them.

    ``options`` are those with all plans. Of fusions within ``WORTH`` of the best, the one that asks least is taken.
    """
    doubts = np.array([stands_out(one) for one in explored])
    limits = sorted({0.0, *np.quantile(doubts, QUANTILES[:-1]).tolist(), ALWAYS})
    unasked = _question_scores(questions, explored)  # the explorer's own set is then the only option
    points = []
    for weight in WEIGHTS:
        fusion = Fusion(weight, ALWAYS)
        fused = [fuse(*of_one, fusion)[0] for of_one in zip(questions, explored, options, strict=True)]
        asked = _question_scores(questions, fused)
        for limit in limits:
            doubted = doubts < limit
            hits1, f1 = np.where(doubted, asked, unasked).mean(axis=1).tolist()
            points.append(DevPoint(weight, float(limit), hits1, f1, float(doubted.mean())))
    best = max(point.objective for point in points)
    chosen = min((point for point in points if point.objective >= best - WORTH), key=lambda p: (p.asked, -p.objective))
    return Fusion(chosen.weight, chosen.stand_out), points


def _question_scores(questions: Sequence[Question], predictions: Sequence[Prediction]) -> npt.NDArray[np.float64]:
    """Return Hits@1 and F1 of each question [2, B]."""
    values = score_predictions(questions, predictions).values
    return np.stack([values["hits1"], values["f1"]])


def parts_on_dev(points: Sequence[DevPoint], chosen: Fusion) -> dict[str, DevPoint]:
    """Return the points of the explorer alone, of the planner alone and of the fusion that was chosen."""
    by_fusion = {(point.weight, point.stand_out): point for point in points}
    return {
        "explorer": by_fusion[0.0, 0.0],
        "planner": by_fusion[1.0, ALWAYS],
        "ours": by_fusion[chosen.weight, chosen.stand_out],
    }
