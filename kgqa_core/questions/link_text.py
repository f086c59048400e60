"""Where names and aliases stand in texts, whatever their case, accents and punctuation: a lookup of all runs of words.

A name is the sequence of its words, a word the letters and digits between anything else, case-folded and without
accents: "Alan_PULIDO", "alan pulido" and "Alán Pulido" are one name. Every run of words of every text is looked up at
once in a sorted array of 64-bit hashes: 12 bytes per name, where an Aho-Corasick automaton of the same names takes
hundreds (docs/results.md, Linking), and as a run ends where a word does, no match has to be thrown away.
"""

from __future__ import annotations

import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from rapidfuzz import fuzz

from kgqa_core import schemas
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.formats import Span
from kgqa_core.questions.link import TOPIC, mask_topics, spans_of
from kgqa_core.types import Question

WORD = re.compile(r"[^\W_](?:[^\W_]|[\u0300-\u036f])*")  # with the accents that follow a letter
FACTOR = 0x9E3779B97F4A7C15  # odd: every word counts, and so does its place
MASK = 2**64 - 1
BATCH = 4096  # texts that are looked up at once

Words = list[tuple[str, int, int]]  # normalised word, where it starts in its text, one past its end
U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class FoundName:
    """A run of words that is a name."""

    first: int  # place of its first word in the text
    last: int  # of its last
    rows: tuple[int, ...]  # of NameIndex: all names with these words, ascending


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


def hash_words(words: Iterable[str]) -> int:
    """Return a hash of a sequence of words; another process gives another one."""
    key = 0
    for word in words:
        key = (key * FACTOR + hash(word)) & MASK
    return key


class HashedRows:
    """Rows of a NameIndex by a 64-bit hash, 12 bytes each; found by binary search."""

    def __init__(self, keyed: Iterable[tuple[int, int]]) -> None:
        """Keep (hash, row) pairs; a hash may have many rows."""
        keys, rows = array("Q"), array("i")
        for key, row in keyed:
            keys.append(key)
            rows.append(row)
        order = np.argsort(np.array(keys, np.uint64), kind="stable")
        self._keys: U64 = np.array(keys, np.uint64)[order]
        self._rows = np.array(rows, np.int32)[order]

    def hits(self, wanted: U64) -> Iterator[tuple[int, list[int]]]:
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
        self._alias_ids, self._aliases = _read_aliases(graph)
        self._sizes: set[int] = set()  # numbers of words that names have
        self._hashes = HashedRows(self._hash_names())

    def _hash_names(self) -> Iterator[tuple[int, int]]:
        for row, name in self.names():
            if words := plain_words(name):
                self._sizes.add(len(words))
                yield hash_words(words), row

    def names(self) -> Iterator[tuple[int, str]]:
        """Yield (row, name) of all names and aliases, without keeping them."""
        yield from named_entities(self.graph)
        row = self.graph.num_entities
        for batch in self._aliases.to_batches():
            for alias in batch["alias"].to_pylist():
                yield row, alias
                row += 1

    def name_of(self, row: int) -> str:
        """Return the name or alias of a row."""
        aliased = row - self.graph.num_entities
        return self.graph.name_of(row) if aliased < 0 else str(self._aliases["alias"][aliased])

    def entity_of(self, row: int) -> int:
        """Return the entity that bears the name of a row."""
        aliased = row - self.graph.num_entities
        return row if aliased < 0 else int(self._alias_ids[aliased])

    def find(self, texts: Sequence[Words]) -> list[list[FoundName]]:
        """Return all runs of words that are names, for each text, by first and last word."""
        return [found for at in range(0, len(texts), BATCH) for found in self._find(texts[at : at + BATCH])]

    def _find(self, texts: Sequence[Words]) -> list[list[FoundName]]:
        lengths = np.array([len(words) for words in texts], dtype=np.int64)
        hashes = np.array([hash(word) & MASK for words in texts for word, _, _ in words], dtype=np.uint64)
        ends, owners = np.cumsum(lengths), np.repeat(np.arange(len(texts)), lengths)
        left = np.repeat(ends, lengths) - np.arange(len(hashes))  # words from each one to the end of its text
        found: list[list[FoundName]] = [[] for _ in texts]
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
                    found[owner].append(FoundName(place, place + size - 1, own))
        return [sorted(of_text, key=lambda one: (one.first, one.last)) for of_text in found]


