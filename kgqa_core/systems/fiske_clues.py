"""The clues of one question: what they are called, which entities bear their names, and where exploring starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kgqa_core.graph.csr import Ints, sorted_distinct
from kgqa_core.systems.fiske_branches import Branch
from kgqa_core.systems.named import entities_named
from kgqa_core.systems.walk import Walk

WH_WORDS = {"who": "which person", "where": "which place", "when": "what time"}
"""How the released code begins questions, so that what is asked for is a clue, too."""


@dataclass(frozen=True, slots=True)
class Clues:
    """Clues by their place."""

    texts: tuple[str, ...]
    exact: tuple[Ints, ...]  # entities of exactly that name, per clue
    named: tuple[Ints, ...]  # those, else entities of that name whatever its case

    @property
    def all(self) -> frozenset[int]:
        """Return the places of all clues."""
        return frozenset(range(len(self.texts)))

    def show(self, places: Collection[int]) -> tuple[str, ...]:
        """Return the texts at some places, in order."""
        return tuple(self.texts[place] for place in sorted(places))

    def starts(self, most: int, *, only_proper: bool = False) -> list[Branch]:
        """Return a branch per clue that names entities, and per entity of it; at most ``most`` of them.

        Names count as they are written; only where no clue is a name like that, case does not count. Where there are
        too many, rare names come first: one that many entities bear says little. With ``only_proper`` names without a
        capital or a digit give way to those with one: a graph may well have entities called "film" or "director".
        """
        names = self.exact if any(map(len, self.exact)) else self.named
        places = [place for place in sorted(self.all) if len(names[place])]
        if only_proper:
            places = [place for place in places if _is_proper(self.texts[place])] or places
        places.sort(key=lambda place: len(names[place]))
        pairs = [(place, entity) for place in places for entity in names[place].tolist()][:most]
        return [Branch(place, frozenset([place]), (), (np.array([entity]),)) for place, entity in sorted(pairs)]

    def naming(self, places: Collection[int], entities: Ints) -> Mapping[int, frozenset[int]]:
        """Return which of ``entities`` some clues name, each with those clues."""
        found: dict[int, set[int]] = {}
        for place in sorted(places):
            for entity in self.named[place][np.isin(self.named[place], entities)].tolist():
                found.setdefault(entity, set()).add(place)
        return {entity: frozenset(own) for entity, own in sorted(found.items())}

    def named_by(self, places: Collection[int]) -> Ints:
        """Return the entities, ascending, that any of some clues names."""
        return sorted_distinct(np.concatenate([np.empty(0, dtype=np.int64), *(self.named[one] for one in places)]))


def _is_proper(name: str) -> bool:
    """Say whether a name is more than lower-case letters; scripts without case count."""
    return not name.islower() or any(map(str.isdigit, name))


def look_up(walk: Walk, question_id: str, texts: Sequence[str]) -> Clues:
    """Return the clues of one question, with what they name in its graph."""
    exact = tuple(entities_named(walk, question_id, text) for text in texts)
    named = tuple(
        found if len(found) else entities_named(walk, question_id, text, any_case=True)
        for text, found in zip(texts, exact, strict=True)
    )
    return Clues(tuple(texts), exact, named)


def rewrite_question(text: str) -> str:
    """Return a question whose first word says what is asked for."""
    first, blank, rest = text.strip().partition(" ")
    return f"{WH_WORDS[first.casefold()]}{blank}{rest}" if first.casefold() in WH_WORDS else text
