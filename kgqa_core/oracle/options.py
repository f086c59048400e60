"""What every stand-in shares: the contract of a language model around something that says texts."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kgqa_core.instructions.answers import ABSTENTION, write_answers, write_explained
from kgqa_core.instructions.choose import NO, YES
from kgqa_core.instructions.plan import END, SEPARATOR, START, parse_plan, render_step
from kgqa_core.instructions.render import escape
from kgqa_core.instructions.scores import write_scores
from kgqa_core.instructions.types import ParseFailure
from kgqa_core.lm.constraints import finite_texts, is_allowed
from kgqa_core.lm.types import GREEDY, Constraint, Decoding, Generation, Prompt
from kgqa_core.oracle.reading import ReadPrompt
from kgqa_core.types import LabelPath

VERSION = 1  # of what stand-ins say: part of their names, which key the call cache
CONTEXT = 32_768  # tokens
CHARACTERS_PER_TOKEN = 4  # tokens of a stand-in are an estimate
NO_TEXT = -100.0  # log-probability of the empty texts that fill up a beam

Said = tuple[str, float]  # text, natural log of its probability


class Mind(Protocol):
    """What a stand-in says to one prompt: of the prompt alone, whatever was asked before."""

    def say(self, prompt: Prompt, num: int) -> list[Said]:
        """Return up to ``num`` distinct texts, best first; at least one."""
        ...

    def weigh(self, prompt: Prompt, options: Sequence[str]) -> list[float]:
        """Return the log-probability of each option as the whole answer."""
        ...


@dataclass(frozen=True, slots=True)
class StandIn:
    """A mind behind the contract of a language model. Implements ``LanguageModel``; tokens are an estimate."""

    name: str  # stands for all that its answers follow from
    mind: Mind
    context: int = CONTEXT

    def count_tokens(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return an estimate of each prompt's tokens."""
        return [num_tokens(prompt.system) + num_tokens(prompt.text) for prompt in prompts]

    def generate(self, prompts: Sequence[Prompt], decoding: Decoding = GREEDY) -> list[list[Generation]]:
        """Return ``num_returns`` texts per prompt; samples are all the best text, beams that lack a text are empty."""
        return [self._texts(prompt, decoding) for prompt in prompts]

    def score(self, prompts: Sequence[Prompt], options: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-probability of each prompt's options."""
        return [self.mind.weigh(prompt, own) for prompt, own in zip(prompts, options, strict=True)]

    def _texts(self, prompt: Prompt, decoding: Decoding) -> list[Generation]:
        num = decoding.num_returns
        if num_tokens(prompt.system) + num_tokens(prompt.text) >= self.context:
            return [Generation("", problem="too_long")] * num
        said = self.mind.say(prompt, num if decoding.method == "beam" else 1)[:num]
        if decoding.method == "beam":
            said += [("", NO_TEXT)] * (num - len(said))
        else:
            said *= num
        return [_generation(text, log_prob, decoding) for text, log_prob in said]


def num_tokens(text: str) -> int:
    """Return an estimate of a text's tokens."""
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def seed_of(*parts: object) -> int:
    """Return a seed of 256 bits that follows from ``parts`` alone."""
    return int.from_bytes(hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "replace")).digest(), "big")


def share_of(*parts: object) -> float:
    """Return a number 0 <= x < 1 that follows from ``parts`` alone, evenly spread."""
    return (seed_of(*parts) >> 203) / 2**53


def _generation(text: str, log_prob: float, decoding: Decoding) -> Generation:
    places = [place for stop in decoding.stop if (place := text.find(stop)) >= 0]
    text = text[: min(places)] if places else text
    most = decoding.max_new_tokens * CHARACTERS_PER_TOKEN
    return Generation(text[:most], log_prob, num_tokens(text[:most]), finished=len(text) <= most)


# ------ Plans that a constraint allows, without a model: the first, one drawn, those near a given one.


MAX_PIECES = 64  # of a plan
TRIES = 16  # plans drawn


def first_text(constraint: Constraint) -> str:
    """Return the constraint's first text: always its first piece, until the text may end; empty where there is none."""
    pieces: tuple[str, ...] = ()
    while not constraint.may_end(pieces):
        following = constraint.next_pieces(pieces)
        if not following or len(pieces) == MAX_PIECES:
            return ""
        pieces = (*pieces, following[0])
    return "".join(pieces)


def random_text(constraint: Constraint, chance: random.Random) -> str:
    """Return a text drawn piece by piece, all that may follow being as likely; empty where it comes to no end."""
    pieces: tuple[str, ...] = ()
    while not constraint.may_end(pieces):
        following = constraint.next_pieces(pieces)
        if not following or len(pieces) == MAX_PIECES:
            return ""
        pieces = (*pieces, following[chance.randrange(len(following))])
    return "".join(pieces)


