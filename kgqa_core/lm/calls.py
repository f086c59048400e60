"""Metered calls of a language model: counted, held to a budget, and paid once.

``Metered`` stands around a model. It looks calls up in the store, sends the missing ones to the model, keeps each
answer before it hands it out, and charges the ``Meter``. Logical figures are what was asked for, as if nothing had been
kept: they are equal when a run is repeated. Paid figures are what went to the model this time.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from kgqa_core.config_lm import ROLES, Price, Role
from kgqa_core.errors import KgqaError
from kgqa_core.lm.call_store import CallStore, Kept, later_seed, score_key, text_key
from kgqa_core.lm.search import THOUGHTS, cut_loop
from kgqa_core.lm.types import GREEDY, Answer, Constraint, Decoding, Generation, LanguageModel, Prompt, StreamingModel
from kgqa_core.schemas import METER

CHUNK = 256  # prompts that go to a model at once, where it does not hand its answers on one by one


class Account(NamedTuple):
    """Whose calls are counted together."""

    system: str
    model: str
    instruction: str
    question_id: str


FIGURES = tuple(name for name in METER.names if name not in {*Account._fields, "money", "paid_money"})
"""What is counted in an account. Money follows from the tokens and is not kept."""


class Meter:
    """The accounts of one evaluation. Safe for threads.

    Budgets add up over everything that a system asks for a question: a second evaluation needs a second meter.
    """

    num_paid = 0  # calls that went to models, by all meters of this process and of what worked for it

    def __init__(self) -> None:
        self.prices: dict[str, Price | None] = {}  # model -> what its calls cost; None: nobody knows
        self._guard = threading.Lock()
        self._accounts = defaultdict[Account, Counter[str]](Counter)
        self.spent = Counter[tuple[str, str]]()  # (system, question) -> calls that were asked for

    def charge(self, account: Account, figures: Mapping[str, Any]) -> None:
        """Add some of ``FIGURES`` to an account, and its calls to what the question has spent."""
        with self._guard:
            Meter.num_paid += figures.get("paid_calls", 0)
            self._accounts[account].update(figures)
            self.spent[account.system, account.question_id] += figures.get("num_calls", 0)

    def usage(self) -> Counter[str]:
        """Return the sum of all accounts: ``usage()["num_calls"]``."""
        with self._guard:
            return sum(self._accounts.values(), Counter[str]())

    def take(self) -> pa.Table:
        """Return a row per account, sorted, as schemas.METER has them; all accounts begin anew.

        Money is null where nobody knows the price.
        """
        with self._guard:
            rows: list[dict[str, Any]] = []
            for account, own in sorted(self._accounts.items(), key=lambda item: item[0]):
                price, row = self.prices.get(account.model), account._asdict() | {name: own[name] for name in FIGURES}
                row["money"] = price.of(own["num_prompt_tokens"], own["num_tokens"]) if price else None
                row["paid_money"] = price.of(own["paid_prompt_tokens"], own["paid_tokens"]) if price else None
                rows.append(row)
            self._accounts, self.spent = defaultdict(Counter), Counter()
        return pa.Table.from_pylist(rows, schema=METER)


def is_allowed(constraint: Constraint, text: str) -> bool:
    """Say whether ``text`` is one that ``constraint`` lets be generated.

    Every way to read the text is tried, so constraints whose pieces are prefixes of each other are judged rightly too.
    """
    ends: list[tuple[tuple[str, ...], int]] = [((), 0)]
    while ends:
        pieces, position = ends.pop()
        if position == len(text) and constraint.may_end(pieces):
            return True
        ends.extend(
            ((*pieces, piece), position + len(piece))
            for piece in constraint.next_pieces(pieces)
            if piece and text.startswith(piece, position)
        )
    return False


def is_outside(prompt: Prompt, decoding: Decoding | None, text: str) -> bool:
    """Say whether a text is none that its prompt's constraint allows, be it cut before a stop string or not."""
    ends = ("", *(decoding.stop if decoding else ()))
    bound = prompt.constraint
    return bound is not None and not any(is_allowed(bound, text + end) for end in ends)


@dataclass(frozen=True, slots=True)
class _Ask:
    """One call: texts to be given, or options to be weighed."""

    prompt: Prompt
    keys: tuple[str, ...]  # of the texts or options
    decoding: Decoding | None  # None: options are weighed
    options: tuple[str, ...] = ()


