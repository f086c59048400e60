"""Metered calls of a language model: counted, held to a budget, and paid once.

``Metered`` stands around a model. It looks calls up in the store, sends the missing ones to the model, keeps each
answer before it hands it out, and charges the ``Meter``. Logical figures are what was asked for, as if nothing had been
kept: they are equal when a run is repeated. Paid figures are what went to the model this time.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
from pydantic import BeforeValidator, Field, ValidationError

from kgqa_core.config_base import Section
from kgqa_core.config_file import explain, read_yaml
from kgqa_core.errors import ConfigError
from kgqa_core.lm.call_store import CallStore, Kept, later_seed, score_key, text_key
from kgqa_core.lm.constraints import is_allowed
from kgqa_core.lm.types import GREEDY, Decoding, Generation, LanguageModel, Prompt
from kgqa_core.schemas import METER

CHUNK = 256  # prompts that go to a model at once, where it does not hand its answers on one by one
SMALL_CHUNK = 16  # of prompts whose options are scored over a network
PER = 1_000_000  # tokens that a price is for


class Price(Section):
    """The price of one model, in the file's currency per million tokens."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    as_of: date  # when it was looked up
    source: str = ""  # where

    def of(self, prompt_tokens: int, tokens: int) -> float:
        """Return what reading and giving so many tokens costs."""
        return (self.input * prompt_tokens + self.output * tokens) / PER


class Prices(Section):
    """The file ``conf/prices.yaml``. The calls of a model that is not there have no price."""

    currency: Annotated[str, Field(min_length=1)]
    models: Annotated[dict[str, Price], BeforeValidator(lambda given: given or {})]  # by the name that servers give


def read_prices(path: Path) -> Prices:
    """Read a file of prices; raises ConfigError where a key or a value is none that it may have."""
    try:
        return Prices.model_validate(read_yaml(path))
    except ValidationError as problem:
        raise ConfigError(explain(problem, str(path), Prices)) from None


class Budget(Section):
    """Limits per question, in one system; None: no limit. Calls that were kept count as if they were paid.

    A call goes ahead while everything spent before its batch is below the limits (calls are counted inside a batch
    too), so the last one may pass the limit on tokens, seconds or money, and a repeated run stops where the first did.
    """

    calls: Annotated[int, Field(ge=0)] | None = None  # FiSKE holds all systems to 30 (its section 4.1)
    tokens: Annotated[int, Field(ge=0)] | None = None  # read and given together
    seconds: Annotated[float, Field(ge=0)] | None = None
    money: Annotated[float, Field(ge=0)] | None = None  # in the currency of the prices

    def reached(self, spent: Sequence[float], pending: int) -> str:
        """Return the first limit that ``spent`` (in the order of the fields) and ``pending`` calls reach; "": none."""
        for (name, limit), total in zip(self, (spent[0] + pending, *spent[1:]), strict=True):
            if limit is not None and total >= limit:
                return name
        return ""


UNLIMITED = Budget()


@dataclass(frozen=True, slots=True)
class Answer:
    """What one prompt of a batch got."""

    index: int  # of the prompt in its batch
    generations: list[Generation]  # num_returns of them
    num_prompt_tokens: int  # that were read for it
    seconds: float  # from asking to having it, waits between attempts included


@runtime_checkable
class StreamingModel(Protocol):
    """A model whose answers come one by one, so that each can be kept before the next is there."""

    def stream(self, prompts: Sequence[Prompt], decoding: Decoding) -> Iterator[Answer]:
        """Yield one answer per prompt, in the order in which they come."""
        ...


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

    def add(self, other: Usage) -> None:
        """Add the figures of another usage."""
        for name in FIGURES:
            if value := getattr(other, name):
                setattr(self, name, getattr(self, name) + value)


FIGURES = tuple(column.name for column in fields(Usage))


