"""The plans that an oracle proposes: the gold ones that are allowed, then others near them."""

from __future__ import annotations

import math
import random

from kgqa_core.instructions.plan_text import render_plan
from kgqa_core.lm.allowed import is_allowed
from kgqa_core.lm.types import Constraint
from kgqa_core.stand_ins.knowledge import Known
from kgqa_core.stand_ins.plan_texts import near_plans
from kgqa_core.stand_ins.reading import ReadPrompt
from kgqa_core.types import LabelPath

SURE = 0.9  # probability of all that is right together


def gold_plans(constraint: Constraint | None, known: Known | None) -> list[LabelPath]:
    """Return the gold plans that may be answered, best first."""
    plans = [plan for plan in known.plans if plan] if known else []
    return [plan for plan in plans if constraint is None or is_allowed(constraint, render_plan(plan))]


def other_plans(
    constraint: Constraint | None, known: Known | None, shown: ReadPrompt, chance: random.Random, num: int
) -> list[LabelPath]:
    """Return up to ``num`` plans that may be answered and are not gold, the most like a gold one first.

    Without a constraint these are the single relations that the prompt shows.
    """
    golds = set(known.plans) if known else set()
    if constraint is None:
        single: list[LabelPath] = [(label,) for label in shown.relations]
        return [plan for plan in single if plan not in golds][:num]
    gold = gold_plans(constraint, known)
    found: dict[LabelPath, None] = {}
    near = near_plans(constraint, gold[0] if gold else (), chance)
    while len(found) < num and (plan := next(near, None)):
        if plan not in golds:
            found[plan] = None
    return list(found)


def log_probs(num_gold: int, num_others: int) -> list[float]:
    """Return non-increasing log-probabilities: gold plans share ``SURE``, others halve what is left again and again."""
    share = SURE / num_gold if num_gold else 1.0
    left = 1 - SURE if num_gold else 1.0
    others = [min(share, left / 2 ** (place + 1)) for place in range(num_others)]
    return [math.log(one) for one in [share] * num_gold + others]
