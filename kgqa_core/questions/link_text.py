"""Topic entities from the text alone: the names in it, ranked, and who bears them; training questions teach how.

Of training questions the topics are known, so their masked texts are wording and nothing else. A graph may well have
entities called "film" or "director", but a name that stands in a masked text is not what a question is about.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rapidfuzz import fuzz

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.formats import Span
from kgqa_core.questions.link import TOPIC, mask_topics, spans_of
from kgqa_core.questions.link_index import FoundName, LooseNames, NameIndex, NearName, Words, letter_span, words_of
from kgqa_core.types import Question

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
