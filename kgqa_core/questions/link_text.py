"""Topic entities from the text alone: the names in it, ranked, and who bears them; training questions teach how.

Of training questions the topics are known, so their masked texts are wording and nothing else. A graph may well have
entities called "film" or "director", but a name that stands in a masked text is not what a question is about.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rapidfuzz import fuzz

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.link import TOPIC, mask_spans, mask_topics, spans_of
from kgqa_core.questions.link_names import NameIndex, Run, Words, letter_span, plain_words, words_of
from kgqa_core.types import Question, Span

CASED = 0.02  # share of texts with a capital from which case tells names apart
SEVERAL = 0.01  # share of questions with more mentions from which more are looked for
PRIOR = 4.0  # questions' worth of belief in what is so of all topics
SURE = 0.99  # no word says more than this about a relation
MAX_BEARERS = 5  # entities of one name; those that fit best, then those of most edges
MARGIN = 1.0  # bearers that fit so many nats worse than the best are dropped
MIN_SIMILARITY = 0.75  # rapidfuzz's ratio, 0..1, of a misspelt name and what stands there


@dataclass(frozen=True, slots=True)
class Wording:
    """What training questions taught; empty where there is nothing to learn from."""

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
    """Return what texts, masked texts and topics teach; a text counts once per set of relations around its topic."""
    linked = [question for question in examples if question.topics]
    if not linked:
        return Wording()
    masked = sorted({question.masked for question in linked})
    texts = [words_of(text.replace(TOPIC, " ")) for text in masked]
    num_topics = [question.masked.count(TOPIC) for question in linked]
    # A number of topics is usual where a share SEVERAL of the questions has so many, or more.
    usual = [num for num in set(num_topics) if sum(other >= num for other in num_topics) >= SEVERAL * len(linked)]
    seen = {(question.masked, _relations_around(index.graph, question.topics[0])) for question in linked}
    surroundings = Surroundings(len(seen), Counter(), Counter(), Counter())
    for text, around in seen:
        words = set(plain_words(text.replace(TOPIC, " ")))
        surroundings.of_relation.update(around)
        surroundings.of_word.update(words)
        surroundings.of_both.update((word, relation) for word in words for relation in around)
    return Wording(
        rows=frozenset(row for found in index.find(texts) for name in found for row in name.rows),
        words=frozenset(word for words in texts for word, _, _ in words),
        cased=sum(question.text != question.text.lower() for question in linked) >= CASED * len(linked),
        max_mentions=max(usual, default=1) or 1,
        surroundings=surroundings,
    )


def _relations_around(graph: KnowledgeGraph, entity: int) -> frozenset[int]:
    return frozenset(graph.group_relation[graph.group_ptr[entity] : graph.group_ptr[entity + 1]].tolist())


# ------ Linking.


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
    wording: bool  # is it a name that questions use without meaning it?

    @property
    def rank(self) -> tuple[bool, float, float, int]:
        """Sort by capitals, then by letters, those of wording last."""
        start, end = self.span
        return not self.capital, -self.similarity * self.letters, -self.similarity * (end - start), start


class TextLinker:
    """Links texts to one graph."""

    def __init__(self, index: NameIndex, examples: Sequence[Question] = ()) -> None:
        """Learn from ``examples``, training questions: they tell names from wording, and bearers of one name apart."""
        self.index, self.wording = index, learn_wording(index, examples)

    def link(self, texts: Sequence[str]) -> list[list[LinkedMention]]:
        """Return the mentions of each text that are taken for topics, best first; none where nothing is found."""
        words = [words_of(text) for text in texts]
        found = self.index.find(words)
        return [self._choose(text, own, runs) for text, own, runs in zip(texts, words, found, strict=True)]

    def _choose(self, text: str, words: Words, runs: Iterable[Run]) -> list[LinkedMention]:
        """Take the best names; where a word is neither wording nor of a name, also names that are not quite there."""
        known = self.wording.words
        options = [option for option in (self._option(text, words, run) for run in runs) if not option.wording]
        chosen = self._best(options, words)
        rest = set(range(len(words))).difference(*(option.places for option in chosen))
        if not chosen or (known and any(words[place][0] not in known for place in rest)):
            joined = [self._option(text, words, run, near=True) for run in self.index.find_joined(words)]
            misspelt = [self._option(text, words, run, near=True) for run in self.index.find_misspelt(words, known)]
            near = [*joined, *(option for option in misspelt if option.similarity >= MIN_SIMILARITY)]
            chosen = self._best([*options, *(option for option in near if option.letters)], words)
        return [self._with_bearers_told_apart(one, words) for one in chosen[: self.wording.max_mentions]]

    def _best(self, options: Sequence[LinkedMention], words: Words) -> list[LinkedMention]:
        """Return the options by rank, none inside or across a better one: the longest of nested names counts."""
        longest = max((len(option.places) for option in options), default=0)
        beginning = defaultdict[int, list[LinkedMention]](list)  # a long text has many names: few can hold another
        for option in options:
            beginning[option.places.start].append(option)
        taken: list[LinkedMention] = []
        spans: list[Span] = []
        for option in sorted(options, key=lambda option: option.rank):
            starts = range(option.places.stop - longest, option.places.start + 1)
            around = (other for start in starts for other in beginning.get(start, ()))
            if not any(self._swallows(other, option, words) for other in around) and _is_apart(option.span, spans):
                taken.append(option)
                insort(spans, option.span)
        return taken

    def _swallows(self, outer: LinkedMention, inner: LinkedMention, words: Words) -> bool:
        """Is ``inner`` only a part of ``outer``? Not where capitals mark it and all else is wording: "in Hell"."""
        if inner.places == outer.places or not (inner.places[0] in outer.places and inner.places[-1] in outer.places):
            return False
        rest = set(outer.places).difference(inner.places)
        marked = inner.capital and not outer.exact
        return not (marked and all(words[place][0] in self.wording.words for place in rest))

    def _option(self, text: str, words: Words, run: Run, *, near: bool = False) -> LinkedMention:
        """Return a name that stands in a text, or ``near``ly, with those of its bearers whose name is most like it."""
        span, places = (words[run.first][1], words[run.last][2]), range(run.first, run.last + 1)
        cased = text != text.lower() if self.wording.cased is None else self.wording.cased
        bearers = []
        for row in run.rows:
            name = self.index.name_of(row)
            at, exact = (span, False) if near else letter_span(text, span, name)
            piece = text[slice(*at)]
            similarity = fuzz.ratio(piece.casefold(), name.casefold()) / 100
            likeness = (exact and cased, similarity, fuzz.ratio(piece, name) if near and cased else 0.0)
            bearers.append((likeness, exact, at, row))
        best = max(likeness for likeness, *_ in bearers)
        kept = [(exact, at, row) for likeness, exact, at, row in bearers if likeness == best]
        exactly_cased, best_similarity, _ = best
        at = min(at for _, at, _ in kept)
        piece = text[slice(*at)]
        # A single word at the beginning of a text has a capital anyway.
        capital = (cased if near else exactly_cased) and piece != piece.lower() and places != range(1)
        return LinkedMention(
            span=at,
            entities=tuple(sorted({self.index.entity_of(row) for _, _, row in kept})),
            exact=any(exact for exact, _, _ in kept),
            similarity=best_similarity,
            places=places,
            letters=sum(len(words[place][0]) for place in places if words[place][0] not in self.wording.words),
            capital=capital,
            wording=not near and not capital and self.wording.rows.issuperset(run.rows),
        )

    def _with_bearers_told_apart(self, mention: LinkedMention, words: Words) -> LinkedMention:
        """Return the mention with those bearers that fit the words around it, those of most edges where many do."""
        if len(mention.entities) == 1:
            return mention
        graph, scores = self.index.graph, [0.0] * len(mention.entities)
        if self.wording.surroundings is not None:
            others = [word for word, start, end in words if _is_apart((start, end), [mention.span])]
            around = [_relations_around(graph, entity) for entity in mention.entities]
            scores = self.wording.surroundings.score(others, around)
        fitting = []
        for score, entity in zip(scores, mention.entities, strict=True):
            first, last = graph.edge_ptr[graph.group_ptr[entity : entity + 2]].tolist()
            if score >= max(scores) - MARGIN:
                fitting.append((-score, first - last, entity))
        return replace(mention, entities=tuple(sorted(entity for _, _, entity in sorted(fitting)[:MAX_BEARERS])))


def _is_apart(span: Span, others: Sequence[Span]) -> bool:
    """Does ``span`` share no character with ``others``, ascending, which share none with each other?"""
    place = bisect_right(others, span)
    return all(span[1] <= start or end <= span[0] for start, end in others[max(place - 1, 0) : place + 1])


def link_topics(questions: Sequence[Question], linker: TextLinker) -> list[Question]:
    """Return the questions with their topics hidden, and linked again by the text alone; some then have none.

    ``masked`` goes by the names that were found, right or wrong. What a true/false question claims stays known, and is
    no topic.
    """
    claims = [() if one.claim is None else (linker.index.graph.name_of(one.claim),) for one in questions]
    texts = []
    for question, names in zip(questions, claims, strict=True):
        spans = [span for name in names for span in spans_of(question.text, name)]
        texts.append(mask_spans(question.text, [((start, end), " " * (end - start)) for start, end in spans]))
    linked = []
    for question, names, mentions in zip(questions, claims, linker.link(texts), strict=True):
        pieces = {question.text[slice(*mention.span)] for mention in mentions}
        topics = tuple(sorted({entity for mention in mentions for entity in mention.entities}))
        linked.append(replace(question, topics=topics, masked=mask_topics(question.text, pieces, claims=names)))
    return linked