def named_entities(graph: KnowledgeGraph) -> Iterator[tuple[int, str]]:
    """Yield (entity id, name) of all that have a name of their own, read piece by piece."""
    with pq.ParquetFile(graph.folder / "entities.parquet") as file:
        columns = [name for name in ("entity_id", "name", "kind") if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=columns):
            kinds = batch["kind"].to_pylist() if "kind" in columns else [None] * batch.num_rows
            for entity, name, kind in zip(
                batch["entity_id"].to_pylist(), batch["name"].to_pylist(), kinds, strict=True
            ):
                if kind not in ("cvt", "foreign"):
                    yield entity, name


def _read_aliases(graph: KnowledgeGraph) -> tuple[npt.NDArray[np.int32], pa.Table]:
    path = graph.folder / "aliases.parquet"
    table = pq.read_table(path, schema=schemas.ALIASES) if path.is_file() else schemas.ALIASES.empty_table()
    return table["entity_id"].to_numpy(), table


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


# ------ Names that a text does not quite have: joined or split words, a missing article, one misspelt word.


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
    def _squeezed(self) -> HashedRows:
        """The names' words written as one, also without the article before them."""
        return HashedRows(
            (hash("".join(words[start:])) & MASK, row)
            for row, name in self.index.names()
            if (words := plain_words(name))
            for start in ((0, 1) if len(words) > 1 and words[0] in ARTICLES else (0,))
        )

    @cached_property
    def _vocabulary(self) -> dict[int, list[str]]:
        """The words of all names, by number of letters."""
        words = {word for _, name in self.index.names() for word in plain_words(name)}
        by_length: dict[int, list[str]] = {}
        for word in sorted(words):
            by_length.setdefault(len(word), []).append(word)
        return by_length

    def find_joined(self, words: Words) -> list[NearName]:
        """Return names that differ in blanks, punctuation or a first article: "spiderman", "schindlers list"."""
        plain = [word for word, _, _ in words]
        windows = [
            (first, last) for first in range(len(plain)) for last in range(first, min(first + MAX_JOINED, len(plain)))
        ]
        joined = ["".join(plain[first : last + 1]) for first, last in windows]
        hashes = np.array([hash(text) & MASK for text in joined], dtype=np.uint64)
        found = []
        for place, rows in self._squeezed.hits(hashes):
            (first, last), text = windows[place], joined[place]
            for row in rows:
                own = plain_words(self.index.name_of(row))
                letters = "".join(own)
                if own != plain[first : last + 1] and letters in (text, *(article + text for article in ARTICLES)):
                    found.append(NearName(first, last, row))
        return found

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


# ------ Topic entities from the text alone: the names in it, ranked, and who bears them; training questions teach how.


CASED = 0.02  # share of texts with a capital from which case tells names apart
SEVERAL = 0.01  # share of questions with more mentions from which more are looked for
PRIOR = 4.0  # questions' worth of belief in what is so of all topics
SURE = 0.99  # no word says more than this about a relation
MAX_BEARERS = 5  # entities of one name; those that fit best, then those of most edges
MARGIN = 1.0  # bearers that fit so many nats worse than the best are dropped
MIN_SIMILARITY = 0.75  # rapidfuzz's ratio, 0..1, of a misspelt name and what stands there


