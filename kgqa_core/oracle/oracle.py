"""Which of the options that a prompt shows are right, by what is known of its question."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kgqa_core.config_systems import OracleSection
from kgqa_core.evaluation.rog import normalise_name
from kgqa_core.instructions.answers import ABSTENTION
from kgqa_core.instructions.choose import NO, YES
from kgqa_core.instructions.plan import render_plan
from kgqa_core.instructions.render import ARROW, Prompts
from kgqa_core.lm.constraints import is_allowed
from kgqa_core.lm.types import Constraint, Prompt
from kgqa_core.oracle.knowledge import Knowledge, Known, clues_of, step_clues
from kgqa_core.oracle.options import (
    CONTEXT,
    NO_TEXT,
    VERSION,
    Options,
    Said,
    StandIn,
    held_to,
    near_plans,
    options_of,
    say_picks,
    seed_of,
    share_of,
    ways_to_say,
)
from kgqa_core.oracle.reading import PromptReader, ReadPrompt
from kgqa_core.types import LabelPath


def right_options(shown: ReadPrompt, options: Options, known: Known) -> list[int]:
    """Return the places of the right options, in the order shown."""
    match options.instruction:
        case "score_relations":
            right: Collection[str] = _next_steps(known, shown.path)
        case "score_entities":
            right = _on_the_way(known, shown.plan)
        case "enough_information":
            right = (YES,) if any(end in known.golds for path in shown.paths for end in path.ends) else (NO,)
        case "map_relations":
            pairs = set(_clue_of_relation(shown, known))
            return _places_of_pairs(options, pairs)
        case "map_entities":
            pairs = {(clue, name) for clue in shown.clues for name in shown.entities if _is_name(clue, name)}
            named = {name for _, name in pairs}
            pairs |= {(clue, name) for clue, name in _clue_of_entity(shown, known) if name not in named}
            return _places_of_pairs(options, pairs)
        case _:
            right = known.golds
    return [place for place, name in enumerate(options.names) if name in right]


def _places_of_pairs(options: Options, pairs: set[tuple[str, str]]) -> list[int]:
    return [at for at, pair in enumerate(zip(options.clues, options.names, strict=True)) if pair in pairs]


def _next_steps(known: Known, path: Sequence[str]) -> set[str]:
    """Return the steps that go on from ``path`` along some gold plan."""
    size = len(path)
    return {plan[size] for plan in known.plans if len(plan) > size and plan[:size] == tuple(path)}


def _on_the_way(known: Known, plan: Sequence[str]) -> set[str]:
    """Return the names on the ways to golds, topics left out, along the gold plans that begin with ``plan``."""
    size = len(plan)
    layers = [own for gold, own in zip(known.plans, known.layers, strict=True) if gold[:size] == tuple(plan)]
    return {name for own in layers for layer in own[1:] for name in layer}


def _clue_of_relation(shown: ReadPrompt, known: Known) -> Iterator[tuple[str, str]]:
    """Yield (clue, step) of each step that goes on from the entity shown, and whose clue is left."""
    for clue, step, place in _steps_left(shown, known):
        if _stands_at(shown.entity, known, place):
            yield clue, step


def _clue_of_entity(shown: ReadPrompt, known: Known) -> Iterator[tuple[str, str]]:
    """Yield (clue, name) of each entity that the clue's own step leads to on a way to golds."""
    for clue, step, place in _steps_left(shown, known):
        if _stands_at(shown.entity, known, place) and shown.relation in ("", step):
            after = known.layers[0][place + 1]
            yield from ((clue, name) for name in shown.entities if name in after)


def _steps_left(shown: ReadPrompt, known: Known) -> Iterator[tuple[str, str, int]]:
    """Yield (clue as shown, step, place) of each step of the first gold plan whose clue is left."""
    left = {normalise_name(clue): clue for clue in shown.clues}
    for place, (step, own) in enumerate(zip(known.plans[0] if known.plans else (), step_clues(known), strict=True)):
        clue = left.get(normalise_name(own))
        if clue is not None:
            yield clue, step, place


def _stands_at(entity: str, known: Known, place: int) -> bool:
    """Say whether the first gold plan's step at ``place`` starts at an entity, or at the end of a path to several."""
    way = ARROW.join(("", *known.plans[0][:place]))
    return not entity or entity in known.layers[0][place] or (place > 0 and entity.endswith(way))


def _is_name(clue: str, name: str) -> bool:
    return normalise_name(clue) == normalise_name(name)


# ------ The plans that an oracle proposes: the gold ones that are allowed, then others near them.


SURE = 0.9  # probability of all that is right together


def gold_plans(constraint: Constraint | None, known: Known | None) -> list[LabelPath]:
    """Return the gold plans that may be answered, best first."""
    plans = [plan for plan in known.plans if plan] if known else []
    return [plan for plan in plans if constraint is None or is_allowed(constraint, render_plan(plan))]


def other_plans(
    constraint: Constraint | None, known: Known | None, shown: ReadPrompt, chance: random.Random, num: int
) -> list[LabelPath]:
    """Return up to ``num`` plans that may be answered and are not gold, the most like a gold one first.

    Without a constraint these are the single relations that the prompt shows.
    """
    golds = set(known.plans) if known else set()
    if constraint is None:
        single: list[LabelPath] = [(label,) for label in shown.relations]
        return [plan for plan in single if plan not in golds][:num]
    gold = gold_plans(constraint, known)
    found: dict[LabelPath, None] = {}
    near = near_plans(constraint, gold[0] if gold else (), chance)
    while len(found) < num and (plan := next(near, None)):
        if plan not in golds:
            found[plan] = None
    return list(found)


def log_probs(num_gold: int, num_others: int) -> list[float]:
    """Return non-increasing log-probabilities: gold plans share ``SURE``, others halve what is left again and again."""
    share = SURE / num_gold if num_gold else 1.0
    left = 1 - SURE if num_gold else 1.0
    others = [min(share, left / 2 ** (place + 1)) for place in range(num_others)]
    return [math.log(one) for one in [share] * num_gold + others]


# ------ An oracle: a stand-in for a large language model that answers from its prompt alone, right ...


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
