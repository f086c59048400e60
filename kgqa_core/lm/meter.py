"""The one meter: what calls cost, per system, model, instruction and question; asked for and paid kept apart.

Logical figures are what a run asked for, as if nothing were remembered: they are equal when the run is repeated. Paid
figures are what went to the model this time.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import pyarrow as pa

from kgqa_core.lm.budget import Budget, Spent
from kgqa_core.lm.price import Price
from kgqa_core.lm.types import Problem
from kgqa_core.schemas import METER

LOGICAL = ("num_calls", "num_prompt_tokens", "num_tokens", "seconds", "money")
"""Columns that are equal when a run is repeated from the cache."""


class Account(NamedTuple):
    """Whose calls are counted together."""

    system: str
    model: str
    instruction: str
    question_id: str


@dataclass(slots=True)
class Usage:
    """Figures of an account; see schemas.METER. Money follows from the tokens and is not kept."""

    num_calls: int = 0
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    paid_calls: int = 0
    paid_prompt_tokens: int = 0
    paid_tokens: int = 0
    paid_seconds: float = 0.0
    num_failed: int = 0
    num_stopped: int = 0
    num_cut: int = 0
    num_outside: int = 0
    problems: Counter[Problem] = field(default_factory=Counter)  # texts that did not come, by why

    def add(self, other: Usage) -> None:
        """Add the figures of another usage."""
        for name in FIGURES:
            if value := getattr(other, name):
                setattr(self, name, getattr(self, name) + value)
        self.problems.update(other.problems)


FIGURES = tuple(column.name for column in fields(Usage) if column.name != "problems")


class Meter:
    """The accounts of one evaluation. Safe for threads.

    Budgets add up over everything that a system asks for a question: a second evaluation needs a second meter.
    """

    def __init__(self) -> None:
        self._accounts: dict[Account, Usage] = {}
        self._prices: dict[str, Price | None] = {}
        self._spent: dict[tuple[str, str], Spent] = {}
        self._stopped: dict[tuple[str, str], str] = {}
        self._guard = threading.Lock()

    def know_price(self, model: str, price: Price | None) -> None:
        """Say what the calls of ``model`` cost; None: nobody knows."""
        self._prices[model] = price

    def take(self) -> tuple[pa.Table, dict[str, str]]:
        """Return the table, and the questions that a budget stopped with the limit; all accounts begin anew.

        For whoever keeps them elsewhere, some questions at a time.
        """
        with self._guard:
            table, stopped = self.table(), {question: limit for (_, question), limit in self._stopped.items()}
            self._accounts, self._spent, self._stopped = {}, {}, {}
        return table, stopped

    def charge(self, account: Account, usage: Usage) -> None:
        """Add ``usage`` to an account and, where the account is a question's, to what that has spent."""
        price = self._prices.get(account.model)
        with self._guard:
            self._accounts.setdefault(account, Usage()).add(usage)
            if account.question_id:
                spent = self._spent.setdefault((account.system, account.question_id), Spent())
                spent.calls += usage.num_calls
                spent.tokens += usage.num_prompt_tokens + usage.num_tokens
                spent.seconds += usage.seconds
                spent.money += price.of(usage.num_prompt_tokens, usage.num_tokens) if price else 0.0

    def may_ask(self, system: str, question_id: str, budget: Budget, *, pending: int = 0) -> bool:
        """Say whether a question has room for one more call after ``pending`` others; mark it stopped where not.

        Calls of no question (id "") have no budget.
        """
        if not question_id:
            return True
        spent = self._spent.get((system, question_id), Spent())
        limit = Spent(spent.calls + pending, spent.tokens, spent.seconds, spent.money).reached(budget)
        if limit:
            self._stopped.setdefault((system, question_id), limit)
        return not limit

    def stopped(self, system: str) -> dict[str, str]:
        """Return the questions that a budget stopped, with the limit each reached first."""
        return {question: limit for (owner, question), limit in self._stopped.items() if owner == system}

    def usage(self, **where: str) -> Usage:
        """Return the sum over the accounts whose fields are those given: ``usage(system="rog")``."""
        total = Usage()
        for account, usage in self._accounts.items():
            if all(getattr(account, name) == value for name, value in where.items()):
                total.add(usage)
        return total

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per account, sorted; columns as in schemas.METER."""
        return [account._asdict() | self._row(account.model, self._accounts[account]) for account in self._sorted()]

    def table(self) -> pa.Table:
        """Return the rows as a table of schemas.METER."""
        return pa.Table.from_pylist(self.rows(), schema=METER)

    def summary(self, by: Sequence[str] = ("system",)) -> list[dict[str, Any]]:
        """Return one row per value of the account fields ``by``, sorted, JSON throughout.

        Beside the columns of schemas.METER: ``num_questions``, ``num_stopped_questions`` (where ``by`` has the system),
        ``problems`` by why, and ``unpriced_models``, whose calls are missing from the money.
        """
        groups: dict[tuple[str, ...], list[Account]] = {}
        for account in self._sorted():
            groups.setdefault(tuple(getattr(account, name) for name in by), []).append(account)
        return [dict(zip(by, group, strict=True)) | self._sum(accounts) for group, accounts in groups.items()]

    def _sum(self, accounts: list[Account]) -> dict[str, Any]:
        total = Usage()
        for account in accounts:
            total.add(self._accounts[account])
        questions = {(account.system, account.question_id) for account in accounts if account.question_id}
        rows = [self._row(account.model, self._accounts[account]) for account in accounts]
        money = {
            name: sum(row[name] for row in rows if row[name] is not None)
            if any(row[name] is not None for row in rows)
            else None
            for name in ("money", "paid_money")
        }
        return {
            "num_questions": len(questions),
            **_figures(total),
            **money,
            "num_stopped_questions": sum(question in self._stopped for question in questions),
            "problems": dict(sorted(total.problems.items())),
            "unpriced_models": sorted({a.model for a in accounts if self._prices.get(a.model) is None}),
        }

    def _row(self, model: str, usage: Usage) -> dict[str, Any]:
        price = self._prices.get(model)
        return _figures(usage) | {
            "money": price.of(usage.num_prompt_tokens, usage.num_tokens) if price else None,
            "paid_money": price.of(usage.paid_prompt_tokens, usage.paid_tokens) if price else None,
        }

    def _sorted(self) -> list[Account]:
        return sorted(self._accounts)


def _figures(usage: Usage) -> dict[str, Any]:
    return {name: getattr(usage, name) for name in FIGURES}