class Metered:
    """Implements LanguageModel around another one.

    Calls over a question's budget give nothing: texts with the problem "budget", scores of minus infinity. Calls of no
    question (id "") have no budget.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        meter: Meter,
        store: CallStore | None = None,
        max_calls: int | None = None,
        system: str = "",
        price: Price | None = None,
    ) -> None:
        """Wrap ``model``; ``system`` is whose accounts are charged, ``price`` None where nobody knows it.

        ``max_calls``: of one question, those that were kept included; None: no limit.
        """
        self.name, self.meter = model.name, meter
        self._model, self._store, self._max_calls, self._system = model, store, max_calls, system
        meter.prices[self.name] = price

    @property
    def context(self) -> int:
        """How many tokens prompt and answer may have together."""
        return self._model.context

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return the tokens of each prompt as the model reads it; free of charge."""
        return self._model.count_tokens(prompts)

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt, from the store where it has them."""
        numbers = range(decoding.num_returns)
        keys = [tuple(text_key(self.name, prompt, decoding, number) for number in numbers) for prompt in prompts]
        return self._call([_Ask(prompt, own, decoding) for prompt, own in zip(prompts, keys, strict=True)])

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-likelihood of each prompt's options; minus infinity for all that could not be told.

        A call is one prompt with its options. The tokens are those of all its requests: a local model reads the prompt
        once and gives none, a server reads it once per option and may give one more each time.
        """
        asks = [
            _Ask(prompt, tuple(score_key(self.name, prompt, option) for option in own), None, tuple(own))
            for prompt, own in zip(prompts, options, strict=True)
        ]
        return [[-math.inf if one.log_prob is None else one.log_prob for one in own] for own in self._call(asks)]

    def _charge(self, ask: _Ask, **figures: float) -> None:
        self.meter.charge(Account(self._system, self.name, ask.prompt.instruction, ask.prompt.question_id), figures)

    def _call(self, asks: Sequence[_Ask]) -> list[list[Generation]]:
        """Return what each call gives, and charge what it costs as if nothing had been kept."""
        pending, allowed = Counter[str](), list[bool]()
        for ask in asks:  # has its question room for it, those before it in the batch counted?
            question, most = ask.prompt.question_id, self._max_calls
            num_asked = self.meter.spent[self._system, question] + pending[question]
            may = not question or most is None or num_asked < most
            allowed.append(may)
            pending[question] += may
        going = [ask for ask, may in zip(asks, allowed, strict=True) if may]
        # From the store, and what is paid now.
        known = self._store.get(key for ask in going for key in ask.keys) if self._store is not None else {}
        lost: dict[str, tuple[Generation, float]] = {}  # what failed, and its seconds
        self._pay(going, known, lost)
        results = []
        for ask, may in zip(asks, allowed, strict=True):
            if not may:
                results.append([Generation("", problem="budget") for _ in ask.keys])
                self._charge(ask, num_stopped=1)
                continue
            given = [known[key].generation if key in known else lost[key][0] for key in ask.keys]
            said = [replace(one, text=THOUGHTS.sub("", one.text)) for one in given]
            # A text that only its limit ended may say the same for ever: once is enough.
            told = [one if one.finished else replace(one, text=cut_loop(one.text)) for one in said]
            results.append(told)
            kept = [known[key] for key in dict.fromkeys(ask.keys) if key in known]
            failed = [lost[key][1] for key in dict.fromkeys(ask.keys) if key not in known]
            # A beam that a constraint has no text for is neither cut nor outside: it was never written.
            made = [one.generation for one in kept if one.generation.finished or one.generation.num_tokens]
            texts = made if ask.decoding is not None else []
            self._charge(
                ask,
                num_calls=1,
                num_prompt_tokens=max((one.num_prompt_tokens for one in kept), default=0),  # read once for all texts
                num_tokens=sum(one.generation.num_tokens for one in kept),
                seconds=math.fsum([*(one.seconds for one in kept), *failed]),
                num_failed=int(bool(failed)),
                num_cut=sum(not one.finished for one in texts),
                num_looping=sum(one.text != once.text for one, once in zip(said, told, strict=True)),
                num_outside=sum(is_outside(ask.prompt, ask.decoding, THOUGHTS.sub("", one.text)) for one in texts),
            )
        return results

    def _pay(self, asks: Sequence[_Ask], known: dict[str, Kept], lost: dict[str, tuple[Generation, float]]) -> None:
        """Ask the model for what is not known, keep each answer before the next is waited for, and charge its price.

        Equal calls are asked once, and charged to who asked first. Of options those that are missing are asked, of
        samples all from the first to the last that is missing, of beams all where one is.
        """
        taken, groups = set(known), dict[Decoding | None, list[_Ask]]()
        for ask in asks:
            places = {key: place for place, key in enumerate(ask.keys) if key not in taken}  # an option may come twice
            taken.update(ask.keys)
            if not places:
                continue
            if ask.decoding is None:
                ask = replace(ask, keys=tuple(places), options=tuple(ask.options[place] for place in places.values()))
            elif ask.decoding.method == "sample":
                first, seed = min(places.values()), ask.decoding.seed  # with that seed the first ones came
                keys = ask.keys[first : max(places.values()) + 1]  # a known one between them: its text comes again
                fewer = replace(ask.decoding, num_returns=len(keys), seed=later_seed(seed, first) if first else seed)
                ask = replace(ask, keys=keys, decoding=fewer)
            groups.setdefault(ask.decoding, []).append(ask)
        for decoding in sorted(groups, key=repr):
            for answers in self._answers(groups[decoding]):
                new: dict[str, Kept] = {}
                for answer in answers:
                    ask, size = groups[decoding][answer.index], answer.num_prompt_tokens
                    share = answer.seconds / len(ask.keys)
                    for key, one in zip(ask.keys, answer.generations, strict=True):
                        if one.problem:
                            lost[key] = one, share
                        elif key not in known:  # texts that are known stay as they were first given
                            if one.log_prob is not None and not math.isfinite(one.log_prob):
                                one = replace(one, log_prob=None)
                            new[key] = Kept(one, size, share)
                    tokens = sum(one.num_tokens for one in answer.generations)
                    paid = {"paid_prompt_tokens": size, "paid_tokens": tokens, "paid_seconds": answer.seconds}
                    self._charge(ask, paid_calls=1, **paid)
                known.update(new if self._store is None or not new else self._store.put(new))

    def _answers(self, asks: Sequence[_Ask]) -> Iterator[list[Answer]]:
        """Yield answers as they come, in lists of those that come together."""
        decoding = asks[0].decoding
        if isinstance(self._model, StreamingModel):
            prompts = [ask.prompt for ask in asks]
            if decoding is None:
                answers = self._model.stream_scores(prompts, [ask.options for ask in asks])
            else:
                answers = self._model.stream(prompts, decoding)
            yield from ([answer] for answer in answers)
            return
        for start in range(0, len(asks), CHUNK):
            chunk = asks[start : start + CHUNK]
            prompts = [ask.prompt for ask in chunk]
            begun = time.perf_counter()
            if decoding is None:
                given = self._model.score(prompts, [ask.options for ask in chunk])
                lost = Generation("", problem="bad_response")  # an option without a likelihood
                texts = [[Generation("", one) if math.isfinite(one) else lost for one in own] for own in given]
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


