"""A language model whose calls are metered, remembered and held to a budget."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kgqa_core.lm.allowed import is_allowed
from kgqa_core.lm.answers import Answer, StreamingModel
from kgqa_core.lm.budget import UNLIMITED, Budget, check_budget
from kgqa_core.lm.call_cache import CallCache
from kgqa_core.lm.call_key import later_seed, score_key, text_key
from kgqa_core.lm.call_record import CallRecord, record_of
from kgqa_core.lm.meter import Account, Meter, Usage
from kgqa_core.lm.price import Price
from kgqa_core.lm.types import GREEDY, Decoding, Generation, LanguageModel, Prompt

CHUNK = 256  # prompts that go to a model at once, where it does not hand its answers on one by one
SMALL_CHUNK = 16  # of prompts whose options are scored over a network
FAILED = -math.inf  # the score of an option that could not be told


@dataclass(frozen=True, slots=True)
class _Ask:
    """One call that has to be paid, for all prompts of the batch that are equal to it."""

    prompt: Prompt
    decoding: Decoding
    keys: tuple[str, ...]  # of the texts that it is to give


class Metered:
    """Implements LanguageModel around another one.

    Only what the cache does not hold goes to the model, equal calls of a batch once; order is kept. The logical figures
    of the meter come from what was kept, so a repeated run has the same. Calls over a question's budget give nothing:
    texts with the problem "budget", scores of minus infinity.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        meter: Meter,
        cache: CallCache | None = None,
        budget: Budget = UNLIMITED,
        system: str = "",
        price: Price | None = None,
    ) -> None:
        """Wrap ``model``; ``system`` is whose accounts are charged, ``price`` None where nobody knows it.

        Raises:
            ConfigError: a budget of money for a model without a price.
        """
        check_budget(budget, price is not None, lambda: f"{model.name} has none")
        self._model, self._meter, self._cache = model, meter, cache
        self._budget, self._system, self._price = budget, system, price
        self._name = model.name
        meter.know_price(self._name, price)

    @property
    def name(self) -> str:
        """Return the identity of the model inside."""
        return self._name

    @property
    def context(self) -> int:
        """Return how many tokens prompt and answer may have together."""
        return self._model.context

    @property
    def meter(self) -> Meter:
        """Return the meter that the calls go to."""
        return self._meter

    def for_system(self, system: str, budget: Budget | None = None) -> Metered:
        """Return the same model, meter and cache on the account of ``system``; its budget is ours unless given."""
        return Metered(
            self._model,
            meter=self._meter,
            cache=self._cache,
            budget=self._budget if budget is None else budget,
            system=system,
            price=self._price,
        )

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return the tokens of each prompt as the model reads it; free of charge."""
        return self._model.count_tokens(prompts)

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt, from the cache where it has them."""
        may = self._may_ask(prompts)
        keys = [
            tuple(text_key(self._name, prompt, decoding, index) for index in range(decoding.num_returns))
            for prompt in prompts
        ]
        known = self._known(key for row, row_keys in enumerate(keys) if may[row] for key in row_keys)
        asks = _asks([(prompt, keys[row]) for row, prompt in enumerate(prompts) if may[row]], known, decoding)
        failed: dict[str, tuple[Generation, float]] = {}
        for chosen in sorted({ask.decoding for ask in asks}, key=repr):
            self._pay([ask for ask in asks if ask.decoding == chosen], known, failed)
        results = []
        for row, prompt in enumerate(prompts):
            if not may[row]:
                self._charge(prompt, Usage(num_stopped=1, problems=Counter({"budget": decoding.num_returns})))
                results.append([Generation("", problem="budget") for _ in keys[row]])
                continue
            results.append([known[key].generation if key in known else failed[key][0] for key in keys[row]])
            self._charge(prompt, _logical(prompt, keys[row], known, failed))
        return results

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-likelihood of each prompt's options; minus infinity for all that could not be told.

        A call is one prompt with its options; the tokens read are the prompt's, those given are none.
        """
        may = self._may_ask(prompts)
        rows = [row for row in range(len(prompts)) if may[row]]
        keys = [
            [score_key(self._name, prompt, option) for option in choice]
            for prompt, choice in zip(prompts, options, strict=True)
        ]
        known = self._known(key for row in rows for key in keys[row])
        taken = set(known)
        asks: list[tuple[int, dict[str, str]]] = []
        for row in rows:
            missing = {key: text for key, text in zip(keys[row], options[row], strict=True) if key not in taken}
            if missing:
                taken.update(missing)
                asks.append((row, missing))
        lost: dict[str, float] = {}
        size = SMALL_CHUNK if isinstance(self._model, StreamingModel) else CHUNK
        for start in range(0, len(asks), size):
            self._pay_scores(prompts, asks[start : start + size], known, lost)
        results = []
        for row, prompt in enumerate(prompts):
            if may[row]:
                self._charge(prompt, _logical_score(keys[row], known, lost))
            else:
                self._charge(prompt, Usage(num_stopped=1, problems=Counter({"budget": 1})))
            results.append([_score_of(known.get(key)) if may[row] else FAILED for key in keys[row]])
        return results

    def _may_ask(self, prompts: Sequence[Prompt]) -> list[bool]:
        """Say of each prompt whether its question has room for it, those before it in the batch counted."""
        pending: dict[str, int] = {}
        may = []
        for prompt in prompts:
            before = pending.get(prompt.question_id, 0)
            may.append(self._meter.may_ask(self._system, prompt.question_id, self._budget, pending=before))
            pending[prompt.question_id] = before + may[-1]
        return may

    def _known(self, keys: Iterable[str]) -> dict[str, CallRecord]:
        if self._cache is None:
            return {}
        found = {key: self._cache.get(key) for key in keys}
        return {key: record for key, record in found.items() if record is not None}

    def _pay(self, asks: list[_Ask], known: dict[str, CallRecord], failed: dict[str, tuple[Generation, float]]) -> None:
        """Ask the model, keep each answer before the next is waited for, and charge who asked first."""
        for answers in self._answers(asks):
            new: dict[str, CallRecord] = {}
            for answer in answers:
                ask = asks[answer.index]
                share = answer.seconds / len(ask.keys)
                for key, generation in zip(ask.keys, answer.generations, strict=True):
                    if generation.problem:
                        failed[key] = (generation, share)
                    elif key not in known:  # beams that are known stay as they were first given
                        new[key] = record_of(generation, num_prompt_tokens=answer.num_prompt_tokens, seconds=share)
                paid = Usage(
                    paid_calls=1,
                    paid_prompt_tokens=answer.num_prompt_tokens,
                    paid_tokens=sum(generation.num_tokens for generation in answer.generations),
                    paid_seconds=answer.seconds,
                )
                self._charge(ask.prompt, paid)
            self._keep(new, known)

    def _answers(self, asks: list[_Ask]) -> Iterator[list[Answer]]:
        """Yield answers as they come, in lists of those that come together."""
        prompts = [ask.prompt for ask in asks]
        decoding = asks[0].decoding
        if isinstance(self._model, StreamingModel):
            for answer in self._model.stream(prompts, decoding):
                yield [answer]
            return
        for start in range(0, len(prompts), CHUNK):
            chunk = prompts[start : start + CHUNK]
            begun = time.perf_counter()
            texts = self._model.generate(chunk, decoding)
            seconds = time.perf_counter() - begun
            sizes = self._model.count_tokens(chunk)
            works = [size + sum(text.num_tokens for text in own) for size, own in zip(sizes, texts, strict=True)]
            whole = sum(works) or 1
            yield [
                Answer(start + row, own, 0 if all(text.problem for text in own) else size, seconds * work / whole)
                for row, (own, size, work) in enumerate(zip(texts, sizes, works, strict=True))
            ]

    def _pay_scores(
        self,
        prompts: Sequence[Prompt],
        asks: list[tuple[int, dict[str, str]]],
        known: dict[str, CallRecord],
        lost: dict[str, float],
    ) -> None:
        chunk = [prompts[row] for row, _ in asks]
        begun = time.perf_counter()
        scores = self._model.score(chunk, [list(missing.values()) for _, missing in asks])
        seconds = (time.perf_counter() - begun) / sum(len(missing) for _, missing in asks)
        new: dict[str, CallRecord] = {}
        for (row, missing), size, own in zip(asks, self._model.count_tokens(chunk), scores, strict=True):
            for key, value in zip(missing, own, strict=True):
                if math.isfinite(value):
                    new[key] = record_of(Generation("", float(value)), num_prompt_tokens=size, seconds=seconds)
                else:
                    lost[key] = seconds
            paid = Usage(paid_calls=1, paid_prompt_tokens=size, paid_seconds=seconds * len(missing))
            self._charge(prompts[row], paid)
        self._keep(new, known)

    def _keep(self, new: dict[str, CallRecord], known: dict[str, CallRecord]) -> None:
        if self._cache is not None and new:
            self._cache.put(new)
        known.update(new)

    def _charge(self, prompt: Prompt, usage: Usage) -> None:
        self._meter.charge(Account(self._system, self._name, prompt.instruction, prompt.question_id), usage)


def _asks(wanted: list[tuple[Prompt, tuple[str, ...]]], known: dict[str, CallRecord], decoding: Decoding) -> list[_Ask]:
    """Return what has to be paid, equal calls once: of samples those that are missing, of beams all where one is."""
    asks: dict[tuple[str, ...], _Ask] = {}
    for prompt, keys in wanted:
        missing = [index for index, key in enumerate(keys) if key not in known]
        if not missing or keys in asks:
            continue
        if decoding.method == "sample":
            own = replace(decoding, num_returns=len(missing), seed=later_seed(decoding.seed, missing[0]))
            asks[keys] = _Ask(prompt, own, tuple(keys[index] for index in missing))
        else:
            asks[keys] = _Ask(prompt, decoding, keys)
    return list(asks.values())


def _logical(
    prompt: Prompt,
    keys: tuple[str, ...],
    known: dict[str, CallRecord],
    failed: dict[str, tuple[Generation, float]],
) -> Usage:
    """Return what one prompt costs as if nothing had been remembered; the prompt is read once for all its texts."""
    records = [known[key] for key in keys if key in known]
    lost = [failed[key] for key in keys if key not in known]
    usage = Usage(
        num_calls=1,
        num_prompt_tokens=max((record.num_prompt_tokens for record in records), default=0),
        num_tokens=sum(record.num_tokens for record in records),
        seconds=math.fsum([*(record.seconds for record in records), *(seconds for _, seconds in lost)]),
        num_failed=int(bool(lost)),
        num_cut=sum(not record.finished for record in records),
    )
    usage.problems.update(generation.problem for generation, _ in lost)
    if prompt.constraint is not None:
        usage.num_outside = sum(not is_allowed(prompt.constraint, record.text) for record in records)
    return usage


def _logical_score(keys: list[str], known: dict[str, CallRecord], lost: dict[str, float]) -> Usage:
    records = [known[key] for key in dict.fromkeys(keys) if key in known]
    failed = [lost[key] for key in dict.fromkeys(keys) if key in lost]
    return Usage(
        num_calls=1,
        num_prompt_tokens=max((record.num_prompt_tokens for record in records), default=0),
        seconds=math.fsum([*(record.seconds for record in records), *failed]),
        num_failed=int(bool(failed)),
    )


def _score_of(record: CallRecord | None) -> float:
    return FAILED if record is None or record.log_prob is None else record.log_prob
