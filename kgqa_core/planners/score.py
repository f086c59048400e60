"""How plans are scored: a hit is a proposed path that equals one of the question's paths.

hit@k, in percent, over the questions that have a path: is one of the first k plans right? ``valid``, in percent of
all plans proposed, also for questions without paths: can the plan be followed (around the topic where there is a graph;
else: is it made of known relations)?
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kgqa_core.evaluation.intervals import bootstrap_bounds, interval_names
from kgqa_core.graph.label_paths import unsigned
from kgqa_core.planners.types import LabelPath, Plan, PlanQuestion

CUTOFFS = (1, 3)
IsValid = Callable[[PlanQuestion, LabelPath], bool]


@dataclass(frozen=True, slots=True)
class PlanScores:
    """Plans of many questions beside the paths that count as right."""

    question_ids: tuple[str, ...]  # those that have a path
    ranks: npt.NDArray[np.int64]  # [n], from 1: of the first right plan; 0: none is
    num_without_paths: int  # questions that cannot be scored
    num_plans: int  # of all questions
    num_valid: int

    def hits(self, k: int) -> npt.NDArray[np.bool_]:
        """Return [n]: is one of the first ``k`` plans right?"""
        return (self.ranks >= 1) & (self.ranks <= k)

    def summary(self) -> dict[str, float]:
        """Return n, n_without_paths, hit@1, hit@3 and valid; zeros where there is nothing to count."""
        hits = {f"hit@{k}": 100 * float(self.hits(k).mean()) if len(self.ranks) else 0.0 for k in CUTOFFS}
        valid = 100 * self.num_valid / self.num_plans if self.num_plans else 0.0
        return {"n": len(self.ranks), "n_without_paths": self.num_without_paths, **hits, "valid": valid}

    def intervals(self) -> dict[str, float]:
        """Return the bounds of hit@1 and hit@3 (``hit@1.low``, ``hit@1.high``), by bootstrap over the questions."""
        bounds = bootstrap_bounds(np.stack([100.0 * self.hits(k) for k in CUTOFFS], axis=1))
        figures: dict[str, float] = {}
        for place, k in enumerate(CUTOFFS):
            figures |= dict(zip(interval_names(f"hit@{k}"), bounds[:, place].tolist(), strict=True))
        return figures


def score_plans(
    questions: Sequence[PlanQuestion],
    plans: Sequence[Sequence[Plan]],
    *,
    signed: bool = False,
    is_valid: IsValid | None = None,
) -> PlanScores:
    """Score the plans of each question, best first.

    Args:
        questions: with the paths that count as right.
        plans: as many lists as questions.
        signed: do directions count? They do not where the questions' file has none.
        is_valid: what makes a plan valid; None: every plan is.

    Raises:
        ValueError: ``plans`` are not as many as ``questions``.
    """
    ids, ranks, num_valid = [], [], 0
    for question, proposed in zip(questions, plans, strict=True):
        num_valid += sum(is_valid is None or is_valid(question, plan.path) for plan in proposed)
        if question.paths:
            right = {path if signed else unsigned(path) for path in question.paths}
            found = [(plan.path if signed else unsigned(plan.path)) in right for plan in proposed]
            ids.append(question.id)
            ranks.append(found.index(True) + 1 if True in found else 0)
    return PlanScores(
        question_ids=tuple(ids),
        ranks=np.array(ranks, dtype=np.int64),
        num_without_paths=len(questions) - len(ids),
        num_plans=sum(map(len, plans)),
        num_valid=num_valid,
    )


def made_of(relations: Collection[str]) -> IsValid:
    """Return what makes a plan valid where there is no graph: all its labels are in ``relations``."""
    known = frozenset(relations)
    return lambda _, path: all(label in known for label in unsigned(path))


def as_plans(paths: Sequence[LabelPath]) -> list[Plan]:
    """Return ranked paths that came without probabilities as plans, each half as probable as the one before."""
    return [Plan(path, -(rank + 1) * float(np.log(2))) for rank, path in enumerate(paths)]
