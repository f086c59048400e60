"""Who plays a language model in diagnoses: the contract of a model around something that answers typed cases.

A player gets what the prompt was rendered of (``Prompt.call``), answers from what that shows, and says it in the
instruction's form, so that its texts are parsed as any model's.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kgqa_core.errors import ConfigError
from kgqa_core.instructions.answers import ABSTENTION, write_answers, write_explained
from kgqa_core.instructions.choose import NO, YES, label_of
from kgqa_core.instructions.plan import END, SEPARATOR, START, parse_plans, render_step
from kgqa_core.instructions.render import escape
from kgqa_core.instructions.scores import write_scores
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.calls import is_allowed
from kgqa_core.lm.constraints import finite_texts
from kgqa_core.lm.types import GREEDY, Constraint, Decoding, Generation, Prompt
from kgqa_core.types import LabelPath

VERSION = 2  # of what players say: part of their names, which key the call cache
CONTEXT = 32_768  # tokens
CHARACTERS_PER_TOKEN = 4  # tokens of a player are an estimate
NO_TEXT = -100.0  # log-probability of the empty texts that fill up a beam

Said = tuple[str, float]  # text, natural log of its probability


@dataclass(frozen=True, slots=True)
class Call:
    """One call as a player sees it."""

    prompt: Prompt  # as a model would read it: equal prompts must get equal answers
    instruction: Any
    case: Any

    @property
    def name(self) -> str:
        """Return the name of the instruction."""
        return self.prompt.instruction

    @property
    def budget(self) -> int:
        """Return how many options may be named at most, where the case says it, else 1."""
        return int(getattr(self.case, "budget", 1))

    def seed(self, *first: object) -> tuple[object, ...]:
        """Return what all that is drawn for this call follows from, with ``first`` before it."""
        constraint = "" if self.prompt.constraint is None else self.prompt.constraint.key
        return (*first, self.name, self.prompt.system, self.prompt.text, constraint)


class Mind(Protocol):
    """What a player says to one call: of the call alone, whatever was asked before."""

    def say(self, call: Call, num: int) -> list[Said]:
        """Return up to ``num`` distinct texts, best first; at least one."""

    def weigh(self, call: Call, options: Sequence[str]) -> list[float]:
        """Return the log-probability of each option as the whole answer."""


@dataclass(frozen=True, slots=True)
class Player:
    """A mind behind the contract of a language model. Implements ``LanguageModel``; tokens are an estimate."""

    name: str  # stands for all that its answers follow from
    mind: Mind
    context: int = CONTEXT

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return an estimate of each prompt's tokens."""
        return [num_tokens(prompt.system) + num_tokens(prompt.text) for prompt in prompts]

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt; samples are all the best text, beams that lack a text are empty."""
        found: list[list[Generation]] = []
        num, is_beam = decoding.num_returns, decoding.method == "beam"
        for prompt, size in zip(prompts, self.count_tokens(prompts), strict=True):
            if size >= self.context:
                found.append([Generation("", problem="too_long")] * num)
                continue
            said = self.mind.say(call_of(prompt), num if is_beam else 1)[:num]
            said = said + [("", NO_TEXT)] * (num - len(said)) if is_beam else said * num
            found.append([_cut(text, log_prob, decoding) for text, log_prob in said])
        return found

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-probability of each prompt's options."""
        return [self.mind.weigh(call_of(prompt), own) for prompt, own in zip(prompts, options, strict=True)]


def call_of(prompt: Prompt) -> Call:
    """Return the call that a prompt was rendered of; ConfigError where the prompt does not say."""
    if prompt.call is None:
        raise ConfigError(f"a prompt of {prompt.instruction!r} came without its case, which its caller must give")
    return Call(prompt, *prompt.call)


def num_tokens(text: str) -> int:
    """Return an estimate of a text's tokens."""
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def seed_of(*parts: object) -> int:
    """Return a seed of 256 bits that follows from ``parts`` alone."""
    return int.from_bytes(hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "replace")).digest(), "big")


def _cut(text: str, log_prob: float, decoding: Decoding) -> Generation:
    """Return a text as far as its decoding lets it go."""
    places = [place for stop in decoding.stop if (place := text.find(stop)) >= 0]
    text = text[: min(places, default=None)]
    most = decoding.max_new_tokens * CHARACTERS_PER_TOKEN
    return Generation(text[:most], log_prob, num_tokens(text[:most]), finished=len(text) <= most)