def near_plans(constraint: Constraint, plan: LabelPath, chance: random.Random) -> Iterator[LabelPath]:
    """Yield allowed plans that differ from ``plan`` in their last step, then any; not all of them distinct."""
    if plan:
        begin = (START, *(render_step(step) + SEPARATOR for step in plan[:-1]))
        pieces = [piece for piece in constraint.next_pieces(begin) if piece.endswith(END)]
        chance.shuffle(pieces)
        yield from (found for piece in pieces if (found := _read("".join((*begin, piece)))) != plan)
    for _ in range(TRIES):
        if found := _read(random_text(constraint, chance)):
            yield found


def _read(text: str) -> LabelPath:
    """Return the plan of a text; none of its steps where there is no plan."""
    found = parse_plan(text)
    return () if isinstance(found, ParseFailure) else found


# ------ What a prompt offers to pick from, and how picks are said: the same for an oracle, for ...


HIGH, LOW = 0.95, 0.05  # scores of what is picked, and of what is not
DROP = 0.05  # between the scores of relations that are picked one after the other
FITS = 9  # of 10: a relation that is picked for a clue
NO_PAIR = "none"


@dataclass(frozen=True, slots=True)
class Options:
    """What can be picked, in the order shown."""

    instruction: str
    names: tuple[str, ...] = ()  # relations, entities, candidates, ends of paths, verdicts
    clues: tuple[str, ...] = ()  # of mappings, parallel to names: for what each is picked

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.names)


def options_of(shown: ReadPrompt) -> Options:
    """Return what a prompt offers; nothing where an answer is free text."""
    kind = shown.instruction
    clues: tuple[str, ...] = ()
    match kind:
        case "score_relations":
            names = shown.relations
        case "score_entities":
            names = tuple(entity.name for entity in shown.scored)
        case "reason" | "explain":
            names = tuple(dict.fromkeys(end for path in shown.paths for end in path.ends))
        case "choose":  # where names are not shown: what the evidence ends at
            names = tuple(one.name or next(iter(one.ends), "") for one in shown.candidates)
        case "enough_information":
            names = (YES, NO)
        case "map_relations" | "map_entities":
            mapped = shown.relations if kind == "map_relations" else tuple(dict.fromkeys(shown.entities))
            clues = tuple(clue for clue in shown.clues for _ in mapped)
            names = mapped * len(shown.clues)
        case _:
            names = ()
    return Options(kind, names, clues)


def say_picks(shown: ReadPrompt, options: Options, picks: Sequence[int], others: Sequence[int] = ()) -> str:
    """Return the text that picks some options, best first, in the instruction's form; without any it abstains.

    Of relations ``others`` are named, too, with low scores, as far as the budget goes; one is always named, with a
    score of 0 where there is none to name.
    """
    names = [options.names[pick] for pick in picks]
    match options.instruction:
        case "score_relations":
            scored = [(pick, max(HIGH - DROP * place, DROP)) for place, pick in enumerate(picks)]
            scored += [(pick, LOW) for pick in others]
            kept = scored[: shown.budget] or [(0, 0.0)][: len(options)]
            return write_scores(options.names, kept, budget=shown.budget)
        case "score_entities" if len(options) == 1:
            return f"{HIGH if picks else LOW:.2f}"
        case "score_entities":
            chosen = set(picks)
            return write_scores(options.names, [(at, HIGH if at in chosen else LOW) for at in range(len(options))])
        case "map_relations":
            return "\n".join(_pair(options, pick) + f" = {FITS}" for pick in picks) or NO_PAIR
        case "map_entities":
            return "\n".join(_pair(options, pick) for pick in picks) or NO_PAIR
        case "choose":
            return "\n".join(_choice(shown, options, pick) for pick in picks) or ABSTENTION
        case "enough_information":
            return names[0] if names else NO
        case "explain" | "chain_of_thought":
            return write_explained("This leads there." if names else "This does not tell.", names)
    return write_answers(names)


def ways_to_say(shown: ReadPrompt, options: Options, pick: int) -> set[str]:
    """Return the texts that a caller who weighs options may give for one of them: its line, its name, its label."""
    line = say_picks(shown, options, [pick])
    name = options.names[pick]
    label = {shown.candidates[pick].label} if options.instruction == "choose" else set[str]()
    return {line, name, escape(name)} | label - {""}


def held_to(constraint: Constraint | None, text: str) -> str:
    """Return ``text`` where it may be answered, else its first line that may, else the first text that may."""
    if constraint is None:
        return text
    lines = (text, *text.split("\n"))
    allowed = next((line for line in lines if is_allowed(constraint, line)), None)
    return allowed if allowed is not None else (finite_texts(constraint) or [text])[0]


def _pair(options: Options, pick: int) -> str:
    return f"{escape(options.clues[pick])} -> {escape(options.names[pick])}"


def _choice(shown: ReadPrompt, options: Options, pick: int) -> str:
    label, name = shown.candidates[pick].label, escape(options.names[pick])
    return f"{label}. {name}" if label else name
