"""Controls: chance, and always the first, in place of a language model. What does not beat them adds nothing.

Both see only what the prompt shows, and answer in the form that the instruction asks for. Among reasoning paths they
pick a way, a sequence of relations, and answer with all that it ends at: one end alone would be easier to beat.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.instructions.plan import render_plan
from kgqa_core.instructions.render import Prompts
from kgqa_core.lm.types import Prompt
from kgqa_core.oracle.options import (
    CONTEXT,
    NO_TEXT,
    TRIES,
    VERSION,
    Options,
    Said,
    StandIn,
    first_text,
    held_to,
    options_of,
    random_text,
    say_picks,
    seed_of,
)
from kgqa_core.oracle.reading import PromptReader, ReadPrompt

NUM_CLUES = 3  # words of a question that are taken for clues


def open_random(prompts: Prompts, *others: Prompts, seed: int = 0, context: int = CONTEXT) -> StandIn:
    """Return a stand-in that picks at random among what its prompt shows; see ``oracle.open_oracle``."""
    return StandIn(f"random-v{VERSION}-{seed}", Control(PromptReader(prompts, *others), seed), context)


def open_first(prompts: Prompts, *others: Prompts, context: int = CONTEXT) -> StandIn:
    """Return a stand-in that always picks the first of what its prompt shows; see ``oracle.open_oracle``."""
    return StandIn(f"first-v{VERSION}", Control(PromptReader(prompts, *others), None), context)


@dataclass(frozen=True, slots=True)
class Control:
    """What a control says. Implements ``Mind``."""

    reader: PromptReader
    seed: int | None  # None: always the first

    def say(self, prompt: Prompt, num: int) -> list[Said]:
        """Return plans in the order drawn, or the one text that answers any other instruction."""
        shown, chance = self.reader.read(prompt), self._chance(prompt)
        if shown.instruction == "plan":
            texts = self._plans(prompt, shown, num, chance)
        else:
            texts = [held_to(prompt.constraint, self._text(shown, chance))]
        return list(zip(texts, _halves(len(texts)), strict=True)) or [("", NO_TEXT)]

    def weigh(self, prompt: Prompt, options: Sequence[str]) -> list[float]:
        """Return 1/2, 1/4, ... in the order given, or in one that is drawn, as log-probabilities."""
        weights = _halves(len(options))
        if self.seed is not None:
            self._chance(prompt).shuffle(weights)
        return weights

    def _text(self, shown: ReadPrompt, chance: random.Random) -> str:
        if shown.instruction == "extract_clues":
            words = list(dict.fromkeys(shown.question.split()))
            return "\n".join(words[place] for place in self._order(len(words), chance)[:NUM_CLUES])
        options = options_of(shown)
        if shown.instruction in ("reason", "explain"):
            return say_picks(shown, options, self._ends_of_a_way(shown, options, chance))
        picks = self._order(len(options), chance)[: shown.budget]
        if shown.instruction == "score_entities" and self.seed is not None:
            picks = [place for place in range(len(options)) if chance.random() < 0.5]
        return say_picks(shown, options, picks)

    def _ends_of_a_way(self, shown: ReadPrompt, options: Options, chance: random.Random) -> list[int]:
        ways: dict[tuple[str, ...], dict[str, None]] = {}
        for path in shown.paths:
            ways.setdefault(path.steps, {}).update(dict.fromkeys(path.ends[:1]))
        chosen = self._order(len(ways), chance)[:1]
        return [options.names.index(end) for place in chosen for end in list(ways.values())[place]]

    def _plans(self, prompt: Prompt, shown: ReadPrompt, num: int, chance: random.Random) -> list[str]:
        """Return the first plan that is allowed, or some drawn; without a constraint a relation that is shown."""
        if prompt.constraint is None:
            places = self._order(len(shown.relations), chance)
            return [render_plan((shown.relations[place],)) for place in places[:num]]
        if self.seed is None:
            texts = [first_text(prompt.constraint)]
        else:
            texts = [random_text(prompt.constraint, chance) for _ in range(TRIES)]
        return list(dict.fromkeys(text for text in texts if text))[:num]

    def _chance(self, prompt: Prompt) -> random.Random:
        constraint = "" if prompt.constraint is None else prompt.constraint.key
        return random.Random(seed_of(self.seed, prompt.instruction, prompt.system, prompt.text, constraint))

    def _order(self, num: int, chance: random.Random) -> list[int]:
        """Return the places of ``num`` things in the order in which they are picked."""
        places = list(range(num))
        if self.seed is not None:
            chance.shuffle(places)
        return places


def _halves(num: int) -> list[float]:
    return [-(place + 1) * math.log(2) for place in range(num)]
