"""Plans that a constraint allows, without a model: the first, one drawn, those near a given one."""

from __future__ import annotations

import random
from collections.abc import Iterator

from kgqa_core.instructions.plan_text import END, SEPARATOR, START, parse_plan, render_plan, render_step
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.types import Constraint
from kgqa_core.types import LabelPath

MAX_PIECES = 64  # of a plan
TRIES = 8  # drawn per plan that is wanted


def first_text(constraint: Constraint) -> str:
    """Return the first text of the constraint: always its first piece, until the text may end; empty for none."""
    pieces: tuple[str, ...] = ()
    while not constraint.may_end(pieces) and len(pieces) < MAX_PIECES:
        following = constraint.next_pieces(pieces)
        if not following:
            return ""
        pieces = (*pieces, following[0])
    return "".join(pieces)


def random_text(constraint: Constraint, chance: random.Random, begin: tuple[str, ...] = ()) -> str:
    """Return a text drawn piece by piece, all that may follow being as likely; empty where it comes to no end."""
    pieces = begin
    while len(pieces) < MAX_PIECES:
        following = constraint.next_pieces(pieces)
        ends = constraint.may_end(pieces)
        if ends and (not following or chance.randrange(len(following) + 1) == 0):
            return "".join(pieces)
        if not following:
            return ""
        pieces = (*pieces, following[chance.randrange(len(following))])
    return ""


def near_plans(constraint: Constraint, plan: LabelPath | None, chance: random.Random) -> Iterator[LabelPath]:
    """Yield allowed plans that begin as ``plan`` does, then any; not all distinct, ``TRIES`` of each kind."""
    begin: tuple[str, ...] = ()
    if plan:
        begin = (START, *(render_step(step) + SEPARATOR for step in plan[:-1]))
        pieces = [piece for piece in constraint.next_pieces(begin) if piece.endswith(END)]
        chance.shuffle(pieces)
        for piece in pieces[:TRIES]:
            yield from _read("".join((*begin, piece)))
    for _ in range(TRIES):
        yield from _read(random_text(constraint, chance))


def plan_text(plan: LabelPath) -> str:
    """Return a plan as it is answered."""
    return render_plan(plan)


def _read(text: str) -> Iterator[LabelPath]:
    plan = parse_plan(text) if text else ParseFailure("no plan", "")
    if not isinstance(plan, ParseFailure):
        yield plan
