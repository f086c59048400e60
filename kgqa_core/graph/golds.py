"""What a relation path should reach."""

from __future__ import annotations

from kgqa_core.types import Question


def golds_of(question: Question, *, reenter_topic: bool = False) -> frozenset[int]:
    """Return the entities that a path should reach: the answers, else the claim where that is known to be right.

    With ``reenter_topic=False`` topics are left out only where other golds remain, since no path can reach them.
    """
    golds = frozenset(question.answers)
    if not golds and question.verdict and question.claim is not None:
        golds = frozenset({question.claim})
    reachable = golds if reenter_topic else golds - frozenset(question.topics)
    return golds if reachable else frozenset()
