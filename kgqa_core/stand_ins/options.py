"""What a prompt offers to pick from, and how picks are said: the same for an oracle, for chance and for the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.instructions.answers import ABSTENTION, write_answers
from kgqa_core.instructions.enough_information import NO, YES
from kgqa_core.instructions.escapes import escape
from kgqa_core.instructions.explained import write_explained
from kgqa_core.instructions.scores import write_scores
from kgqa_core.stand_ins.reading import ReadPrompt
from kgqa_core.stand_ins.shown import ShownCandidate

HIGH, LOW = 0.95, 0.05  # scores of what is picked, and of what is not
FITS = 9  # of 10: a relation for a clue
NO_PAIR = "none"

Pair = tuple[str, str]  # clue, what it is mapped to


@dataclass(frozen=True, slots=True)
class Options:
    """What can be picked, in the order shown."""

    kind: str  # instruction
    names: tuple[str, ...] = ()  # of relations, entities, candidates, ends of paths; verdicts
    pairs: tuple[Pair, ...] = ()  # of the mappings, instead

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.pairs) or len(self.names)


def options_of(shown: ReadPrompt) -> Options:
    """Return what a prompt offers; nothing for those that are answered freely."""
    kind = shown.instruction
    if kind == "score_relations":
        return Options(kind, shown.relations)
    if kind == "score_entities":
        return Options(kind, tuple(entity.name for entity in shown.entities))
    if kind in ("reason", "explain"):
        return Options(kind, tuple(dict.fromkeys(end for path in shown.paths for end in path.ends)))
    if kind == "choose":
        return Options(kind, tuple(map(_name_of, shown.candidates)))
    if kind == "enough_information":
        return Options(kind, (YES, NO))
    if kind == "map_relations":
        return Options(kind, pairs=tuple((clue, option) for clue in shown.clues for option in shown.relations))
    if kind == "map_entities":
        return Options(kind, pairs=tuple((clue, option) for clue in shown.clues for option in shown.names))
    return Options(kind)


def say_picks(shown: ReadPrompt, options: Options, picks: Sequence[int]) -> str:
    """Return the text that picks some options, best first, in the instruction's form; none at all abstains."""
    kind = options.kind
    if kind == "score_relations":
        scored = [(pick, max(HIGH - 0.05 * place, LOW)) for place, pick in enumerate(picks)][: shown.budget]
        return write_scores(options.names, scored or [(0, 0.0)][: len(options)], budget=max(shown.budget, 1))
    if kind == "score_entities":
        chosen = set(picks)
        if len(options) == 1:
            return f"{HIGH if chosen else LOW:.2f}"
        return write_scores(options.names, [(at, HIGH if at in chosen else LOW) for at in range(len(options))])
    if kind in ("map_relations", "map_entities"):
        score = f" = {FITS}" if kind == "map_relations" else ""
        pairs = [options.pairs[pick] for pick in picks]
        return "\n".join(f"{escape(clue)} -> {escape(option)}{score}" for clue, option in pairs) or NO_PAIR
    if kind == "choose":
        return "\n".join(_choice(shown, options, pick) for pick in picks) or ABSTENTION
    if kind == "enough_information":
        return options.names[picks[0]] if picks else NO
    names = [options.names[pick] for pick in picks]
    if kind in ("explain", "chain_of_thought"):
        return write_explained(_sentence(names), names)
    return write_answers(names)


def _name_of(candidate: ShownCandidate) -> str:
    """Return a candidate's name; where names are not shown, where its evidence ends."""
    return candidate.name or next(iter(candidate.ends), "")


def choice_lines(shown: ReadPrompt, options: Options) -> list[str]:
    """Return the line that chooses each candidate of ``choose``."""
    return [_choice(shown, options, pick) for pick in range(len(options))]


def _choice(shown: ReadPrompt, options: Options, pick: int) -> str:
    label, name = shown.candidates[pick].label, escape(options.names[pick])
    return f"{label}. {name}" if label else name


def _sentence(names: Sequence[str]) -> str:
    return "What is shown leads there." if names else "What is shown does not tell."
