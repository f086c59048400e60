"""EPERM's subgraph retriever (§3, Eq. 2; A.4): a beam of relation paths from the topics, scored by the model."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kgqa_core.config_systems import EpermSection
from kgqa_core.graph.csr import Ints, sorted_distinct
from kgqa_core.instructions.prompts import Prompts
from kgqa_core.instructions.score_relations import RelationsCase, ScoreRelationsInstruction
from kgqa_core.instructions.scores import Scores
from kgqa_core.systems.calls import CallsLeft, room_for
from kgqa_core.systems.eperm_subgraph import Part
from kgqa_core.systems.frontier import relations_around, tails_along
from kgqa_core.systems.types import Ask, Reply
from kgqa_core.systems.walk import Walk
from kgqa_core.types import Question, RelationPath

LINES_PER_RELATION = 4  # of an answer: its line, with a reason


@dataclass(frozen=True, slots=True, eq=False)
class _Branch:
    """One path of the beam."""

    path: RelationPath
    score: float  # product of its relations' scores
    frontier: Ints  # where it leads to, ascending


@dataclass(frozen=True, slots=True, eq=False)
class _Offer:
    """Relations that go on from one path, as many as one call shows."""

    branch: _Branch
    relations: tuple[int, ...]
    is_only: bool  # there is a single one, and nothing to ask


@dataclass(frozen=True, slots=True)
class Retriever:
    """Expands the K best relation paths, one relation per round; what they walk is the subgraph."""

    walk: Walk
    prompts: Prompts
    settings: EpermSection

    def retrieve(
        self, question: Question, calls: CallsLeft
    ) -> Generator[Sequence[Ask[Any]], Sequence[Reply[Any]], Part]:
        """Return the question's subgraph: the whole graph, where no relation was named at all.

        A path whose call fails, has no room, or names no relation above 0 ends there: that may be where the answer is.
        Of a single relation there is nothing to choose: it is taken without a call.
        """
        topics = sorted_distinct(np.asarray(question.topics, dtype=np.int64))
        barred = topics[:0] if self.walk.reenter_topic else topics
        starts: dict[int, Ints] = {}
        beam = [_Branch((), 1.0, topics)]
        for _ in range(self.settings.retriever_depth or self.walk.max_hops):
            offers = [offer for branch in beam for offer in self._offers(branch, barred)]
            asks = calls.fit([self._ask(question, offer) for offer in offers if not offer.is_only])
            replies = iter((yield asks) if asks else ())
            scored = [(offer.branch, *one) for offer in offers for one in _scores(offer, replies)]
            scored.sort(key=lambda one: -one[0].score * one[2])  # of equals the first named
            beam = []
            for branch, relation, score in scored[: self.settings.retriever_width]:
                reached = tails_along(self.walk.graph, branch.frontier, relation, barred)
                beam.append(_Branch((*branch.path, relation), branch.score * score, reached))
                known = starts.get(relation, branch.frontier)
                starts[relation] = sorted_distinct(np.concatenate([known, branch.frontier]))
        return Part(self.walk.graph, starts or None)

    def _offers(self, branch: _Branch, barred: Ints) -> list[_Offer]:
        """Return the relations that go on from a path, ascending, in calls of about equal size."""
        relations = relations_around(self.walk.graph, branch.frontier, barred)
        num_calls = -(-len(relations) // self.settings.relation_batch)
        return [_Offer(branch, tuple(relations[call::num_calls]), len(relations) == 1) for call in range(num_calls)]

    def _ask(self, question: Question, offer: _Offer) -> Ask[Any]:
        width = self.settings.retriever_width
        case = RelationsCase(
            question.text,
            tuple(map(self.walk.step_label, offer.relations)),
            topics=tuple(map(self.walk.names.name_of, question.topics)),
            path=tuple(map(self.walk.step_label, offer.branch.path)),
            budget=width,
        )
        return Ask(ScoreRelationsInstruction(self.prompts), case, room_for(LINES_PER_RELATION * width))


def _scores(offer: _Offer, replies: Iterator[Reply[Any]]) -> list[tuple[int, float]]:
    """Return (relation, score) of those above 0, in the order given; a relation that is alone is taken as it is."""
    if offer.is_only:
        return [(relation, 1.0) for relation in offer.relations]
    reply = next(replies, None)
    if reply is None or not isinstance(reply.result, Scores):
        return []
    return [(offer.relations[index], score) for index, score in reply.result.scores if score > 0]