class Meter:
    """The accounts of one evaluation. Safe for threads.

    Budgets add up over everything that a system asks for a question: a second evaluation needs a second meter.
    """

    def __init__(self) -> None:
        self._prices: dict[str, Price | None] = {}
        self._guard = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._accounts: dict[Account, Usage] = {}
        self._spent: dict[tuple[str, str], list[float]] = {}  # (system, question) -> calls, tokens, seconds, money
        self._stopped: dict[str, str] = {}  # question -> limit that it reached

    def know_price(self, model: str, price: Price | None) -> None:
        """Say what the calls of ``model`` cost; None: nobody knows."""
        self._prices[model] = price

    def charge(self, account: Account, usage: Usage) -> None:
        """Add ``usage`` to an account and, where the account is a question's, to what that has spent."""
        with self._guard:
            self._accounts.setdefault(account, Usage()).add(usage)
            if account.question_id:
                price = self._prices.get(account.model)
                spent = self._spent.setdefault((account.system, account.question_id), [0.0] * 4)
                spent[0] += usage.num_calls
                spent[1] += usage.num_prompt_tokens + usage.num_tokens
                spent[2] += usage.seconds
                spent[3] += price.of(usage.num_prompt_tokens, usage.num_tokens) if price else 0.0

    def may_ask(self, system: str, question_id: str, budget: Budget, *, pending: int = 0) -> bool:
        """Say whether a question has room for one more call after ``pending`` others; mark it stopped where not.

        Calls of no question (id "") have no budget.
        """
        if not question_id or budget is UNLIMITED:
            return True
        limit = budget.reached(self._spent.get((system, question_id), (0.0,) * 4), pending)
        if limit:
            self._stopped.setdefault(question_id, limit)
        return not limit

    def usage(self, **where: str) -> Usage:
        """Return the sum over the accounts whose fields are those given: ``usage(system="rog")``."""
        total = Usage()
        for account, usage in self._accounts.items():
            if all(getattr(account, name) == value for name, value in where.items()):
                total.add(usage)
        return total

    def table(self) -> pa.Table:
        """Return a row per account, sorted, as schemas.METER has it; money is null where nobody knows the price."""
        rows: list[dict[str, Any]] = []
        for account, usage in sorted(self._accounts.items(), key=lambda item: item[0]):
            price = self._prices.get(account.model)
            figures = {name: getattr(usage, name) for name in FIGURES}
            figures["money"] = price.of(usage.num_prompt_tokens, usage.num_tokens) if price else None
            figures["paid_money"] = price.of(usage.paid_prompt_tokens, usage.paid_tokens) if price else None
            rows.append(account._asdict() | figures)
        return pa.Table.from_pylist(rows, schema=METER)

    def take(self) -> tuple[pa.Table, dict[str, str]]:
        """Return the table, and the questions that a budget stopped with the limit; all accounts begin anew.

        For whoever keeps them elsewhere, some questions at a time.
        """
        with self._guard:
            taken = self.table(), self._stopped
            self._begin()
        return taken


@dataclass(frozen=True, slots=True)
class _Ask:
    """One call: texts to be given, or options to be weighed."""

    prompt: Prompt
    keys: tuple[str, ...]  # of the texts or options
    decoding: Decoding | None  # None: options are weighed
    options: tuple[str, ...] = ()


