"""The clues that an oracle takes out of a question: where it starts, and one per step of its gold plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from kgqa_core.graph.label_paths import read_step
from kgqa_core.instructions.answers import distinct_names
from kgqa_core.stand_ins.knowledge import MAX_KEPT, Known

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_BETWEEN = re.compile(r"[\W_]+")
MIN_SHARED = 4  # letters that two words of one stem begin with alike


def clues_of(known: Known) -> tuple[str, ...]:
    """Return the topics' mentions, then a clue for every step of the first gold plan, all distinct.

    A step's clue is the question's own words where the relation's words stand in it in some form ("directed" for
    directed_by), else the relation's words.
    """
    topics = tuple(_mention(name, known.text) for name in known.topics) or ("",)
    return distinct_names((*topics, *step_clues(known)))


@lru_cache(maxsize=MAX_KEPT)
def step_clues(known: Known) -> tuple[str, ...]:
    """Return a clue for every step of the first gold plan, distinct and none of them a topic's name."""
    if not known.plans:
        return ()
    words = _WORD.findall(known.masked)
    taken = {name.casefold() for name in known.topics}
    clues: list[str] = []
    for step in known.plans[0]:
        label, _ = read_step(step)
        clue = _own_words(label, words, taken) or _free_words(label, taken)
        taken.add(clue.casefold())
        clues.append(clue)
    return tuple(clues)


def _mention(name: str, text: str) -> str:
    """Return a name as the question writes it, where it does."""
    place = text.casefold().find(name.casefold())
    found = text[place : place + len(name)]
    return found if place >= 0 and found.casefold() == name.casefold() else name


def _own_words(label: str, words: Sequence[str], taken: set[str]) -> str:
    """Return the first word of the question that shares its stem with a word of the relation; empty for none."""
    for part in relation_words(label).casefold().split():
        for word in words:
            if word.casefold() not in taken and _same_stem(part, word.casefold()):
                return word
    return ""


def _same_stem(first: str, second: str) -> bool:
    shared = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    size = min(len(first), len(second)) if shared is None else shared
    return first == second or (size >= MIN_SHARED and size >= min(len(first), len(second)) - 3)


def relation_words(label: str) -> str:
    """Return the words of the last part of a relation's label: "place lived" of people.person.place_lived."""
    last = re.split(r"[./#]", label.rstrip("./#"))[-1]
    return _BETWEEN.sub(" ", last).strip() or label


def _free_words(label: str, taken: set[str]) -> str:
    words, number = relation_words(label), 1
    clue = words
    while clue.casefold() in taken:
        number += 1
        clue = f"{words} {number}"
    return clue
