"""The plans that an oracle proposes: the gold ones that are allowed, then others near them."""

from __future__ import annotations

import random

from kgqa_core.instructions.plan_text import render_plan
from kgqa_core.lm.allowed import is_allowed
from kgqa_core.lm.types import Constraint
from kgqa_core.stand_ins.knowledge import Known
from kgqa_core.stand_ins.plan_texts import near_plans
from kgqa_core.stand_ins.reading import ReadPrompt
from kgqa_core.types import LabelPath


def gold_and_other_plans(
    constraint: Constraint | None, known: Known | None, shown: ReadPrompt, chance: random.Random, num: int
) -> tuple[list[LabelPath], list[LabelPath]]:
    """Return the gold plans that may be answered, and so many others that there are ``num`` in all, if there are."""
    plans = known.plans if known else ()
    gold = [plan for plan in plans if plan and (constraint is None or is_allowed(constraint, render_plan(plan)))]
    others: dict[LabelPath, None] = {}
    if constraint is not None:
        for plan in near_plans(constraint, gold[0] if gold else None, chance):
            if len(gold) + len(others) >= num + 1:
                break
            if plan not in plans:
                others[plan] = None
    else:
        others.update(dict.fromkeys((label,) for label in shown.relations if (label,) not in plans))
    return gold[:num], list(others)