# ------ What a case offers to pick from, and how picks are said.


HIGH, LOW = 0.95, 0.05  # scores of what is picked, and of what is not
DROP = 0.05  # between the scores of relations that are picked one after the other
FITS = 9  # of 10: a relation that is picked for a clue
NO_PAIR = "none"


@dataclass(frozen=True, slots=True)
class Options:
    """What can be picked, in the order shown."""

    names: tuple[str, ...] = ()  # relations, entities, candidates, ends of paths, verdicts
    clues: tuple[str, ...] = ()  # of mappings, parallel to names: for what each is picked


def options_of(call: Call) -> Options:
    """Return what a case offers; nothing where an answer is free text."""
    case = call.case
    match call.name:
        case "score_relations":
            return Options(case.relations)
        case "score_entities":
            return Options(tuple(entity.name for entity in case.candidates))
        case "reason" | "explain":
            return Options(tuple(dict.fromkeys(path.end for path in case.paths)))
        case "choose":  # where names are not shown: what the evidence ends at
            shown = call.instruction.shown
            is_read = [shown.names or (shown.evidence and one.evidence) for one in case.candidates]
            return Options(tuple(one.name if so else "" for one, so in zip(case.candidates, is_read, strict=True)))
        case "enough_information":
            return Options((YES, NO))
        case "map_relations" | "map_entities":
            mapped = tuple(dict.fromkeys(case.options))
            return Options(mapped * len(case.clues), tuple(clue for clue in case.clues for _ in mapped))
    return Options()


def say_picks(call: Call, options: Options, picks: Sequence[int], others: Sequence[int] = ()) -> str:
    """Return the text that picks some options, best first, in the instruction's form; without any it abstains.

    Of relations ``others`` are named, too, with low scores, as far as the budget goes; one is always named.
    """
    all_names, names = options.names, [options.names[pick] for pick in picks]
    lines = [escape(name) for name in names]
    if options.clues:
        lines = [f"{escape(options.clues[pick])} -> {line}" for pick, line in zip(picks, lines, strict=True)]
    match call.name:
        case "score_relations":
            scored = [(pick, max(HIGH - DROP * place, DROP)) for place, pick in enumerate(picks)]
            scored += [(pick, LOW) for pick in others]
            return write_scores(all_names, scored[: call.budget] or [(0, 0.0)][: len(all_names)], budget=call.budget)
        case "score_entities" if len(all_names) == 1:
            return f"{HIGH if picks else LOW:.2f}"
        case "score_entities":
            return write_scores(all_names, [(at, HIGH if at in set(picks) else LOW) for at in range(len(all_names))])
        case "map_relations":
            return "\n".join(f"{line} = {FITS}" for line in lines) or NO_PAIR
        case "map_entities":
            return "\n".join(lines) or NO_PAIR
        case "choose":
            labels = [f"{label}. " if (label := _label(call, pick)) else "" for pick in picks]
            return "\n".join(map("".join, zip(labels, lines, strict=True))) or ABSTENTION
        case "enough_information":
            return names[0] if names else NO
        case "explain" | "chain_of_thought":
            return write_explained("This leads there." if names else "This does not tell.", names)
    return write_answers(names, call.case.shown)


def ways_to_say(call: Call, options: Options, pick: int) -> set[str]:
    """Return the texts that may be weighed for one option: its line, how that begins, its name, its label."""
    name = options.names[pick]
    begins = call.instruction.lines(call.case)[pick] if call.name == "score_relations" else ""
    return {say_picks(call, options, [pick]), begins, name, escape(name), _label(call, pick)} - {""}


def _label(call: Call, pick: int) -> str:
    is_labelled = call.name == "choose" and call.instruction.file == "choose"
    return label_of(pick) if is_labelled else ""


def held_to(constraint: Constraint | None, text: str) -> str:
    """Return ``text`` where it may be answered, else its first line that may, else the first text that may."""
    if constraint is None:
        return text
    lines = (text, *text.split("\n"))
    allowed = next((line for line in lines if is_allowed(constraint, line)), None)
    return allowed if allowed is not None else (finite_texts(constraint) or [text])[0]


