"""What a prompt offers to pick from, and how picks are said: the same for an oracle, for chance and for the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.instructions.answers import ABSTENTION, write_answers
from kgqa_core.instructions.enough_information import NO, YES
from kgqa_core.instructions.escapes import escape
from kgqa_core.instructions.explained import write_explained
from kgqa_core.instructions.scores import write_scores
from kgqa_core.lm.allowed import finite_texts, is_allowed
from kgqa_core.lm.types import Constraint
from kgqa_core.stand_ins.reading import ReadPrompt

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
