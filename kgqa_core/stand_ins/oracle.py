"""An oracle: a stand-in for a large language model that answers from its prompt alone, right with probability 1 - e.

It knows golds and gold plans, and says of them only what the prompt shows; what the prompt lacks it cannot say. Whether
a call goes wrong follows from the seed, the question, the instruction and the prompt, whatever was asked before.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.config_systems import OracleSection
from kgqa_core.instructions.answers import ABSTENTION
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.lm.allowed import finite_texts
from kgqa_core.lm.constraints import Choices
from kgqa_core.lm.types import Constraint, Prompt
from kgqa_core.stand_ins.clues import clues_of
from kgqa_core.stand_ins.knowledge import Knowledge, Known
from kgqa_core.stand_ins.options import Options, choice_lines, options_of, say_picks
from kgqa_core.stand_ins.oracle_plans import gold_and_other_plans
from kgqa_core.stand_ins.plan_texts import plan_text
from kgqa_core.stand_ins.reading import PromptReader, ReadPrompt
from kgqa_core.stand_ins.right import right_options
from kgqa_core.stand_ins.stand_in import CONTEXT, NO_TEXT, VERSION, Said, StandIn, seed_of, share_of

SURE = 0.9  # probability of all that is right together


def open_oracle(
    knowledge: Knowledge, prompts: Prompts, *others: Prompts, settings: OracleSection, context: int = CONTEXT
) -> StandIn:
    """Return an oracle as a language model.

    Args:
        knowledge: of all questions that it may be asked.
        prompts: the prompt files that it is asked with; ``others`` where some system has its own.
        settings: error, share of questions known without facts, seed.
        context: tokens that prompt and answer may have together, estimated.
    """
    mind = Oracle(knowledge, PromptReader(prompts, *others, steps=knowledge.steps), settings)
    told = f"{settings.error:g}-{settings.knows:g}-{settings.seed}"
    return StandIn(f"oracle-v{VERSION}-{told}-{knowledge.key}", mind, context)


@dataclass(frozen=True, slots=True)
class Oracle:
    """What the oracle says. Implements ``Mind``."""

    knowledge: Knowledge
    reader: PromptReader
    settings: OracleSection

    def say(self, prompt: Prompt, num: int) -> list[Said]:
        """Return the oracle's texts."""
        shown = self.reader.read(prompt)
        known = None if shown is None else self.knowledge.of_prompt(prompt, shown.question)
        if shown is None:
            return [(ABSTENTION, math.log(SURE))]
        if shown.instruction == "plan":
            return self._plans(prompt, shown, known, num)
        if shown.instruction == "extract_clues":
            return [(self._clues(prompt, known), math.log(SURE))]
        text = self._picked(prompt, shown, known)
        return [(_held_to(prompt.constraint, text), math.log(SURE))]

    def weigh(self, prompt: Prompt, options: Sequence[str]) -> list[float]:
        """Share ``SURE`` among the options that the oracle could say, the rest among the others."""
        good = self._good_texts(prompt)
        right = [text.strip() in good for text in options]
        num_right = sum(right)
        return [
            math.log((SURE if num_right < len(options) else 1.0) / num_right)
            if hit
            else math.log((1 - SURE if num_right else 1.0) / (len(options) - num_right))
            for hit in right
        ]

    def _good_texts(self, prompt: Prompt) -> set[str]:
        """Return what the oracle would say, as a whole, line by line, and plan by plan."""
        shown = self.reader.read(prompt)
        known = None if shown is None else self.knowledge.of_prompt(prompt, shown.question)
        if shown is not None and shown.instruction == "plan":
            if self._is_wrong(prompt, known):
                return {text for text, _ in self._plans(prompt, shown, known, 1)}
            return {plan_text(plan) for plan in known.plans} if known else set()
        text = self.say(prompt, 1)[0][0]
        lines = text.split("\n")
        found = {text, *lines}
        if shown is not None and shown.instruction == "choose":
            options = options_of(shown)
            for line, name, candidate in zip(
                choice_lines(shown, options), options.names, shown.candidates, strict=True
            ):
                if line in lines:
                    found |= {name, candidate.label}
        if shown is not None and shown.instruction == "score_relations":
            found |= {line.split(": ", 1)[-1].rsplit(" = ", 1)[0] for line in lines if not line.endswith(" = 0.00")}
        return found

    def _picked(self, prompt: Prompt, shown: ReadPrompt, known: Known | None) -> str:
        if shown.instruction in ("direct", "chain_of_thought"):
            names = sorted(known.golds) if known and self._knows(known) and not self._is_wrong(prompt, known) else []
            free = Options(shown.instruction, tuple(names))
            return say_picks(shown, free, range(len(names)))
        options = options_of(shown)
        picks = right_options(shown, options, known) if known else []
        if self._is_wrong(prompt, known):
            picks = _wrong_picks(options, picks, self._chance(prompt, known))
        return say_picks(shown, options, picks)

    def _plans(self, prompt: Prompt, shown: ReadPrompt, known: Known | None, num: int) -> list[Said]:
        wrong = self._is_wrong(prompt, known)
        chance = self._chance(prompt, known)
        gold, others = gold_and_other_plans(prompt.constraint, known, shown, chance, num if not wrong else num + 1)
        if wrong:
            gold = []
        plans = [*gold, *others][:num]
        shares = [SURE / max(len(gold), 1)] * len(gold)
        rest = 1 - SURE if gold else 1.0
        shares += [rest / 2 ** (place + 1) for place in range(len(others))]
        floor = min(shares[: len(gold)], default=1.0)
        said = [(plan_text(plan), math.log(min(share, floor))) for plan, share in zip(plans, shares, strict=False)]
        return said or [("", NO_TEXT)]

    def _clues(self, prompt: Prompt, known: Known | None) -> str:
        clues = clues_of(known) if known else ()
        if clues and self._is_wrong(prompt, known):
            lost = self._chance(prompt, known).randrange(len(clues))
            clues = clues[:lost] + clues[lost + 1 :]
        return "\n".join(clues) or ABSTENTION

    def _knows(self, known: Known) -> bool:
        return share_of(self.settings.seed, "knows", known.id) < self.settings.knows

    def _is_wrong(self, prompt: Prompt, known: Known | None) -> bool:
        return share_of(*self._parts(prompt, known)) < self.settings.error

    def _chance(self, prompt: Prompt, known: Known | None) -> random.Random:
        return random.Random(seed_of("which", *self._parts(prompt, known)))

    def _parts(self, prompt: Prompt, known: Known | None) -> tuple[object, ...]:
        constraint = "" if prompt.constraint is None else prompt.constraint.key
        return (self.settings.seed, known.id if known else "", prompt.instruction, prompt.text, constraint)


def _wrong_picks(options: Options, right: Sequence[int], chance: random.Random) -> list[int]:
    """Return another option than the right ones, or none at all; where none is right, one."""
    wrong = [index for index in range(len(options)) if index not in set(right)]
    if options.kind == "enough_information":
        return wrong
    if not wrong or (right and chance.random() < 0.5):
        return []
    return [wrong[chance.randrange(len(wrong))]]


def _held_to(constraint: Constraint | None, text: str) -> str:
    """Return the first line of ``text`` that may be answered, else the first text that may."""
    if constraint is None or not isinstance(constraint, Choices):
        return text
    texts = finite_texts(constraint) or [text]
    return next((line for line in (text, *text.split("\n")) if line in texts), texts[0])
