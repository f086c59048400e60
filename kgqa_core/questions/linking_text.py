"""Topic entities from the text alone: the names in it, ranked, each with those who bear it; else what is nearly one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from rapidfuzz import fuzz

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.linking_fuzzy import LooseNames, NearName
from kgqa_core.questions.linking_index import FoundName, NameIndex, Words, letter_span, words_of
from kgqa_core.questions.linking_wording import Wording, relations_around
from kgqa_core.questions.records import Span

How = Literal["exact", "normalised", "joined", "misspelt"]
"""exact: letter for letter; normalised: but for case, accents, punctuation; the others: see ``linking_fuzzy``."""


class Context(Protocol):
    """Tells the bearers of one name apart by what surrounds them."""

    def score(self, words: Sequence[str], around: Sequence[frozenset[int]]) -> Sequence[float]:
        """Return how well each entity fits the words, given the relations (0..2R-1) around it; higher is better."""
        ...


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """How names become topics."""

    max_mentions: int | None = None  # of a question; None: as training questions have, else one
    max_bearers: int = 5  # entities of one name; those that fit best, then those of most edges
    margin: float = 1.0  # bearers so much below the best, in units of the context, are dropped
    cased: bool | None = None  # do capitals mark names? None: as in training questions, else where a text has any
    fuzzy: bool = True  # where no name stands: names that nearly do
    min_similarity: float = 75.0  # 0..100, rapidfuzz's ratio of a name that is misspelt or joined and what stands there


@dataclass(frozen=True, slots=True)
class LinkedMention:
    """A name in a text, with the entities that it is taken to mean."""

    span: Span
    entities: tuple[int, ...]  # ascending
    how: How
    similarity: float  # 0..1, of what stands there and the name, case aside


@dataclass(frozen=True, slots=True)
class _Option:
    mention: LinkedMention
    wording: bool  # is it a name that questions use without meaning it?
    capital: bool  # do capitals mark it?
    letters: int  # of its words that are no wording
    places: range  # of its words in the text

    @property
    def rank(self) -> tuple[bool, float, float, int]:
        """Sort by capitals, then by letters, those of wording last."""
        start, end = self.mention.span
        likeness = self.mention.similarity
        return not self.capital, -likeness * self.letters, -likeness * (end - start), start


class TextLinker:
    """Links texts to one graph."""

    def __init__(
        self,
        index: NameIndex,
        wording: Wording | None = None,
        *,
        settings: LinkSettings | None = None,
        context: Context | None = None,
    ) -> None:
        """Keep the names, what training questions taught, and what tells homonyms apart (None: what was taught)."""
        self.index = index
        self.wording = wording or Wording()
        self.settings = settings or LinkSettings()
        self.context = context or self.wording.surroundings
        self._loose = LooseNames(index)

    def link(self, texts: Sequence[str]) -> list[tuple[LinkedMention, ...]]:
        """Return the mentions of each text that are taken for topics, best first; none where nothing is found."""
        words = [words_of(text) for text in texts]
        return [
            self._choose(text, own, found)
            for text, own, found in zip(texts, words, self.index.find(words), strict=True)
        ]

    def _choose(self, text: str, words: Words, found: Iterable[FoundName]) -> tuple[LinkedMention, ...]:
        options = [option for option in (self._option(text, words, name) for name in found) if not option.wording]
        chosen = self._best(options, words)
        if self.settings.fuzzy and (not chosen or self._unexplained(words, chosen)):
            chosen = self._best([*options, *self._near(text, words)], words)
        limit = self.settings.max_mentions or self.wording.max_mentions
        return tuple(self._with_bearers_told_apart(option.mention, words) for option in chosen[:limit])

    def _unexplained(self, words: Words, chosen: Sequence[_Option]) -> bool:
        """Is there a word that is neither wording nor part of a name? It may be a misspelt part of a longer one."""
        rest = set(range(len(words))).difference(*(option.places for option in chosen))
        return bool(self.wording.words) and any(words[place][0] not in self.wording.words for place in rest)

    def _best(self, options: Sequence[_Option], words: Words) -> list[_Option]:
        """Return the options by rank, none inside or across a better one: the longest of nested names counts."""
        outer = [one for one in options if not any(self._swallows(other, one, words) for other in options)]
        taken: list[_Option] = []
        for option in sorted(outer, key=lambda option: option.rank):
            if all(_apart(option.mention.span, other.mention.span) for other in taken):
                taken.append(option)
        return taken

    def _swallows(self, outer: _Option, inner: _Option, words: Words) -> bool:
        """Is ``inner`` only a part of ``outer``? Not where capitals mark it and all else is wording: "in Hell"."""
        if not set(inner.places) < set(outer.places):
            return False
        rest = set(outer.places).difference(inner.places)
        marked = inner.capital and outer.mention.how != "exact"
        return not (marked and all(words[place][0] in self.wording.words for place in rest))

    def _option(self, text: str, words: Words, name: FoundName) -> _Option:
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
        entities = tuple(sorted({self.index.entity_of(bearer[4]) for bearer in kept}))
        how: How = "exact" if any(bearer[2] for bearer in kept) else "normalised"
        capital = best[0] and _is_marked(text[slice(*at)], places)
        wording = not capital and self.wording.rows.issuperset(name.rows)
        mention = LinkedMention(at, entities, how, best[1])
        return _Option(mention, wording, capital, self._letters(words, places), places)

    def _letters(self, words: Words, places: range) -> int:
        return sum(len(words[place][0]) for place in places if words[place][0] not in self.wording.words)

    def _cased(self, text: str) -> bool:
        if self.settings.cased is not None:
            return self.settings.cased
        return text != text.lower() if self.wording.cased is None else self.wording.cased

    def _near(self, text: str, words: Words) -> list[_Option]:
        """Return names that the text does not quite have: written together or apart, without an article, misspelt."""
        misspelt = self._loose.find_misspelt(words, self.wording.words)
        joined = self._near_options(text, words, self._loose.find_joined(words), "joined")
        return joined + self._near_options(text, words, misspelt, "misspelt")

    def _near_options(self, text: str, words: Words, found: Iterable[NearName], how: How) -> list[_Option]:
        """Return an option for each run of words, with the names most like it."""
        cased = self._cased(text)
        least = self.settings.min_similarity / 100 if how == "misspelt" else 0.0  # joined: the same letters
        best: dict[range, tuple[tuple[float, float], set[int]]] = {}
        for near in found:
            places = range(near.first, near.last + 1)
            piece, name = text[words[near.first][1] : words[near.last][2]], self.index.name_of(near.row)
            likeness = _similarity(piece, name), fuzz.ratio(piece, name) if cased else 0.0
            before = best.get(places, ((least, 0.0), set()))
            if likeness >= before[0] and self._letters(words, places):
                entities = before[1] if likeness == before[0] else set()
                best[places] = likeness, entities | {self.index.entity_of(near.row)}
        options = []
        for places, (likeness, entities) in best.items():
            span = words[places[0]][1], words[places[-1]][2]
            mention = LinkedMention(span, tuple(sorted(entities)), how, likeness[0])
            marked = cased and _is_marked(text[slice(*span)], places)
            options.append(_Option(mention, False, marked, self._letters(words, places), places))
        return options

    def _with_bearers_told_apart(self, mention: LinkedMention, words: Words) -> LinkedMention:
        """Return the mention with those bearers that fit the words around it, the commonest first where all do."""
        if len(mention.entities) == 1:
            return mention
        scores: Sequence[float] = [0.0] * len(mention.entities)
        if self.context is not None:
            others = [word for word, start, end in words if _apart((start, end), mention.span)]
            scores = self.context.score(others, [relations_around(self.index.graph, one) for one in mention.entities])
        least = max(scores) - self.settings.margin
        order = sorted(
            (-score, -_degree(self.index.graph, one), one)
            for score, one in zip(scores, mention.entities, strict=True)
            if score >= least
        )
        return replace(mention, entities=tuple(sorted(one for _, _, one in order[: self.settings.max_bearers])))


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
