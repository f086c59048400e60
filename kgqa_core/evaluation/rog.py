"""Two ways to make names comparable: as the published evaluator does it, and as equality of names should be."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


@lru_cache(maxsize=65_536)
def normalise_published(text: str) -> str:
    """Return ``text`` as the published RoG evaluator compares it.

    Lower case; ASCII punctuation removed; the words a, an and the dropped; white space collapsed. The published code
    also means to drop ``<pad>`` but has removed the angle brackets by then, so ``pad`` stays: kept so, because its
    figures are to be met to the last digit. A name of nothing but punctuation or articles becomes the empty string.
    """
    lowered = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", lowered).split())


@lru_cache(maxsize=65_536)
def normalise_name(text: str) -> str:
    """Return ``text`` for strict equality of names: composed characters, no case, white space collapsed.

    Punctuation and articles stay, since they tell entities apart ("It" and "It!", "Thing" and "The Thing").
    """
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


# ------ The metrics of the published RoG evaluator (as used by GNN-RAG), under their own names and ...


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