@dataclass(frozen=True, slots=True)
class Wording:
    """What was learned; empty where there is nothing to learn from."""

    rows: frozenset[int] = frozenset()  # of NameIndex: names that occur in masked texts
    words: frozenset[str] = frozenset()  # of masked texts
    cased: bool | None = None  # do capitals mark names? None: nobody knows
    max_mentions: int = 1  # of a question
    surroundings: Surroundings | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """How often a topic has a relation (with direction) around it, over all questions and given a word of them."""

    num_questions: int
    of_relation: Counter[int]
    of_word: Counter[str]
    of_both: Counter[tuple[str, int]]

    def score(self, words: Sequence[str], around: Sequence[frozenset[int]]) -> list[float]:
        """Return how well each entity's relations fit the words, in nats; only differences between them mean anything.

        Naive Bayes over words: each says how likely a topic is to have a relation, against what is so of all topics.
        Relations that all of the entities have, or none, tell nothing and are left out.
        """
        telling = frozenset().union(*around) - frozenset.intersection(*around)
        known = sorted({word for word in words if word in self.of_word})
        scores = [0.0] * len(around)
        for relation in telling:
            prior = min(max(self.of_relation[relation] / self.num_questions, 1 - SURE), SURE)
            for word in known:
                given = (self.of_both[word, relation] + PRIOR * prior) / (self.of_word[word] + PRIOR)
                given = min(max(given, 1 - SURE), SURE)
                gain, loss = math.log(given / prior), math.log((1 - given) / (1 - prior))
                for place, own in enumerate(around):
                    scores[place] += gain if relation in own else loss
        return scores


def learn_wording(index: NameIndex, examples: Sequence[Question]) -> Wording:
    """Return what training questions teach. Reads texts, masked texts and topics: no answer, no gold chain."""
    linked = [question for question in examples if question.topics]
    if not linked:
        return Wording()
    masked = sorted({question.masked for question in linked})
    texts = [words_of(text.replace(TOPIC, " ")) for text in masked]
    rows = {row for found in index.find(texts) for name in found for row in name.rows}
    cased = sum(question.text != question.text.lower() for question in linked) >= CASED * len(linked)
    mentions = Counter(question.masked.count(TOPIC) for question in linked)
    several = [
        count
        for count in mentions
        if sum(mentions[more] for more in mentions if more >= count) >= SEVERAL * len(linked)
    ]
    return Wording(
        rows=frozenset(rows),
        words=frozenset(word for words in texts for word, _, _ in words),
        cased=cased,
        max_mentions=max(several, default=1) or 1,
        surroundings=_learn_surroundings(index.graph, linked),
    )


def _learn_surroundings(graph: KnowledgeGraph, examples: Sequence[Question]) -> Surroundings:
    """Count which relations lie around topics, by word of the question; a text counts once per set of relations."""
    found = Surroundings(0, Counter(), Counter(), Counter())
    seen = {(question.masked, _relations_around(graph, question.topics[0])) for question in examples}
    for text, around in seen:
        words = {word for word, _, _ in words_of(text.replace(TOPIC, " "))}
        found.of_relation.update(around)
        found.of_word.update(words)
        found.of_both.update((word, relation) for word in words for relation in around)
    return replace(found, num_questions=len(seen))


def _relations_around(graph: KnowledgeGraph, entity: int) -> frozenset[int]:
    """Return the relations of an entity, with direction: 0..2R-1."""
    first, last = graph.group_ptr[entity], graph.group_ptr[entity + 1]
    return frozenset(graph.group_relation[first:last].tolist())


@dataclass(frozen=True, slots=True)
class LinkedMention:
    """A name in a text, with the entities that it is taken to mean."""

    span: Span
    entities: tuple[int, ...]  # ascending
    exact: bool  # does it stand there letter for letter?
    similarity: float  # 0..1, of what stands there and the name, case aside
    places: range  # of its words in the text
    letters: int  # of its words that are no wording
    capital: bool  # do capitals mark it?
    wording: bool = False  # is it a name that questions use without meaning it?

    @property
    def rank(self) -> tuple[bool, float, float, int]:
        """Sort by capitals, then by letters, those of wording last."""
        start, end = self.span
        return not self.capital, -self.similarity * self.letters, -self.similarity * (end - start), start


