"""Controls: chance, and always the first, in place of a language model. What does not beat them adds nothing.

Both see only what the prompt shows, and answer in the form that the instruction asks for. Of reasoning paths they pick
a way, a sequence of relations, and answer with all that it ends at: one end of many would be an easier control to beat.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.instructions.answers import ABSTENTION
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.lm.allowed import finite_texts
from kgqa_core.lm.constraints import Choices
from kgqa_core.lm.types import Prompt
from kgqa_core.stand_ins.options import options_of, say_picks
from kgqa_core.stand_ins.plan_texts import first_text, plan_text, random_text
from kgqa_core.stand_ins.reading import PromptReader, ReadPrompt
from kgqa_core.stand_ins.stand_in import CONTEXT, NO_TEXT, VERSION, Said, StandIn, seed_of

NUM_CLUES = 3
TRIES = 8  # plans drawn per plan that is wanted


def open_random(prompts: Prompts, *others: Prompts, seed: int = 0, context: int = CONTEXT) -> StandIn:
    """Return a stand-in that picks at random among what its prompt shows."""
    return StandIn(f"random-v{VERSION}-{seed}", Control(PromptReader(prompts, *others), seed), context)


def open_first(prompts: Prompts, *others: Prompts, context: int = CONTEXT) -> StandIn:
    """Return a stand-in that always picks the first of what its prompt shows."""
    return StandIn(f"first-v{VERSION}", Control(PromptReader(prompts, *others), None), context)


@dataclass(frozen=True, slots=True)
class Control:
    """What a control says. Implements ``Mind``."""

    reader: PromptReader
    seed: int | None  # None: always the first

    def say(self, prompt: Prompt, num: int) -> list[Said]:
        """Return texts that pick by chance or by place."""
        shown = self.reader.read(prompt)
        texts = [ABSTENTION]
        if shown is not None and shown.instruction == "plan":
            texts = self._plans(prompt, shown, num)
        elif shown is not None:
            texts = [self._text(prompt, shown)]
        return [(text, -(place + 1) * math.log(2)) for place, text in enumerate(texts)] or [("", NO_TEXT)]

    def weigh(self, prompt: Prompt, options: Sequence[str]) -> list[float]:
        """Return the log-probabilities of an order drawn, or of the order given: 1/2, 1/4, ..."""
        places = list(range(len(options)))
        if self.seed is not None:
            self._chance(prompt).shuffle(places)
        return [-(place + 1) * math.log(2) for place in places]

    def _text(self, prompt: Prompt, shown: ReadPrompt) -> str:
        chance = self._chance(prompt)
        if isinstance(prompt.constraint, Choices):
            texts = finite_texts(prompt.constraint) or [""]
            return texts[self._pick(len(texts), chance)]
        if shown.instruction == "extract_clues":
            words = list(dict.fromkeys(shown.question.split()))
            self._order(words, chance)
            return "\n".join(words[:NUM_CLUES]) or ABSTENTION
        options = options_of(shown)
        places = list(range(len(options)))
        if shown.instruction in ("reason", "explain"):
            places = self._way(shown, options.names, chance)
        else:
            self._order(places, chance)
            places = places[: shown.budget]
        return say_picks(shown, options, places)

    def _way(self, shown: ReadPrompt, names: Sequence[str], chance: random.Random) -> list[int]:
        """Return the ends of all paths along one sequence of relations."""
        ways: dict[tuple[str, ...], dict[str, None]] = {}
        for path in shown.paths:
            ways.setdefault(path.steps, {}).update(dict.fromkeys(path.ends[:1]))
        if not ways:
            return []
        ends = list(ways.values())[self._pick(len(ways), chance)]
        return [names.index(name) for name in ends]

    def _plans(self, prompt: Prompt, shown: ReadPrompt, num: int) -> list[str]:
        chance, constraint = self._chance(prompt), prompt.constraint
        if constraint is None:
            labels = list(shown.relations)
            self._order(labels, chance)
            return [plan_text((label,)) for label in labels[:num]]
        if self.seed is None:
            first = first_text(constraint)
            return [first] if first else []
        drawn = [random_text(constraint, chance) for _ in range(TRIES * num)]
        return list(dict.fromkeys(text for text in drawn if text))[:num]

    def _chance(self, prompt: Prompt) -> random.Random:
        constraint = "" if prompt.constraint is None else prompt.constraint.key
        return random.Random(seed_of(self.seed, prompt.instruction, prompt.text, constraint))

    def _pick(self, num: int, chance: random.Random) -> int:
        return 0 if self.seed is None else chance.randrange(num)

    def _order(self, items: list[int] | list[str], chance: random.Random) -> None:
        if self.seed is not None:
            chance.shuffle(items)
