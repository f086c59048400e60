"""From what a file says to a Question: labels and names become entity ids, mentions become placeholders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.questions.linking import (
    TOPIC,
    find_mention,
    ids_of,
    link_topics,
    mask_spans,
    mask_topics,
    require_ids,
    spans_of,
)
from kgqa_core.questions.records import Fault, Loaded, RawQuestion
from kgqa_core.types import Question, RelationPath, Split

NO_ANSWER = "no answer in the graph"
NO_TOPIC = "no topic in the graph"
NO_MENTION = "no entity name in the text"
NO_CLAIM = "claim not in the graph"
SHARED_CLAIM = "claim names several entities"

Assign = Split | Callable[[str, tuple[int, ...]], Split]  # the split, or (masked text, topics) -> the split


class Resolver:
    """Links raw questions to one graph; looks each label or name up once."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        """Keep the graph and an empty memory of look-ups."""
        self.graph = graph
        self.ids_of = lru_cache(maxsize=2**20)(lambda value: ids_of(value, graph))
        self._relations = {label: relation for relation, label in enumerate(graph.relation_labels)}
        given = enumerate(graph.inverse_labels, graph.num_relations)
        self._relations |= {label: relation for relation, label in given if label is not None}

    def resolve(self, raw: RawQuestion, assign: Assign, loaded: Loaded) -> Question | Fault:
        """Return the linked question, or why it cannot be used; doubts that do not reject it go to ``loaded``."""
        claim = () if raw.claim is None else self.ids_of(raw.claim)
        topics = self._topics(raw, claim)
        if isinstance(topics, Fault):
            if not raw.keep:
                return topics
            topics = ()
        answers = tuple(sorted({entity for answer in raw.answers for entity in self.ids_of(answer)}))
        if raw.answers and not answers and not raw.keep:
            return Fault(NO_ANSWER, unknown=raw.answers[0])
        if raw.claim is not None and len(claim) != 1:
            return Fault(SHARED_CLAIM) if claim else Fault(NO_CLAIM, unknown=raw.claim)
        masked = self._mask(raw, topics, claim)
        question = Question(
            id=raw.id,
            text=raw.text,
            masked=masked,
            topics=topics,
            answers=answers,
            split=assign(masked, topics) if callable(assign) else assign,
            hops=raw.hops,
            chain=self._chain(raw),
            claim=claim[0] if claim else None,
            verdict=raw.verdict,
        )
        self._note(raw, question, loaded)
        return question

    def _topics(self, raw: RawQuestion, claim: Sequence[int]) -> tuple[int, ...] | Fault:
        if not raw.topics and not raw.keep:
            # "Did Hitchcock direct Vertigo?": what is claimed is no topic
            claimed = [(span, " ") for name in self._claim_names(raw, claim) for span in spans_of(raw.text, name)]
            mention = find_mention(mask_spans(raw.text, claimed), self.graph)
            return Fault(NO_MENTION, unknown=raw.text) if mention is None else mention.entities
        topics = {entity for topic in raw.topics for entity in self.ids_of(topic)}
        if not topics and raw.link and (mention := find_mention(raw.text, self.graph)) is not None:
            return mention.entities
        return tuple(sorted(topics)) or Fault(NO_TOPIC, unknown=next(iter(raw.topics), ""))

    def _mask(self, raw: RawQuestion, topics: Sequence[int], claim: Sequence[int]) -> str:
        if raw.mentions:
            return mask_spans(raw.text, [(span, TOPIC) for span in raw.mentions])
        names = {*raw.topics, *map(self.graph.name_of, topics)}
        return mask_topics(raw.text, names, claims=self._claim_names(raw, claim))

    def _claim_names(self, raw: RawQuestion, claim: Sequence[int]) -> set[str]:
        return {*map(self.graph.name_of, claim), *([raw.claim] if raw.claim else [])}

    def _chain(self, raw: RawQuestion) -> RelationPath | None:
        """Return the gold chain as relation ids; None where the graph lacks one of its relations."""
        if raw.chain is None:
            return None
        steps = [self._step(label) for label in raw.chain]
        return tuple(step for step in steps if step is not None) if None not in steps else None

    def _step(self, label: str) -> int | None:
        if label in self._relations:  # first, in case a label itself begins with "~"
            return self._relations[label]
        relation = self._relations.get(label.removeprefix("~")) if label.startswith("~") else None
        return None if relation is None else (relation + self.graph.num_relations) % (2 * self.graph.num_relations)

    def _note(self, raw: RawQuestion, question: Question, loaded: Loaded) -> None:
        split = question.split
        for value in (*raw.topics, *raw.answers):
            ids = self.ids_of(value)
            if len(ids) != 1:
                loaded.note("shared_name_used" if ids else "unknown_entity", split, f"{raw.id}: {value}")
        if any(not self.ids_of(answer) for answer in raw.answers):
            loaded.note("partial_gold", split, raw.id)
        if len(set(raw.answers)) < len(raw.answers):
            loaded.note("duplicate_gold", split, raw.id)
        if raw.chain is not None and question.chain is None:
            loaded.note("unknown_chain_relation", split, f"{raw.id}: {' '.join(raw.chain)}")
        if not question.topics:
            loaded.note("no_topic", split, raw.id)
        elif TOPIC not in question.masked:
            loaded.note("topic_not_in_text", split, raw.id)
        if not raw.answers and raw.claim is None:
            loaded.note("no_gold", split, raw.id)


def link_question(text: str, graph: KnowledgeGraph, *, topics: Sequence[str] = (), id: str = "asked") -> Question:
    """Return a question without golds from a text alone, as a person asks it.

    ``topics``: labels or names; empty: the longest exact name in the text. Raises LinkError with the nearest names.
    """
    entities = {entity for topic in topics for entity in require_ids(topic, graph)} or set(link_topics(text, graph))
    question = Question(id=id, text=text, masked=text, topics=tuple(sorted(entities)), answers=(), split="test")
    return replace(question, masked=mask_topics(text, {*topics, *map(graph.name_of, entities)}))
