"""The first lines of a file of triples: do they name its columns, and which hold heads, relations and tails?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

WORDS_OF_ENDS = {"entity", "node", "arg"}  # of either
WORDS_OF_HEADS = {"head", "subject", "subj", "source", "src", "from", "start", "item", "h", "s"} | WORDS_OF_ENDS
WORDS_OF_RELATIONS = {"relation", "relationship", "predicate", "property", "attribute", "edge", "pred", "prop", "rel"}
WORDS_OF_RELATIONS |= {"type", "label", "verb", "p", "r"}
WORDS_OF_TAILS = {"tail", "object", "obj", "target", "dest", "dst", "to", "end", "value", "t", "o"} | WORDS_OF_ENDS
# A word, then its number: "subjectName" has the words "subject" and "Name", "URI_2" has "URI" with the number 2.
WORD = re.compile(r"([A-Z]+(?![a-z])|[A-Z]?[a-z]+)_?(\d*)")


class FirstLine(NamedTuple):
    """One of the lines that a file begins with."""

    number: int  # from 1 on
    text: str
    fields: list[str]


def guess_columns(names: Sequence[str], *, ids: bool = False) -> tuple[int, ...] | None:
    """Return where head, relation and tail are, by what a header may call them; None where it is no header.

    Where it has names of heads and of tails beside ids (``subject_id,subject``), names are meant, unless ``ids``. A
    column called as one before it is of something else (``entity,relation,entity``).
    """
    words, stems, kinds = [], [], []  # of each column; of "Subject_1_label": "subject", "subject1", ["label"]
    for place, name in enumerate(names):
        (word, number), *others = WORD.findall(name) or [("", "")]
        words.append(word.casefold())
        stems.append(word.casefold() + number + "'" * names[:place].count(name))  # equal names get stems of their own
        kinds.append([other.casefold() for other, _ in others])
    places: list[int] = []
    for known in (WORDS_OF_HEADS, WORDS_OF_RELATIONS, WORDS_OF_TAILS):
        fitting = [place for place, word in enumerate(words) if word in known and place not in places]
        if not fitting:
            return _same_around(names, words, ids)
        used_stems = {stems[place] for place in places}
        of_other_things = [place for place in fitting if stems[place] not in used_stems]
        places.append((of_other_things or fitting)[0])
    for kind in () if ids else (["label"], ["name"], []):
        of_kind = [place for place in range(len(names)) if kinds[place] == kind]
        place_of = {stems[place]: place for place in reversed(of_kind)}  # the first one of a stem stays
        named = tuple(place_of.get(stems[place], place) for place in places)
        head, _, tail = named
        if kinds[head] == kinds[tail] == kind and len(set(named)) == len(named):
            return named
    return tuple(places)


def _same_around(names: Sequence[str], words: Sequence[str], ids: bool) -> tuple[int, ...] | None:
    """Return the places where the columns before the relation, such as id and name, are those behind it, too."""
    half = len(names) // 2
    if half < 2 or names[:half] != names[half + 1 :] or words[half] not in WORDS_OF_RELATIONS:
        return None
    wanted = {"id"} if ids else {"label", "name"}
    place = next((place for place, word in enumerate(words[:half]) if word in wanted), 0)
    return place, half, half + 1 + place


def ends_empty(lines: Sequence[Sequence[str]]) -> bool:
    """Say whether each line holds a triple and, behind a last separator, nothing."""
    return bool(lines) and all([bool(field.strip()) for field in line] == [True, True, True, False] for line in lines)


def num_alike(lines: Sequence[Sequence[str]]) -> int:
    """Return how many lines have as many fields as the first, where that may be a triple or a header; else 0."""
    if not lines or not (len(lines[0]) == 3 or guess_columns(lines[0]) or ends_empty(lines)):
        return 0
    return sum(len(line) == len(lines[0]) for line in lines)
