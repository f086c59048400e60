"""Plans that a constraint allows, without a model: the first, one drawn, those near a given one."""

from __future__ import annotations

import random
from collections.abc import Iterator

from kgqa_core.instructions.plan_text import END, SEPARATOR, START, parse_plan, render_step
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import Constraint
from kgqa_core.types import LabelPath

MAX_PIECES = 64  # of a plan
TRIES = 16  # plans drawn


def first_text(constraint: Constraint) -> str:
    """Return the constraint's first text: always its first piece, until the text may end; empty where there is none."""
    pieces: tuple[str, ...] = ()
    while not constraint.may_end(pieces):
        following = constraint.next_pieces(pieces)
        if not following or len(pieces) == MAX_PIECES:
            return ""
        pieces = (*pieces, following[0])
    return "".join(pieces)


def random_text(constraint: Constraint, chance: random.Random) -> str:
    """Return a text drawn piece by piece, all that may follow being as likely; empty where it comes to no end."""
    pieces: tuple[str, ...] = ()
    while not constraint.may_end(pieces):
        following = constraint.next_pieces(pieces)
        if not following or len(pieces) == MAX_PIECES:
            return ""
        pieces = (*pieces, following[chance.randrange(len(following))])
    return "".join(pieces)


def near_plans(constraint: Constraint, plan: LabelPath, chance: random.Random) -> Iterator[LabelPath]:
    """Yield allowed plans that differ from ``plan`` in their last step, then any; not all of them distinct."""
    if plan:
        begin = (START, *(render_step(step) + SEPARATOR for step in plan[:-1]))
        pieces = [piece for piece in constraint.next_pieces(begin) if piece.endswith(END)]
        chance.shuffle(pieces)
        yield from (found for piece in pieces if (found := _read("".join((*begin, piece)))) != plan)
    for _ in range(TRIES):
        if found := _read(random_text(constraint, chance)):
            yield found


def _read(text: str) -> LabelPath:
    """Return the plan of a text; none of its steps where there is no plan."""
    found = parse_plan(text)
    return () if isinstance(found, ParseFailure) else found
