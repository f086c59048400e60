"""Names that a text does not quite have: words written together or apart, a missing article, a misspelt word.

Only for texts in which no name was found: it costs milliseconds, not microseconds.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kgqa_core.questions.linking_index import MASK, NameIndex, Words, words_of

ARTICLES = ("the", "a", "an")
MAX_JOINED = 8  # words that are tried as one
SHORT = 5  # letters up to which one edit is as much as a word bears
MAX_MISSPELT = 6  # words of a text that are doubted, the longest
NUM_NEAR = 60  # words tried for each


@dataclass(frozen=True, slots=True)
class NearName:
    """A run of words that is nearly a name."""

    first: int  # place of its first word in the text
    last: int
    row: int  # of NameIndex


class LooseNames:
    """The names of an index by their letters alone, and the words that names are made of; both made on first use."""

    def __init__(self, index: NameIndex) -> None:
        """Keep the index."""
        self.index = index

    @cached_property
    def _squeezed(self) -> tuple[np.ndarray, np.ndarray]:
        """Hashes of the names' words written as one, also without the article before them; and their rows."""
        keys, rows = array("Q"), array("i")
        for row, name in self.index.names():
            words = [word for word, _, _ in words_of(name)]
            for start in (0, 1) if len(words) > 1 and words[0] in ARTICLES else (0,):
                if words:
                    keys.append(hash("".join(words[start:])) & MASK)
                    rows.append(row)
        if not keys:
            return np.zeros(0, np.uint64), np.zeros(0, np.int32)
        order = np.argsort(np.frombuffer(keys, np.uint64), kind="stable")
        return np.frombuffer(keys, np.uint64)[order], np.frombuffer(rows, np.int32)[order]

    @cached_property
    def _vocabulary(self) -> dict[int, list[str]]:
        """The words of all names, by number of letters."""
        words = {word for _, name in self.index.names() for word, _, _ in words_of(name)}
        by_length: dict[int, list[str]] = {}
        for word in sorted(words):
            by_length.setdefault(len(word), []).append(word)
        return by_length

    def find_joined(self, words: Words) -> list[NearName]:
        """Return names that differ in blanks, punctuation or a first article: "spiderman", "schindlers list"."""
        keys, rows = self._squeezed
        windows = [
            (first, last, "".join(word for word, _, _ in words[first : last + 1]))
            for first in range(len(words))
            for last in range(first, min(first + MAX_JOINED, len(words)))
        ]
        hashes = np.array([hash(text) & MASK for _, _, text in windows], dtype=np.uint64)
        low, high = np.searchsorted(keys, hashes), np.searchsorted(keys, hashes, side="right")
        return [
            NearName(first, last, row)
            for (first, last, text), start, end in zip(windows, low.tolist(), high.tolist(), strict=True)
            for row in rows[start:end].tolist()
            if self._is_joined(row, [word for word, _, _ in words[first : last + 1]])
        ]

    def _is_joined(self, row: int, window: list[str]) -> bool:
        """Has the name these letters, article aside, and not just these words?"""
        own, text = [word for word, _, _ in words_of(self.index.name_of(row))], "".join(window)
        return own != window and "".join(own) in (text, *(article + text for article in ARTICLES))

    def find_misspelt(self, words: Words, known: frozenset[str]) -> list[NearName]:
        """Return names that the text would have if one word were written otherwise; ``known`` words are right.

        One edit (a letter more, less or other, two exchanged) in words of up to SHORT letters, two in longer ones.
        """
        doubtful = [place for place, (word, _, _) in enumerate(words) if word not in known]
        doubtful = sorted(doubtful, key=lambda place: (-len(words[place][0]), place))[:MAX_MISSPELT]
        places = [(place, word) for place in doubtful for word in self.near_words(words[place][0])]
        variants = [[*words[:place], (word, *words[place][1:]), *words[place + 1 :]] for place, word in places]
        near = {
            NearName(name.first, name.last, row)
            for (place, _), found in zip(places, self.index.find(variants), strict=True)
            for name in found
            if name.first <= place <= name.last
            for row in name.rows
        }
        return sorted(near, key=lambda one: (one.first, one.last, one.row))

    def near_words(self, word: str) -> list[str]:
        """Return the words of names that a misspelt one may stand for, the nearest first."""
        from rapidfuzz import process
        from rapidfuzz.distance import OSA

        edits = 1 if len(word) <= SHORT else 2
        near: list[tuple[float, str]] = []
        for size in range(len(word) - edits, len(word) + edits + 1):
            choices = self._vocabulary.get(size, [])
            found = process.extract(word, choices, scorer=OSA.distance, score_cutoff=edits, limit=NUM_NEAR)
            near += [(distance, other) for other, distance, _ in found if other != word]
        return [other for _, other in sorted(near)[:NUM_NEAR]]
