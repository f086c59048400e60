"""The metrics of the published RoG evaluator (as used by GNN-RAG), under their own names and with their quirks.

They are kept to compare with published figures, not because they are right: a gold counts as found when it is a
substring of the whole prediction, so "Iran" is found in "Tirana"; a gold that normalises to nothing is always found;
precision divides the golds found by the lines predicted and can pass 100; Hit looks at the whole prediction and Hit1
at its first line, so Hit is not Hits@1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from kgqa_core.evaluation.normalise import normalise_published

ROG_METRICS = ("accuracy", "hit", "hit1", "f1", "precision", "recall")


def split_prediction(prediction: str | Sequence[str]) -> list[str]:
    """Return the lines of a prediction.

    A string is stripped and split at newlines, so an empty one is one empty line. A list keeps its distinct members,
    the most frequent first and ties in order of appearance, so an empty list is no line at all.
    """
    if isinstance(prediction, str):
        return prediction.strip().split("\n")
    return [line for line, _ in Counter(prediction).most_common()]


def score_rog_question(lines: Sequence[str], golds: Sequence[str]) -> tuple[float, ...]:
    """Return one question's six figures as shares, in the order of ``ROG_METRICS``.

    ``lines`` come from ``split_prediction``; ``golds`` are names. A question without golds scores 0 everywhere (the
    published code divides by zero there), so it stays in the denominator.
    """
    if not golds:
        return (0.0,) * len(ROG_METRICS)
    normalised = [normalise_published(gold) for gold in golds]
    whole = normalise_published(" ".join(lines))
    first = normalise_published(lines[0]) if lines else ""
    found = sum(gold in whole for gold in normalised)
    hit1 = float(any(gold in first for gold in normalised))
    accuracy = found / len(golds)
    precision = found / len(lines) if lines else 0.0
    recall = accuracy if lines else 0.0
    both = precision + recall
    f1 = 2 * precision * recall / both if both else 0.0
    return accuracy, float(found > 0), hit1, f1, precision, recall


def is_rog_hit(names: Sequence[str], golds: Sequence[str]) -> bool:
    """Return whether one question is a Hit, as ``score_rog_question`` says of the list ``names``, but sooner."""
    if not set(golds).isdisjoint(names):  # a gold among the lines is a part of all of them joined
        return True
    return bool(score_rog_question(split_prediction(names), golds)[ROG_METRICS.index("hit")])


class RogTally:
    """Running sums of the six figures over a stream of questions.

    The sums are taken one by one from left to right: ``sum`` of floats compensates rounding from Python 3.12 on, and
    the published figures, printed to the last digit, come from sums that did not.
    """

    def __init__(self) -> None:
        """Start with no questions."""
        self.num_questions = 0
        self._sums = [0.0] * len(ROG_METRICS)

    def add(self, prediction: str | Sequence[str], golds: Sequence[str]) -> None:
        """Count one question."""
        self.num_questions += 1
        for place, share in enumerate(score_rog_question(split_prediction(prediction), golds)):
            self._sums[place] += share

    def summary(self) -> dict[str, float]:
        """Return the six means in percent, 0 where no question was counted."""
        num = max(self.num_questions, 1)
        return {name: total * 100 / num for name, total in zip(ROG_METRICS, self._sums, strict=True)}


def score_rog(pairs: Iterable[tuple[str | Sequence[str], Sequence[str]]]) -> dict[str, float]:
    """Return the six figures, in percent, of pairs of (prediction, gold names)."""
    tally = RogTally()
    for prediction, golds in pairs:
        tally.add(prediction, golds)
    return tally.summary()