# ------ Several language models as one: each prompt goes to the model that plays the role of its instruction.


ROLE_OF: dict[str, Role] = {instruction: role for role, own in ROLES.items() for instruction in own}


class RoleModels:
    """Implements ``LanguageModel`` by those of several roles, each metered by itself: calls are kept under its name."""

    def __init__(self, models: Mapping[Role, LanguageModel]) -> None:
        """Dispatch among ``models``, one for each role in which anything is asked."""
        self._models = dict(models)
        names = {role: model.name for role, model in models.items()}
        self.name = ", ".join(f"{role}: {name}" for role, name in names.items())
        self.context = min(model.context for model in models.values())

    def of(self, instruction: str) -> LanguageModel:
        """Return the model that an instruction is asked of; KgqaError where none was opened for its role."""
        role = ROLE_OF.get(instruction, "reason")
        if role not in self._models:
            raise KgqaError(
                f"{instruction!r} is asked of role {role!r}, and only {', '.join(self._models)} were opened: let the "
                "system's SystemType.roles name it"
            )
        return self._models[role]

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return the tokens of each prompt as its own model reads it."""
        return self._dispatch(prompts, lambda model, places: model.count_tokens([prompts[one] for one in places]))

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt; the prompts of a model go to it together."""
        return self._dispatch(prompts, lambda model, places: model.generate([prompts[one] for one in places], decoding))

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-likelihood of each prompt's options by its own model."""
        return self._dispatch(
            prompts,
            lambda model, places: model.score([prompts[one] for one in places], [options[one] for one in places]),
        )

    def _dispatch(self, prompts: Sequence[Prompt], ask: Callable[[LanguageModel, list[int]], list[Any]]) -> list[Any]:
        places: dict[int, list[int]] = {}  # of the prompts of each model, which may play several roles
        models = [self.of(prompt.instruction) for prompt in prompts]
        for place, model in enumerate(models):
            places.setdefault(id(model), []).append(place)
        found: list[Any] = [None] * len(prompts)
        for own in places.values():
            for place, one in zip(own, ask(models[own[0]], own), strict=True):
                found[place] = one
        return found
