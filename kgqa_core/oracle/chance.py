"""Controls: chance, and always the first, in place of a language model. What does not beat them adds nothing.

Both see only what the prompt shows, and answer in the form that the instruction asks for. Among reasoning paths they
pick a way, a sequence of relations, and answer with all that it ends at: one end alone would be easier to beat.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.oracle.player import (
    CONTEXT,
    NO_TEXT,
    TRIES,
    VERSION,
    Call,
    Options,
    Player,
    Said,
    held_to,
    options_of,
    say_picks,
    seed_of,
    some_text,
)

NUM_CLUES = 3  # words of a question that are taken for clues


def open_random(seed: int = 0, context: int = CONTEXT) -> Player:
    """Return a player that picks at random among what a call shows."""
    return Player(f"random-v{VERSION}-{seed}", Control(seed), context)


def open_first(context: int = CONTEXT) -> Player:
    """Return a player that always picks the first of what a call shows."""
    return Player(f"first-v{VERSION}", Control(None), context)


@dataclass(frozen=True, slots=True)
class Control:
    """What a control says. Implements ``Mind``."""

    seed: int | None  # None: always the first

    def say(self, call: Call, num: int) -> list[Said]:
        """Return plans in the order drawn, or the one text that answers any other instruction."""
        chance = self._chance(call)
        if call.name == "plan":
            texts = self._plans(call, num, chance)
        else:
            texts = [held_to(call.prompt.constraint, self._text(call, chance))]
        return list(zip(texts, _halves(len(texts)), strict=True)) or [("", NO_TEXT)]

    def weigh(self, call: Call, options: Sequence[str]) -> list[float]:
        """Return 1/2, 1/4, ... in the order given, or in one that is drawn, as log-probabilities."""
        weights = _halves(len(options))
        if self.seed is not None:
            self._chance(call).shuffle(weights)
        return weights

    def _text(self, call: Call, chance: random.Random) -> str:
        if call.name == "extract_clues":
            words = list(dict.fromkeys(call.case.question.split()))
            return "\n".join(words[place] for place in self._order(len(words), chance)[:NUM_CLUES])
        options = options_of(call)
        if call.name in ("reason", "explain"):
            return say_picks(call, options, self._ends_of_a_way(call, options, chance))
        picks = self._order(len(options), chance)[: call.budget]
        if call.name == "score_entities" and self.seed is not None:
            picks = [place for place in range(len(options)) if chance.random() < 0.5]
        return say_picks(call, options, picks)

    def _ends_of_a_way(self, call: Call, options: Options, chance: random.Random) -> list[int]:
        ways: dict[tuple[str, ...], dict[str, None]] = {}
        for path in call.case.paths:
            ways.setdefault(path.steps, {})[path.end] = None
        chosen = self._order(len(ways), chance)[:1]
        return [options.names.index(end) for place in chosen for end in list(ways.values())[place]]

    def _plans(self, call: Call, num: int, chance: random.Random) -> list[str]:
        """Return the first plan that is allowed, or some drawn; none without a constraint."""
        constraint = call.prompt.constraint
        if constraint is None:
            return []
        tries = [None] if self.seed is None else [chance] * TRIES
        return [text for text in dict.fromkeys(some_text(constraint, one) for one in tries) if text][:num]

    def _chance(self, call: Call) -> random.Random:
        return random.Random(seed_of(*call.seed(self.seed)))

    def _order(self, num: int, chance: random.Random) -> list[int]:
        """Return the places of ``num`` things in the order in which they are picked."""
        places = list(range(num))
        if self.seed is not None:
            chance.shuffle(places)
        return places


def _halves(num: int) -> list[float]:
    return [-(place + 1) * math.log(2) for place in range(num)]