class TextLinker:
    """Links texts to one graph."""

    def __init__(self, index: NameIndex, wording: Wording) -> None:
        """Keep the names, and what training questions taught."""
        self.index = index
        self.wording = wording
        self._loose = LooseNames(index)

    def link(self, texts: Sequence[str]) -> list[list[LinkedMention]]:
        """Return the mentions of each text that are taken for topics, best first; none where nothing is found."""
        words = [words_of(text) for text in texts]
        found = self.index.find(words)
        return [self._choose(text, own, names) for text, own, names in zip(texts, words, found, strict=True)]

    def _choose(self, text: str, words: Words, found: Iterable[FoundName]) -> list[LinkedMention]:
        options = [option for option in (self._option(text, words, name) for name in found) if not option.wording]
        chosen = self._best(options, words)
        if not chosen or self._unexplained(words, chosen):
            chosen = self._best([*options, *self._near(text, words)], words)
        return [self._with_bearers_told_apart(one, words) for one in chosen[: self.wording.max_mentions]]

    def _unexplained(self, words: Words, chosen: Sequence[LinkedMention]) -> bool:
        """Is there a word that is neither wording nor part of a name? It may be a misspelt part of a longer one."""
        rest = set(range(len(words))).difference(*(option.places for option in chosen))
        return bool(self.wording.words) and any(words[place][0] not in self.wording.words for place in rest)

    def _best(self, options: Sequence[LinkedMention], words: Words) -> list[LinkedMention]:
        """Return the options by rank, none inside or across a better one: the longest of nested names counts."""
        outer = [one for one in options if not any(self._swallows(other, one, words) for other in options)]
        taken: list[LinkedMention] = []
        for option in sorted(outer, key=lambda option: option.rank):
            if all(_apart(option.span, other.span) for other in taken):
                taken.append(option)
        return taken

    def _swallows(self, outer: LinkedMention, inner: LinkedMention, words: Words) -> bool:
        """Is ``inner`` only a part of ``outer``? Not where capitals mark it and all else is wording: "in Hell"."""
        if not set(inner.places) < set(outer.places):
            return False
        rest = set(outer.places).difference(inner.places)
        marked = inner.capital and not outer.exact
        return not (marked and all(words[place][0] in self.wording.words for place in rest))

    def _option(self, text: str, words: Words, name: FoundName) -> LinkedMention:
        """Return a name that stands in a text, with those of its bearers whose name is written most like it."""
        span = words[name.first][1], words[name.last][2]
        places = range(name.first, name.last + 1)
        cased = self._cased(text)
        bearers = []
        for row in name.rows:
            written = self.index.name_of(row)
            at, exact = letter_span(text, span, written)
            bearers.append((exact and cased, _similarity(text[slice(*at)], written), exact, at, row))
        best = max(bearer[:2] for bearer in bearers)
        kept = [bearer for bearer in bearers if bearer[:2] == best]
        at = min(bearer[3] for bearer in kept)
        capital = best[0] and _is_marked(text[slice(*at)], places)
        return LinkedMention(
            span=at,
            entities=tuple(sorted({self.index.entity_of(bearer[4]) for bearer in kept})),
            exact=any(bearer[2] for bearer in kept),
            similarity=best[1],
            places=places,
            letters=self._letters(words, places),
            capital=capital,
            wording=not capital and self.wording.rows.issuperset(name.rows),
        )

    def _letters(self, words: Words, places: range) -> int:
        return sum(len(words[place][0]) for place in places if words[place][0] not in self.wording.words)

    def _cased(self, text: str) -> bool:
        return text != text.lower() if self.wording.cased is None else self.wording.cased

    def _near(self, text: str, words: Words) -> list[LinkedMention]:
        """Return names that the text does not quite have: written together or apart, without an article, misspelt."""
        joined = self._near_options(text, words, self._loose.find_joined(words), at_least=0.0)  # the same letters
        misspelt = self._loose.find_misspelt(words, self.wording.words)
        return joined + self._near_options(text, words, misspelt, at_least=MIN_SIMILARITY)

    def _near_options(
        self, text: str, words: Words, found: Iterable[NearName], *, at_least: float
    ) -> list[LinkedMention]:
        """Return an option for each run of words, with the names most like it."""
        cased = self._cased(text)
        best: dict[range, tuple[tuple[float, float], set[int]]] = {}
        for near in found:
            places = range(near.first, near.last + 1)
            piece, name = text[words[near.first][1] : words[near.last][2]], self.index.name_of(near.row)
            likeness = _similarity(piece, name), fuzz.ratio(piece, name) if cased else 0.0
            before = best.get(places, ((at_least, 0.0), set()))
            if likeness >= before[0] and self._letters(words, places):
                entities = before[1] if likeness == before[0] else set()
                best[places] = likeness, entities | {self.index.entity_of(near.row)}
        options = []
        for places, (likeness, entities) in best.items():
            span = words[places[0]][1], words[places[-1]][2]
            marked = cased and _is_marked(text[slice(*span)], places)
            letters = self._letters(words, places)
            options.append(LinkedMention(span, tuple(sorted(entities)), False, likeness[0], places, letters, marked))
        return options

    def _with_bearers_told_apart(self, mention: LinkedMention, words: Words) -> LinkedMention:
        """Return the mention with those bearers that fit the words around it, the commonest first where all do."""
        if len(mention.entities) == 1:
            return mention
        graph, scores = self.index.graph, [0.0] * len(mention.entities)
        if self.wording.surroundings is not None:
            others = [word for word, start, end in words if _apart((start, end), mention.span)]
            around = [_relations_around(graph, entity) for entity in mention.entities]
            scores = self.wording.surroundings.score(others, around)
        fitting = [
            (-score, -_degree(graph, entity), entity)
            for score, entity in zip(scores, mention.entities, strict=True)
            if score >= max(scores) - MARGIN
        ]
        return replace(mention, entities=tuple(sorted(entity for _, _, entity in sorted(fitting)[:MAX_BEARERS])))


