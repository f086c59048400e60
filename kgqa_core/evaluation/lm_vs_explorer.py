"""Who was right where the language model overruled the explorer, and where it did not, per number of candidates N.

A system that lets a language model choose among an explorer's candidates gains what the model mends and loses what it
spoils. Ties of the explorer count by one fixed pick, its first candidate by entity id, as for any paired test.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kgqa_core.evaluation.intervals import mcnemar

NOBODY = -1  # explorer_first of a question for which the explorer found nothing


@dataclass(frozen=True, slots=True)
class Overrules:
    """One row of the table."""

    num_shown: int  # N
    num_questions: int
    num_overruled: int  # the answer is another than the explorer's first; abstentions are none
    num_abstained: int
    both_right: int
    only_explorer: int  # explorer right, language model wrong or silent
    only_lm: int  # language model right, explorer wrong
    both_wrong: int
    p: float  # of McNemar's test between the two


@dataclass(frozen=True, slots=True)
class Decision:
    """One question as the explorer and the language model answered it."""

    golds: Collection[int]  # entity ids
    explorer_first: int | None  # None: it found nothing
    answer: int | None  # the first entity answered; None: none


def count_overrules(num_shown: int, decisions: Sequence[Decision]) -> Overrules:
    """Return the row of one N."""
    explorer = [one.explorer_first in one.golds for one in decisions]
    model = [one.answer in one.golds for one in decisions]
    pairs = list(zip(explorer, model, strict=True))
    only_explorer, only_lm = pairs.count((True, False)), pairs.count((False, True))
    return Overrules(
        num_shown=num_shown,
        num_questions=len(decisions),
        num_overruled=sum(one.answer not in (None, one.explorer_first) for one in decisions),
        num_abstained=sum(one.answer is None for one in decisions),
        both_right=pairs.count((True, True)),
        only_explorer=only_explorer,
        only_lm=only_lm,
        both_wrong=pairs.count((False, False)),
        p=mcnemar(only_explorer, only_lm),
    )
