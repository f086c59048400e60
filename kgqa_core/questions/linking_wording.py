"""What the training questions teach about linking: which names are mere wording, and what surrounds a topic.

Of training questions the topics are known, so their masked texts are wording and nothing else: a graph may well have
entities called "film" or "director", but a name that stands there is not what a question is about.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.linking import TOPIC
from kgqa_core.questions.linking_index import NameIndex, words_of
from kgqa_core.types import Question

CASED = 0.02  # share of texts with a capital from which case tells names apart
SEVERAL = 0.01  # share of questions with more mentions from which more are looked for
PRIOR = 4.0  # questions' worth of belief in what is so of all topics
SURE = 0.99  # no word says more than this about a relation


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


def relations_around(graph: KnowledgeGraph, entity: int) -> frozenset[int]:
    """Return the relations of an entity, with direction: 0..2R-1."""
    first, last = graph.group_ptr[entity], graph.group_ptr[entity + 1]
    return frozenset(graph.group_relation[first:last].tolist())


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
        surroundings=learn_surroundings(index.graph, linked),
    )


def learn_surroundings(graph: KnowledgeGraph, examples: Sequence[Question]) -> Surroundings:
    """Count which relations lie around topics, by word of the question; a text counts once per set of relations."""
    found = Surroundings(0, Counter(), Counter(), Counter())
    seen = {(question.masked, relations_around(graph, question.topics[0])) for question in examples}
    for text, around in seen:
        words = {word for word, _, _ in words_of(text.replace(TOPIC, " "))}
        found.of_relation.update(around)
        found.of_word.update(words)
        found.of_both.update((word, relation) for word in words for relation in around)
    return Surroundings(len(seen), found.of_relation, found.of_word, found.of_both)
