"""What the dense planner makes of its vectors: probabilities of paths, and the vote of the nearest training questions.

Shape letters: B questions, P paths, n training questions, m of them near, C candidate paths, D width. All vectors have
unit length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from kgqa_core.planners.dense_files import DenseModel

Floats = npt.NDArray[np.float32]
FLOOR = 1e-3  # added to votes before their log: a path that no neighbour has is not impossible
TINY = 1e-6
NUM_NEIGHBOURS = 64  # training questions that plans are spread over


@dataclass(frozen=True, slots=True)
class View:
    """How the planner sees one question."""

    vectors: tuple[Floats, ...]  # [D] of each member
    totals: tuple[float, ...]  # log of the sum of exponentials of each member's path scores
    scores: Floats  # [P] log-linear, of the training paths
    near: npt.NDArray[np.int64]  # [m] the nearest training questions
    weights: Floats  # [m] of their votes


def log_sum(scores: Floats) -> Floats:
    """Return the logs of the sums of exponentials over the last axis."""
    high = scores.max(axis=-1)
    total: Floats = high + np.log(np.exp(scores - high[..., None]).sum(axis=-1))
    return total


def neighbour_weights(questions: Floats, bank: Floats, temperature: float) -> Floats:
    """Return the weights [B, n] of the votes of the training questions ``bank`` [n, D]: a softmax of cosines."""
    cosines: Floats = questions @ bank.T / np.float32(temperature)
    weights: Floats = np.exp(cosines - log_sum(cosines)[:, None])
    return weights


def see(model: DenseModel, questions: Sequence[Floats]) -> list[View]:
    """Return the views of a batch, whose vectors [B, D] each member of ``model`` has given.

    A path's score is log P(path) + ``neighbour_weight`` log(vote), of both the mean over the members.
    """
    settings, members = model.settings, list(zip(questions, model.members, strict=True))
    raw: list[Floats] = [(settings.scale * (own @ one.paths.T) + one.bias).astype(np.float32) for own, one in members]
    totals = [log_sum(scores) for scores in raw]
    log_probs = np.mean([scores - total[:, None] for scores, total in zip(raw, totals, strict=True)], axis=0)
    temperature = settings.neighbour_temperature
    weights = np.mean([neighbour_weights(own, one.bank, temperature) for own, one in members], axis=0)
    votes = (model.taught.targets.T @ weights.T).T
    scores = log_probs + np.float32(settings.neighbour_weight) * np.log(votes + FLOOR)
    num_near = min(NUM_NEIGHBOURS, weights.shape[1])
    near = np.argsort(-weights, axis=1, kind="stable")[:, :num_near]
    return [
        View(
            vectors=tuple(own[row] for own in questions),
            totals=tuple(float(total[row]) for total in totals),
            scores=scores[row],
            near=near[row],
            weights=weights[row, near[row]],
        )
        for row in range(len(scores))
    ]


def unseen_scores(model: DenseModel, view: View, texts: Floats) -> Floats:
    """Return the scores [C] of paths that no training question has, by the vectors [C, D] of their texts."""
    settings = model.settings
    found = np.zeros(len(texts), dtype=np.float32)
    for member, vector, total in zip(model.members, view.vectors, view.totals, strict=True):
        mapped = texts @ member.map
        cosines = (mapped @ vector) / np.maximum(np.linalg.norm(mapped, axis=1), TINY)
        found += (settings.scale * cosines - total) / len(model.members)
    return found + np.float32(settings.neighbour_weight * np.log(FLOOR) - settings.unseen_penalty)


def spread_first(probabilities: Floats, weights: Floats, rows: Any, *, num_plans: int, strength: float) -> list[int]:
    """Return the columns to propose first: a hit is any right plan, so a further one counts where the others miss.

    Each next plan is the one of the greatest probability times the share of its votes that come from neighbours none
    of whose paths is proposed yet (a greedy cover).

    Args:
        probabilities: [C] of candidate paths.
        weights: [m] of neighbours.
        rows: [m, C], 1 where a neighbour has a path.
        num_plans: to choose; fewer where there are fewer candidates.
        strength: 0: by probability alone; 1: as told.
    """
    chosen: list[int] = []
    missed = np.ones(len(weights), dtype=np.float32)  # of neighbours: is none of their paths proposed?
    votes = weights @ rows + TINY
    while len(chosen) < min(num_plans, len(probabilities)):
        share = ((weights * missed) @ rows + TINY / 2) / votes if chosen else np.ones_like(votes)
        gains = probabilities * (1 - strength + strength * share)
        gains[chosen] = -1.0
        chosen.append(int(gains.argmax()))
        missed = missed * (1 - rows[:, chosen[-1]])
    return chosen