class Metered:
    """Implements LanguageModel around another one.

    Only what the store does not hold goes to the model, equal calls of a batch once; order is kept. Calls over a
    question's budget give nothing: texts with the problem "budget", scores of minus infinity.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        meter: Meter,
        store: CallStore | None = None,
        budget: Budget = UNLIMITED,
        system: str = "",
        price: Price | None = None,
    ) -> None:
        """Wrap ``model``; ``system`` is whose accounts are charged, ``price`` None where nobody knows it.

        Raises:
            ConfigError: a budget of money for a model without a price.
        """
        self.name, self.meter = model.name, meter
        self._model, self._store, self._budget, self._system = model, store, budget, system
        if budget.money is not None and price is None:
            raise ConfigError(
                f"budget.money = {budget.money} needs a price, and {self.name} has none in conf/prices.yaml"
            )
        meter.know_price(self.name, price)

    @property
    def context(self) -> int:
        """Return how many tokens prompt and answer may have together."""
        return self._model.context

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return the tokens of each prompt as the model reads it; free of charge."""
        return self._model.count_tokens(prompts)

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt, from the store where it has them."""
        numbers = range(decoding.num_returns)
        keys = (tuple(text_key(self.name, prompt, decoding, index) for index in numbers) for prompt in prompts)
        return self._call([_Ask(prompt, own, decoding) for prompt, own in zip(prompts, keys, strict=True)])

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-likelihood of each prompt's options; minus infinity for all that could not be told.

        A call is one prompt with its options; the tokens read are the prompt's, those given are none.
        """
        asks = [
            _Ask(prompt, tuple(score_key(self.name, prompt, option) for option in own), None, tuple(own))
            for prompt, own in zip(prompts, options, strict=True)
        ]
        return [[-math.inf if one.log_prob is None else one.log_prob for one in own] for own in self._call(asks)]

    def _call(self, asks: Sequence[_Ask]) -> list[list[Generation]]:
        """Return what each call gives, and charge what it costs."""
        may = self._may_ask(asks)
        known: dict[str, Kept] = {}  # from the store, and what is paid now
        lost: dict[str, tuple[Generation, float]] = {}  # what failed, and its seconds
        allowed = [ask for ask, room in zip(asks, may, strict=True) if room]
        if self._store is not None:
            known = self._store.get(key for ask in allowed for key in ask.keys)
        for group in _missing(allowed, known):
            self._pay(group, known, lost)
        results = []
        for ask, room in zip(asks, may, strict=True):
            if room:
                results.append([known[key].generation if key in known else lost[key][0] for key in ask.keys])
                self._charge(ask.prompt, _logical(ask, known, lost))
            else:
                results.append([Generation("", problem="budget") for _ in ask.keys])
                self._charge(ask.prompt, Usage(num_stopped=1))
        return results

    def _may_ask(self, asks: Sequence[_Ask]) -> list[bool]:
        """Say of each call whether its question has room for it, those before it in the batch counted."""
        pending: dict[str, int] = {}
        may = []
        for ask in asks:
            question = ask.prompt.question_id
            may.append(self.meter.may_ask(self._system, question, self._budget, pending=pending.get(question, 0)))
            pending[question] = pending.get(question, 0) + may[-1]
        return may

    def _pay(self, asks: Sequence[_Ask], known: dict[str, Kept], lost: dict[str, tuple[Generation, float]]) -> None:
        """Ask the model, keep each answer before the next is waited for, and charge who asked first."""
        for answers in self._answers(asks):
            new: dict[str, Kept] = {}
            for answer in answers:
                ask = asks[answer.index]
                share = answer.seconds / len(ask.keys)
                for key, one in zip(ask.keys, answer.generations, strict=True):
                    if one.problem:
                        lost[key] = one, share
                    elif key not in known:  # beams that are known stay as they were first given
                        if one.log_prob is not None and not math.isfinite(one.log_prob):
                            one = replace(one, log_prob=None)
                        new[key] = Kept(one, answer.num_prompt_tokens, share)
                read, tokens = answer.num_prompt_tokens, sum(one.num_tokens for one in answer.generations)
                paid = Usage(paid_calls=1, paid_prompt_tokens=read, paid_tokens=tokens, paid_seconds=answer.seconds)
                self._charge(ask.prompt, paid)
            known.update(new if self._store is None or not new else self._store.put(new))

    def _answers(self, asks: Sequence[_Ask]) -> Iterator[list[Answer]]:
        """Yield answers as they come, in lists of those that come together."""
        decoding, streams = asks[0].decoding, isinstance(self._model, StreamingModel)
        if decoding is not None and isinstance(self._model, StreamingModel):
            for answer in self._model.stream([ask.prompt for ask in asks], decoding):
                yield [answer]
            return
        step = SMALL_CHUNK if streams else CHUNK
        for start in range(0, len(asks), step):
            chunk = asks[start : start + step]
            prompts = [ask.prompt for ask in chunk]
            begun = time.perf_counter()
            if decoding is None:
                scores = self._model.score(prompts, [ask.options for ask in chunk])
                lost = Generation("", problem="bad_response")  # an option without a likelihood
                texts = [[Generation("", one) if math.isfinite(one) else lost for one in own] for own in scores]
            else:
                texts = self._model.generate(prompts, decoding)
            seconds = time.perf_counter() - begun
            sizes = self._model.count_tokens(prompts)
            works = [size + sum(one.num_tokens for one in own) for size, own in zip(sizes, texts, strict=True)]
            whole = sum(works) or 1
            yield [
                Answer(start + row, own, 0 if all(one.problem for one in own) else size, seconds * work / whole)
                for row, (own, size, work) in enumerate(zip(texts, sizes, works, strict=True))
            ]

    def _charge(self, prompt: Prompt, usage: Usage) -> None:
        self.meter.charge(Account(self._system, self.name, prompt.instruction, prompt.question_id), usage)


def _missing(asks: Iterable[_Ask], known: Mapping[str, Kept]) -> list[list[_Ask]]:
    """Return what has to be paid, in groups of one decoding and equal calls once.

    Of samples and options those that are missing, of beams all where one is.
    """
    taken = set(known)
    groups: dict[Decoding | None, list[_Ask]] = {}
    for ask in asks:
        places = {key: place for place, key in enumerate(ask.keys) if key not in taken}  # an option may come twice
        if not places:
            continue
        taken.update(ask.keys)
        decoding = ask.decoding
        if decoding is None:
            ask = replace(ask, keys=tuple(places), options=tuple(ask.options[place] for place in places.values()))
        elif decoding.method == "sample":
            seed = later_seed(decoding.seed, min(places.values()))
            ask = replace(ask, keys=tuple(places), decoding=replace(decoding, num_returns=len(places), seed=seed))
        groups.setdefault(ask.decoding, []).append(ask)
    return [groups[decoding] for decoding in sorted(groups, key=repr)]


def _logical(ask: _Ask, known: Mapping[str, Kept], lost: Mapping[str, tuple[Generation, float]]) -> Usage:
    """Return what one call costs as if nothing had been kept; the prompt is read once for all its texts."""
    keys = list(dict.fromkeys(ask.keys))
    kept = [known[key] for key in keys if key in known]
    failed = [lost[key][1] for key in keys if key not in known]
    texts = [one.generation for one in kept] if ask.decoding is not None else []
    constraint = ask.prompt.constraint
    return Usage(
        num_calls=1,
        num_prompt_tokens=max((one.num_prompt_tokens for one in kept), default=0),
        num_tokens=sum(one.num_tokens for one in texts),
        seconds=math.fsum([*(one.seconds for one in kept), *failed]),
        num_failed=int(bool(failed)),
        num_cut=sum(not one.finished for one in texts),
        num_outside=0 if constraint is None else sum(not is_allowed(constraint, one.text) for one in texts),
    )