def _similarity(piece: str, name: str) -> float:
    return fuzz.ratio(piece.casefold(), name.casefold()) / 100


def _is_marked(piece: str, places: range) -> bool:
    """Do capitals mark a name? A single word at the beginning has one anyway."""
    return piece != piece.lower() and places != range(1)


def _apart(span: Span, other: Span) -> bool:
    return span[1] <= other[0] or other[1] <= span[0]


def _degree(graph: KnowledgeGraph, entity: int) -> int:
    first, last = graph.group_ptr[entity], graph.group_ptr[entity + 1]
    return int(graph.edge_ptr[last] - graph.edge_ptr[first])


# ------ Questions as if nobody had said what they are about.


def link_topics(
    questions: Sequence[Question], graph: KnowledgeGraph, *, examples: Sequence[Question] = ()
) -> list[Question]:
    """Return the questions with their topics hidden, and linked again by the text alone.

    ``masked`` goes by the names that were found, right or wrong. What a true/false question claims stays known, and is
    no topic. A question in which no name is found has no topics.

    Args:
        questions: whose topics are hidden.
        graph: whose names and aliases are looked for.
        examples: training questions: they tell names from wording, and bearers of one name from each other. None are
            needed, but without any a graph's entity "director" is found wherever the word stands.
    """
    index = NameIndex(graph)
    return link_with(TextLinker(index, learn_wording(index, examples)), questions)


def link_with(linker: TextLinker, questions: Sequence[Question]) -> list[Question]:
    """Return ``link_topics(questions, …)`` by a linker that was made before: making one reads all names."""
    graph = linker.index.graph
    claims = [() if one.claim is None else (graph.name_of(one.claim),) for one in questions]
    found = linker.link([_without(one.text, names) for one, names in zip(questions, claims, strict=True)])
    linked = []
    for question, names, mentions in zip(questions, claims, found, strict=True):
        pieces = {question.text[slice(*mention.span)] for mention in mentions}
        topics = tuple(sorted({entity for mention in mentions for entity in mention.entities}))
        linked.append(replace(question, topics=topics, masked=mask_topics(question.text, pieces, claims=names)))
    return linked


def _without(text: str, names: Iterable[str]) -> str:
    """Return the text with blanks where the names stand."""
    for name in names:
        for start, end in spans_of(text, name):
            text = text[:start] + " " * (end - start) + text[end:]
    return text
