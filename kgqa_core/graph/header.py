"""The first lines of a file of triples: do they name its columns, and which hold heads, relations and tails?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

WORDS_OF_HEADS = {"head", "subject", "subj", "source", "src", "from", "start", "entity", "node", "item", "h", "s"}
WORDS_OF_RELATIONS = {"relation", "relationship", "predicate", "property", "attribute", "edge", "pred", "prop", "rel"}
WORDS_OF_RELATIONS |= {"type", "label", "verb", "p", "r"}
WORDS_OF_TAILS = {"tail", "object", "obj", "target", "dest", "dst", "to", "end", "value", "entity", "node", "t", "o"}
# A word, then its number: "subjectName" has the words "subject" and "Name", "URI_2" has "URI" with the number 2.
WORD = re.compile(r"([A-Z]+(?![a-z])|[A-Z]?[a-z]+)_?(\d*)")


class FirstLine(NamedTuple):
    """One of the lines that a file begins with."""

    number: int  # from 1 on
    text: str
    fields: list[str]


class _Heading(NamedTuple):
    """The name of a column in its parts; of ``Subject_1_label`` they are in the comments."""

    word: str  # the first word, in lower case: subject
    stem: str  # the first word and its number, which columns of the same thing share: subject1
    kind: list[str]  # the other words, which say what of the thing the column holds: label


def guess_columns(names: Sequence[str], *, ids: bool = False) -> tuple[int, ...] | None:
    """Return where head, relation and tail are, by what a header may call them; None where it is no header.

    Where it has names of heads and of tails beside ids (``subject_id,subject``), names are meant, unless ``ids``. A
    column called as one before it is of something else (``entity,relation,entity``).
    """
    headings = []
    for place, name in enumerate(names):
        (word, number), *others = WORD.findall(name) or [("", "")]
        stem = word.casefold() + number + "'" * names[:place].count(name)  # columns of one name have stems of their own
        headings.append(_Heading(word.casefold(), stem, [other.casefold() for other, _ in others]))
    places: list[int] = []
    for known in (WORDS_OF_HEADS, WORDS_OF_RELATIONS, WORDS_OF_TAILS):
        fitting = [place for place, one in enumerate(headings) if one.word in known and place not in places]
        if not fitting:
            return None
        used_stems = {headings[place].stem for place in places}
        of_other_things = [place for place in fitting if headings[place].stem not in used_stems]
        places.append((of_other_things or fitting)[0])
    if ids:
        return tuple(places)
    stems = [headings[place].stem for place in places]
    for kind in (["label"], ["name"], []):
        of_kind = [place for place, heading in enumerate(headings) if heading.kind == kind]
        place_of = {headings[place].stem: place for place in reversed(of_kind)}  # the first one of a stem stays
        named = tuple(place_of.get(stem, place) for stem, place in zip(stems, places, strict=True))
        if stems[0] in place_of and stems[2] in place_of and len(set(named)) == len(named):
            return named
    return tuple(places)


def ends_empty(lines: Sequence[Sequence[str]]) -> bool:
    """Say whether each line holds a triple and, behind a last separator, nothing."""
    return bool(lines) and all([bool(field.strip()) for field in line] == [True, True, True, False] for line in lines)


def num_alike(lines: Sequence[Sequence[str]]) -> int:
    """Return how many lines have as many fields as the first, where that may be a triple or a header; else 0."""
    if not lines or not (len(lines[0]) == 3 or guess_columns(lines[0]) or ends_empty(lines)):
        return 0
    return sum(len(line) == len(lines[0]) for line in lines)


def differ_in_numbers(first: Sequence[str], second: Sequence[str]) -> bool:
    """Say whether a field is like the one below it but for its numbers: "Node 1" above "Node 7" is no header."""
    pairs = [[re.sub(r"\d+", "0", field) for field in pair] for pair in zip(first, second, strict=False)]
    return any("0" in above and above == below for above, below in pairs)
