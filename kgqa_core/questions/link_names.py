"""Where the names and aliases of a graph stand in texts, whatever their case, accents and punctuation, or nearly.

A name is the sequence of its words, a word the letters and digits between anything else, case-folded and without
accents: "Alan_PULIDO", "alan pulido" and "Alán Pulido" are one name. Every run of words of every text is looked up at
once in a sorted array of 64-bit hashes: 12 bytes per name, where an Aho-Corasick automaton of the same names takes
hundreds (docs/results.md, Linking).
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from rapidfuzz import process
from rapidfuzz.distance import OSA

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.link import is_of_word
from kgqa_core.types import Span

MARKS = "".join(sign for sign in map(chr, range(0x300, 0x10000)) if is_of_word(sign) and not sign.isalnum())
WORD = re.compile(rf"[^\W_]+(?:[{MARKS}]+[^\W_]*)*")  # with the accents and vowel signs that follow a letter
FACTOR = 0x9E3779B97F4A7C15  # odd: every word counts, and so does its place
MASK = 2**64 - 1
BATCH = 4096  # texts that are looked up at once
ARTICLES = ("the", "a", "an")
MAX_JOINED = 8  # words that are tried as one
SHORT = 5  # letters up to which one edit is as much as a word bears
MAX_MISSPELT = 6  # words of a text that are doubted, the longest
NUM_NEAR = 60  # words tried for each

Words = list[tuple[str, int, int]]  # normalised word, where it starts in its text, one past its end


@lru_cache(maxsize=2**18)
def fold_word(word: str) -> str:
    """Return a word without case and accents: "Ödön" is "odon", "STRASSE" and "Straße" are one."""
    if word.isascii():
        return word.lower()
    parts = unicodedata.normalize("NFKD", word.casefold())
    return "".join(part for part in parts if not unicodedata.combining(part)).casefold()


def words_of(text: str) -> Words:
    """Return the words of a text and where they stand."""
    return [(fold_word(found.group()), *found.span()) for found in WORD.finditer(text)]


def plain_words(text: str) -> list[str]:
    """Return the words of a text alone."""
    return [fold_word(word) for word in WORD.findall(text)]


@dataclass(frozen=True, slots=True)
class Run:
    """A run of words that is a name, or nearly one."""

    first: int  # place of its first word in the text
    last: int  # of its last
    rows: tuple[int, ...]  # of NameIndex: the names, ascending


class HashedRows:
    """Rows of a NameIndex by a 64-bit hash, 12 bytes each; found by binary search. Another process hashes otherwise."""

    def __init__(self, keyed: Iterable[tuple[int, int]]) -> None:
        pairs = np.fromiter(keyed, dtype=[("key", np.uint64), ("row", np.int32)])
        order = np.argsort(pairs["key"], kind="stable")
        self._keys, self._rows = pairs["key"][order], pairs["row"][order]

    def hits(self, wanted: npt.NDArray[np.uint64]) -> Iterator[tuple[int, list[int]]]:
        """Yield (place in ``wanted``, rows ascending) for each hash that has rows."""
        if len(self._keys):
            low = np.searchsorted(self._keys, wanted)
            places = np.flatnonzero(self._keys[np.minimum(low, len(self._keys) - 1)] == wanted)
            high = np.searchsorted(self._keys, wanted[places], side="right")
            for place, first, last in zip(places.tolist(), low[places].tolist(), high.tolist(), strict=True):
                yield place, self._rows[first:last].tolist()


class NameIndex:
    """All names and aliases of a graph by their words. Rows 0..N-1 are the entities' names, N.. the aliases."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        """Read every name once. Names without a letter or digit are left out, as are those of nameless nodes."""
        self.graph = graph
        aliases = graph.read_aliases()
        self._alias_ids, self._aliases = aliases["entity_id"].to_numpy(), aliases["alias"]
        self._sizes: set[int] = set()  # numbers of words that names have
        self._hashes = HashedRows(self._hash_names())

    def _hash_names(self) -> Iterator[tuple[int, int]]:
        for row, name in self.names():
            if words := plain_words(name):
                self._sizes.add(len(words))
                key = 0
                for word in words:
                    key = (key * FACTOR + hash(word)) & MASK
                yield key, row

    def names(self) -> Iterator[tuple[int, str]]:
        """Yield (row, name) of all names and aliases, without keeping them."""
        yield from named_entities(self.graph)
        row = self.graph.num_entities
        for chunk in self._aliases.chunks:
            yield from enumerate(chunk.to_pylist(), row)
            row += len(chunk)

    def name_of(self, row: int) -> str:
        """Return the name or alias of a row."""
        aliased = row - self.graph.num_entities
        return self.graph.name_of(row) if aliased < 0 else str(self._aliases[aliased])

    def entity_of(self, row: int) -> int:
        """Return the entity that bears the name of a row."""
        aliased = row - self.graph.num_entities
        return row if aliased < 0 else int(self._alias_ids[aliased])

    def find(self, texts: Sequence[Words]) -> list[list[Run]]:
        """Return all runs of words that are names, for each text, by first and last word."""
        return [found for at in range(0, len(texts), BATCH) for found in self._find(texts[at : at + BATCH])]

    def _find(self, texts: Sequence[Words]) -> list[list[Run]]:
        lengths = np.array([len(words) for words in texts], dtype=np.int64)
        hashes = np.array([hash(word) & MASK for words in texts for word, _, _ in words], dtype=np.uint64)
        ends, owners = np.cumsum(lengths), np.repeat(np.arange(len(texts)), lengths)
        left = np.repeat(ends, lengths) - np.arange(len(hashes))  # words from each one to the end of its text
        found: list[list[Run]] = [[] for _ in texts]
        starts, keys = np.arange(len(hashes)), np.zeros(len(hashes), np.uint64)
        for size in range(1, max(self._sizes, default=0) + 1):
            going = left[starts] >= size
            starts, keys = starts[going], keys[going]
            keys = keys * np.uint64(FACTOR) + hashes[starts + size - 1]
            for hit, rows in self._hashes.hits(keys) if size in self._sizes else ():
                owner = int(owners[starts[hit]])
                place = int(starts[hit] - (ends[owner] - lengths[owner]))
                wanted = [word for word, _, _ in texts[owner][place : place + size]]
                own = tuple(row for row in rows if plain_words(self.name_of(row)) == wanted)  # not only their hash
                if own:
                    found[owner].append(Run(place, place + size - 1, own))
        return [sorted(of_text, key=lambda one: (one.first, one.last)) for of_text in found]

    @cached_property
    def _squeezed(self) -> HashedRows:
        """The names' words written as one, also without the article before them."""
        return HashedRows(
            (hash("".join(words[start:])) & MASK, row)
            for row, name in self.names()
            if (words := plain_words(name))
            for start in ((0, 1) if len(words) > 1 and words[0] in ARTICLES else (0,))
        )

    @cached_property
    def _vocabulary(self) -> dict[int, list[str]]:
        by_length: dict[int, list[str]] = defaultdict(list)
        for word in sorted({word for _, name in self.names() for word in plain_words(name)}):
            by_length[len(word)].append(word)
        return by_length

    def find_joined(self, words: Words) -> list[Run]:
        """Return names that differ in blanks, punctuation or a first article: "spiderman", "schindlers list"."""
        plain = [word for word, _, _ in words]
        windows = [(at, end) for at in range(len(plain)) for end in range(at, min(at + MAX_JOINED, len(plain)))]
        joined = ["".join(plain[first : last + 1]) for first, last in windows]
        found = []
        for place, rows in self._squeezed.hits(np.array([hash(text) & MASK for text in joined], dtype=np.uint64)):
            (first, last), text = windows[place], joined[place]
            names = {row: plain_words(self.name_of(row)) for row in rows}
            letters = (text, *(article + text for article in ARTICLES))
            own = [row for row in rows if names[row] != plain[first : last + 1] and "".join(names[row]) in letters]
            if own:
                found.append(Run(first, last, tuple(own)))
        return found

    def find_misspelt(self, words: Words, known: frozenset[str]) -> list[Run]:
        """Return names that the text would have if one word were written otherwise; ``known`` words are right.

        One edit (a letter more, less or other, two exchanged) in words of up to SHORT letters, two in longer ones.
        """
        doubtful = [place for place, (word, _, _) in enumerate(words) if word not in known]
        doubtful = sorted(doubtful, key=lambda place: (-len(words[place][0]), place))[:MAX_MISSPELT]
        places = [(place, word) for place in doubtful for word in self.near_words(words[place][0])]
        longest = max(self._sizes, default=1)  # words further away are in no name with the doubted one
        starts = [max(place - longest + 1, 0) for place, _ in places]
        variants = [
            [*words[start:place], (word, *words[place][1:]), *words[place + 1 : place + longest]]
            for start, (place, word) in zip(starts, places, strict=True)
        ]
        near = {
            (start + name.first, start + name.last, row)
            for start, (place, _), found in zip(starts, places, self.find(variants), strict=True)
            for name in found
            if start + name.first <= place <= start + name.last
            for row in name.rows
        }
        groups = groupby(sorted(near), key=lambda one: one[:2])
        return [Run(first, last, tuple(row for _, _, row in rows)) for (first, last), rows in groups]

    def near_words(self, word: str) -> list[str]:
        """Return the words of names that a misspelt one may stand for, the nearest first."""
        edits = 1 if len(word) <= SHORT else 2
        near: list[tuple[float, str]] = []
        for size in range(len(word) - edits, len(word) + edits + 1):
            choices = self._vocabulary.get(size, [])
            found = process.extract(word, choices, scorer=OSA.distance, score_cutoff=edits, limit=NUM_NEAR)
            near += [(distance, other) for other, distance, _ in found if other != word]
        return [other for _, other in sorted(near)[:NUM_NEAR]]


def named_entities(graph: KnowledgeGraph) -> Iterator[tuple[int, str]]:
    """Yield (entity id, name) of all that have a name of their own, read piece by piece."""
    with pq.ParquetFile(graph.folder / "entities.parquet") as file:
        for batch in file.iter_batches(columns=["entity_id", "name", "kind"]):
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            yield from ((entity, name) for entity, name, kind in rows if kind not in ("cvt", "foreign", "blank"))


def letter_span(text: str, span: Span, name: str) -> tuple[Span, bool]:
    """Return where ``name`` stands around the words at ``span``, and whether it does so letter for letter.

    The punctuation of the name is taken in where the text has it ("[REC]", "+1"); case does not count for the span.
    """
    first = WORD.search(name)
    start = span[0] - (first.start() if first else 0)
    piece = text[max(start, 0) : start + len(name)]
    if start < 0 or piece.casefold() != name.casefold():
        return span, False
    return (start, start + len(name)), piece == name
