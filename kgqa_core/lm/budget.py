"""Budgets: what one question may cost in one system, before it is stopped and marked. The run goes on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from kgqa_core.errors import ConfigError, shorten


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits per question and system; None: no limit. Calls that are remembered count as if they were paid.

    A call goes ahead while everything spent before its batch is below the limits (calls are counted inside a batch
    too), so the last one may pass the limit on tokens, seconds or money, and a repeated run stops where the first did.
    """

    calls: int | None = None  # FiSKE holds all systems to 30 (its section 4.1)
    tokens: int | None = None  # read and given together
    seconds: float | None = None
    money: float | None = None  # in the currency of the prices

    def __post_init__(self) -> None:
        for field in fields(self):
            limit = getattr(self, field.name)
            if limit is not None and (isinstance(limit, bool) or not 0 <= limit < math.inf):
                raise ConfigError(f"budget.{field.name} = {shorten(limit)} must be a number >= 0, or none for no limit")


UNLIMITED = Budget()


@dataclass(slots=True)
class Spent:
    """What a question has cost so far."""

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0
    money: float = 0.0

    def reached(self, budget: Budget) -> str:
        """Return the name of the first limit that is reached, or "" where there is room for another call."""
        for name in ("calls", "tokens", "seconds", "money"):
            limit = getattr(budget, name)
            if limit is not None and getattr(self, name) >= limit:
                return name
        return ""


def check_budget(budget: Budget, has_price: bool, why_none: Callable[[], str]) -> None:
    """Raise ConfigError where a limit on money cannot be kept since the model has no price."""
    if budget.money is not None and not has_price:
        raise ConfigError(f"budget.money = {budget.money} needs a price. {why_none()}")
