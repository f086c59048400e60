"""An oracle: a stand-in for a large language model that answers from its prompt alone, right with probability 1 - e.

It knows golds and gold plans, and says of them only what the prompt shows: what the prompt lacks it cannot say. Whether
a call goes wrong, and how, follows from the seed, the question, the instruction and the prompt, whatever was asked
before.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.config_systems import OracleSection
from kgqa_core.instructions.answers import ABSTENTION
from kgqa_core.instructions.plan_text import render_plan
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.lm.types import Prompt
from kgqa_core.stand_ins.clues import clues_of
from kgqa_core.stand_ins.knowledge import Knowledge, Known
from kgqa_core.stand_ins.options import Options, held_to, options_of, say_picks, ways_to_say
from kgqa_core.stand_ins.oracle_plans import SURE, gold_plans, log_probs, other_plans
from kgqa_core.stand_ins.reading import PromptReader, ReadPrompt
from kgqa_core.stand_ins.right import right_options
from kgqa_core.stand_ins.stand_in import CONTEXT, NO_TEXT, VERSION, Said, StandIn, seed_of, share_of


def open_oracle(
    knowledge: Knowledge, prompts: Prompts, *others: Prompts, settings: OracleSection, context: int = CONTEXT
) -> StandIn:
    """Return an oracle as a language model.

    Args:
        knowledge: of all questions that it may be asked.
        prompts: the prompt files that it is asked with; ``others`` where some system has its own.
        settings: error, share of the questions known without facts, seed.
        context: tokens that prompt and answer may have together, estimated.
    """
    mind = Oracle(knowledge, PromptReader(prompts, *others, steps=knowledge.steps), settings)
    told = f"{settings.error:g}-{settings.knows:g}-{settings.seed}{'-fills' if settings.fill_budget else ''}"
    return StandIn(f"oracle-v{VERSION}-{told}-{knowledge.key}", mind, context)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call as the oracle understands it."""

    prompt: Prompt
    shown: ReadPrompt
    known: Known | None  # None: of this question it was told nothing
    is_wrong: bool
    seed: tuple[object, ...]  # of all that is drawn for it

    @property
    def chance(self) -> random.Random:
        """Return its own chance, the same whenever it is asked."""
        return random.Random(seed_of("which", *self.seed))


@dataclass(frozen=True, slots=True)
class Oracle:
    """What the oracle says. Implements ``Mind``."""

    knowledge: Knowledge
    reader: PromptReader
    settings: OracleSection

    def say(self, prompt: Prompt, num: int) -> list[Said]:
        """Return plans, best first, or the one text that answers any other instruction."""
        call = self._understand(prompt)
        if call.shown.instruction == "plan":
            return _say_plans(call, num)
        if call.shown.instruction == "extract_clues":
            return [(_say_clues(call), math.log(SURE))]
        options, picks = self._pick(call)
        text = say_picks(call.shown, options, picks, self._others(call, options, picks))
        return [(held_to(prompt.constraint, text), math.log(SURE))]

    def weigh(self, prompt: Prompt, options: Sequence[str]) -> list[float]:
        """Let the options that it would say share ``SURE``, and the others the rest."""
        good = self._good_texts(self._understand(prompt))
        is_good = [option.strip() in good for option in options]
        num_good = sum(is_good)
        num_bad = len(options) - num_good
        share = SURE if num_good and num_bad else 1.0
        left = 1 - SURE if num_good else 1.0
        return [math.log(share / num_good if one else left / num_bad) for one in is_good]

    def _understand(self, prompt: Prompt) -> _Call:
        shown = self.reader.read(prompt)
        known = self.knowledge.of_prompt(prompt, shown.question)
        constraint = "" if prompt.constraint is None else prompt.constraint.key
        whose = known.id if known else ""
        seed = (self.settings.seed, whose, prompt.instruction, prompt.system, prompt.text, constraint)
        return _Call(prompt, shown, known, share_of("error", *seed) < self.settings.error, seed)

    def _pick(self, call: _Call) -> tuple[Options, list[int]]:
        """Return what there is to pick from, and what the oracle picks; of questions alone: what it knows by heart."""
        if call.shown.instruction in ("direct", "chain_of_thought"):
            golds = sorted(call.known.golds) if call.known and self._knows(call.known) and not call.is_wrong else []
            return Options(call.shown.instruction, tuple(golds)), list(range(len(golds)))
        options = options_of(call.shown)
        right = right_options(call.shown, options, call.known) if call.known else []
        return options, _wrong_picks(options, right, call.chance) if call.is_wrong else right

    def _others(self, call: _Call, options: Options, picks: Sequence[int]) -> list[int]:
        """Return what else is named, where the budget is filled up: in an order drawn, without right ones."""
        if not self.settings.fill_budget or options.instruction != "score_relations":
            return []
        right = right_options(call.shown, options, call.known) if call.known else []
        others = sorted(set(range(len(options))).difference(picks, right))
        call.chance.shuffle(others)
        return others

    def _knows(self, known: Known) -> bool:
        return share_of("knows", self.settings.seed, known.id) < self.settings.knows

    def _good_texts(self, call: _Call) -> set[str]:
        """Return all that would be weighed as what the oracle says."""
        if call.shown.instruction == "plan":
            golds = [] if call.is_wrong or not call.known else call.known.plans
            return {render_plan(plan) for plan in golds} or {text for text, _ in _say_plans(call, 1)}
        if call.shown.instruction == "extract_clues":
            return {_say_clues(call)}
        options, picks = self._pick(call)
        text = say_picks(call.shown, options, picks)
        return {text}.union(*(ways_to_say(call.shown, options, pick) for pick in picks))


def _say_plans(call: _Call, num: int) -> list[Said]:
    """Return gold plans, then others; of a call that goes wrong others alone."""
    constraint = call.prompt.constraint
    gold = [] if call.is_wrong else gold_plans(constraint, call.known)[:num]
    others = other_plans(constraint, call.known, call.shown, call.chance, num - len(gold))
    texts = [render_plan(plan) for plan in (*gold, *others)]
    return list(zip(texts, log_probs(len(gold), len(others)), strict=True)) or [("", NO_TEXT)]


def _say_clues(call: _Call) -> str:
    """Return the question's clues, one per line; a call that goes wrong leaves one out."""
    clues = clues_of(call.known) if call.known else ()
    if clues and call.is_wrong:
        lost = call.chance.randrange(len(clues))
        clues = clues[:lost] + clues[lost + 1 :]
    return "\n".join(clues) or ABSTENTION


def _wrong_picks(options: Options, right: Sequence[int], chance: random.Random) -> list[int]:
    """Return the other verdict, another option than the right ones, or none; where none is right, one."""
    wrong = sorted(set(range(len(options))).difference(right))
    if options.instruction == "enough_information":
        return wrong
    if not wrong or (right and chance.random() < 0.5):
        return []
    return [wrong[chance.randrange(len(wrong))]]
