"""KAPING: the triples around the topics that are most like the question, in one prompt (Baek et al., 2023; §3).

Nothing is trained. The text encoder compares each triple of the neighbourhood with the question, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

import numpy as np
from pydantic import Field

from kgqa_core.config_base import Section
from kgqa_core.config_systems import SystemType
from kgqa_core.graph.csr import sorted_distinct
from kgqa_core.graph.search_graph import SearchGraph
from kgqa_core.instructions.render import Prompts, render_triples
from kgqa_core.systems.answering import answer_on_paths, ask_reason
from kgqa_core.systems.types import Steps, System, SystemAnswer
from kgqa_core.types import Question, Step


class KapingSection(Section):
    """Settings of KAPING."""

    num_triples: Annotated[int, Field(ge=1)] = 10  # K, as published
    hops: Annotated[int, Field(ge=1)] = 1  # as published; 2 where answers lie behind nameless nodes (Freebase)
    max_ranked: Annotated[int, Field(ge=1)] = 1000  # ours: triples encoded per question, nearest first, hubs in turns


@dataclass(frozen=True, slots=True)
class Kaping(System):
    """Ranks triples one by one, and asks once."""

    search: SearchGraph
    prompts: Prompts
    encode: Callable[[Sequence[str]], np.ndarray]  # texts -> unit-norm rows
    settings: KapingSection
    name: str = "kaping"

    def prepare(self, questions: Sequence[Question]) -> Sequence[tuple[list[Step], int]]:
        """Return each question's K triples, the most similar first, and how many around it were not ranked."""
        around = [self._around(question) for question in questions]
        texts = [[render_triples(self.search, (step,)) for step in steps] for steps, _ in around]
        distinct = dict.fromkeys(chain((question.text for question in questions), *texts))
        places = {text: place for place, text in enumerate(distinct)}
        vectors = self.encode(list(distinct))
        found = []
        for question, (steps, num_left_out), own in zip(questions, around, texts, strict=True):
            scores = vectors[[places[text] for text in own]] @ vectors[places[question.text]]
            best = np.argsort(-scores, kind="stable")[: self.settings.num_triples]
            found.append(([steps[place] for place in best.tolist()], num_left_out))
        return found

    def steps(self, question: Question, prepared: tuple[list[Step], int]) -> Steps:
        """Show the triples, each as a path of one step that leads away from the topics."""
        paths = [(step,) for step in prepared[0]]
        (reply,) = yield [ask_reason(self.search, self.prompts, question.text, paths)]
        answer = answer_on_paths(self.search, question, reply.result, paths)
        counts = {"num_paths": len(paths), "num_unranked": prepared[1]}
        return SystemAnswer(answer.prediction, answer.unmatched, {**answer.counts, **counts})

    def _around(self, question: Question) -> tuple[list[Step], int]:
        """Return the distinct triples within ``hops`` of the topics, nearest first, and how many edges were left."""
        graph, found, num_left_out = self.search.graph, dict[tuple[int, int, int], Step](), 0
        frontier = seen = sorted_distinct(np.asarray(question.topics, dtype=np.int64))
        for _ in range(self.settings.hops):
            owner, relations, ends = graph.edges_of(frontier)
            turn = np.arange(len(owner)) - np.searchsorted(owner, owner)  # so that no hub crowds out the others
            edges = np.stack((frontier[owner], relations, ends))[:, np.argsort(turn, kind="stable")]
            for place, (start, relation, end) in enumerate(zip(*edges, strict=True)):
                if len(found) == self.settings.max_ranked:
                    num_left_out += len(ends) - place
                    break
                step = graph.step(int(start), int(relation), int(end))
                found.setdefault((step.head, step.relation, step.tail), step)
            frontier = np.setdiff1d(ends, seen)
            seen = np.union1d(seen, frontier)
        return list(found.values()), num_left_out


KAPING = SystemType(
    lambda parts: Kaping(parts.search, parts.prompts, parts.encode, parts.settings),
    settings=KapingSection,
    roles=lambda settings: ("reason",),
    encodes=True,
)
