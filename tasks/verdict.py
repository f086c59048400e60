"""May a challenger take the champion's place? Their answers to the same questions decide, on the whole and by slices.

It is refused where it is significantly worse in Hits@1 or F1 (one-sided paired randomisation tests at 5 %, by Holm's
method over the two of all questions, and apart from them over those of slices: many slices must not hide a loss on the
whole), and where it lost more than a margin, proven or not: small losses add up over retrainings.
``python -m benchmarks gate`` shows by simulation how often an equal challenger passes, and a worse one is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kgqa_core.evaluation.compare import ALPHA, holm, randomisation_test, scopes_of
from kgqa_core.evaluation.metrics import Floats, Mask, group_by
from kgqa_core.evaluation.runs import EvaluatedRun, require_comparable

JUDGED = ("hits1", "f1")
LOSS = 3.0  # points: a challenger that is worse by so much is to be refused nine times in ten
SPREADS = 1.6  # standard errors from no loss to the margin, and from there to LOSS: by simulation
CHANCE_SPREADS = 3.0  # standard errors: one of many small slices loses a slice's margin by chance alone


@dataclass(frozen=True, slots=True)
class Judged:
    """One metric over all questions, or a slice of them; in percent."""

    where: str  # "all", "hops 2", "answers 5-9", "relation directed_by"
    n: int
    metric: str
    champion: float
    challenger: float
    difference: float  # challenger - champion
    allowed: float  # what it may lose, proven or not
    p: float  # one-sided, that it is no worse; corrected for the number of rows of its kind: all, or slices
    fault: str  # why this refuses the challenger; empty where it does not


def judge_challenger(
    challenger: EvaluatedRun,
    champion: EvaluatedRun,
    *,
    margin: float,
    slice_margin: float,
    min_slice: int,
    relations: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[Judged], int]:
    """Return the rows, the first two over all questions, and how many questions it takes (``num_needed``).

    Margins are in points. Slices of less than ``min_slice`` questions are left out. ``relations``: question id -> its
    relation group; a question without one is in no such slice. Raises ``InputError`` where questions or graphs differ.
    """
    require_comparable([challenger, champion])
    ours, theirs = challenger.scores.values, champion.scores.values
    found = [
        (where, chosen, metric, ours[metric][chosen] - theirs[metric][chosen])
        for where, chosen in slices_of(challenger, champion, relations)
        if where == "all" or chosen.sum() >= min_slice
        for metric in JUDGED
    ]
    alone, rows = [p_no_worse(apart) for *_, apart in found], []
    corrected = [*holm(alone[: len(JUDGED)]), *holm(alone[len(JUDGED) :])]
    for (where, chosen, metric, apart), p in zip(found, corrected, strict=True):
        mean, fault = float(apart.mean()), ""
        by_chance = CHANCE_SPREADS * float(apart.std()) / len(apart) ** 0.5
        allowed = margin if where == "all" else max(slice_margin, by_chance)
        if p < ALPHA:
            fault = f"{metric} over {where} is significantly worse: {mean:+.2f} points, p {p:.4f}"
        elif mean < -allowed:
            fault = f"{metric} over {where} lost {-mean:.2f} points; {allowed:.3g} are allowed"
        means = float(theirs[metric][chosen].mean()), float(ours[metric][chosen].mean())
        rows.append(Judged(where, len(apart), metric, *means, mean, allowed, p, fault))
    return rows, max(num_needed(apart, margin) for *_, apart in found[: len(JUDGED)])


def slices_of(
    challenger: EvaluatedRun, champion: EvaluatedRun, relations: Mapping[str, str]
) -> Iterator[tuple[str, Mask]]:
    """Yield which questions [B] are judged together: all, by hops, by answers, and by relation group."""
    for by, bucket, chosen in scopes_of([challenger, champion]):
        yield "all" if by == "all" else f"{by} {bucket}", chosen
    groups = [relations.get(question, "") for question in challenger.scores.question_ids]
    for group, chosen in group_by(groups, sorted(set(groups) - {""})).items():
        yield f"relation {group}", chosen


def p_no_worse(differences: Floats) -> float:
    """Return the one-sided p of paired ``differences`` [B]: how often chance alone is as low as their mean."""
    p = randomisation_test(differences)  # random signs are as often down as up
    return p / 2 if differences.sum() < 0 else 1 - p / 2


def num_needed(differences: Floats, margin: float) -> int:
    """Return how many questions, that differ as these [B] do, tell no loss from LOSS, nine times in ten each."""
    return int((differences.std() * SPREADS / min(margin, LOSS - margin)) ** 2) + 1