# ------ Plans that a constraint allows: the first, one drawn, those near a given one.


MAX_PIECES = 64  # of a plan
TRIES = 16  # plans drawn


def some_text(constraint: Constraint, chance: random.Random | None) -> str:
    """Return a text made piece by piece, drawn or, without chance, always the first; empty where it comes to no end."""
    pieces: tuple[str, ...] = ()
    while not constraint.may_end(pieces):
        following = constraint.next_pieces(pieces)
        if not following or len(pieces) == MAX_PIECES:
            return ""
        pieces = (*pieces, following[chance.randrange(len(following)) if chance else 0])
    return "".join(pieces)


def near_plans(constraint: Constraint, plan: LabelPath, chance: random.Random) -> Iterator[LabelPath]:
    """Yield allowed plans that differ from ``plan`` in their last step, then any; not all of them distinct."""
    if plan:
        begin = (START, *(render_step(step) + SEPARATOR for step in plan[:-1]))
        pieces = [piece for piece in constraint.next_pieces(begin) if piece.endswith(END)]
        chance.shuffle(pieces)
        yield from (found for piece in pieces if (found := _read("".join((*begin, piece)))) != plan)
    for _ in range(TRIES):
        if found := _read(some_text(constraint, chance)):
            yield found


def _read(text: str) -> LabelPath:
    found = parse_plans(text)
    return () if isinstance(found, ParseFailure) else found[0]


# ------ Controls: chance, and always the first, in place of a language model. What does not beat them adds nothing.


NUM_CLUES = 3  # words of a question that are taken for clues


def open_control(seed: int | None) -> Player:
    """Return a player that picks at random among what a call shows; without a seed it always picks the first."""
    return Player(f"first-v{VERSION}" if seed is None else f"random-v{VERSION}-{seed}", Control(seed))


@dataclass(frozen=True, slots=True)
class Control:
    """What a control says. Implements ``Mind``.

    Among reasoning paths it picks a way, a sequence of relations, and answers with all that it ends at: one end would
    be easier to beat.
    """

    seed: int | None  # None: always the first

    def say(self, call: Call, num: int) -> list[Said]:
        """Return plans in the order drawn, or the one text that answers any other instruction."""
        chance, constraint = random.Random(seed_of(*call.seed(self.seed))), call.prompt.constraint
        if call.name != "plan":
            return [(held_to(constraint, self._text(call, chance)), -math.log(2))]
        tries = [None] if self.seed is None else [chance] * TRIES
        drawn = dict.fromkeys(some_text(constraint, one) for one in tries) if constraint is not None else ()
        texts = [text for text in drawn if text][:num]
        return list(zip(texts, _halves(len(texts)), strict=True)) or [("", NO_TEXT)]

    def weigh(self, call: Call, options: Sequence[str]) -> list[float]:
        """Return 1/2, 1/4, ... in the order given, or in one that is drawn, as log-probabilities."""
        weights = _halves(len(options))
        if self.seed is not None:
            random.Random(seed_of(*call.seed(self.seed))).shuffle(weights)
        return weights

    def _text(self, call: Call, chance: random.Random) -> str:
        if call.name == "extract_clues":
            words = list(dict.fromkeys(call.case.question.split()))
            return "\n".join(words[place] for place in self._order(len(words), chance)[:NUM_CLUES])
        options = options_of(call)
        if call.name in ("reason", "explain"):
            ways: dict[tuple[str, ...], dict[str, None]] = {}
            for path in call.case.paths:
                ways.setdefault(path.steps, {})[path.end] = None
            chosen = [list(ways.values())[place] for place in self._order(len(ways), chance)[:1]]
            return say_picks(call, options, [options.names.index(end) for ends in chosen for end in ends])
        picks = self._order(len(options.names), chance)[: call.budget]
        if call.name == "score_entities" and self.seed is not None:
            picks = [place for place in range(len(options.names)) if chance.random() < 0.5]
        return say_picks(call, options, picks)

    def _order(self, num: int, chance: random.Random) -> list[int]:
        places = list(range(num))
        if self.seed is not None:
            chance.shuffle(places)
        return places


def _halves(num: int) -> list[float]:
    return [-(place + 1) * math.log(2) for place in range(num)]
