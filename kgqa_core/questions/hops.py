"""How many hops a question takes where its dataset does not say: the shortest relation path to any of its golds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.subgraphs import Subgraphs
from kgqa_core.questions.coverage import gold_hops
from kgqa_core.types import Question

MAX_HOPS = 4  # searched; beyond that most of any graph is within reach, and a shortest path says nothing


def fill_hops(
    questions: Sequence[Question], graph: KnowledgeGraph, *, reenter_topic: bool, subgraphs: Subgraphs | None = None
) -> list[Question]:
    """Return the questions with ``hops`` wherever it can be known.

    What the dataset says stays; then the length of the gold chain; then the shortest path, in any direction along any
    relations, to the nearest gold, inside the question's subgraph where each has one. ``None`` is left where no gold
    is within ``MAX_HOPS``, or where there is none.
    """
    asked = [question for question in questions if question.hops is None and not question.chain]
    reached = gold_hops(asked, graph, max_steps=MAX_HOPS, reenter_topic=reenter_topic, subgraphs=subgraphs)
    nearest = {
        question.id: int(hops[hops > 0].min())
        for question, hops in zip(asked, reached, strict=True)
        if (hops > 0).any()
    }
    return [
        question
        if question.hops is not None
        else replace(question, hops=len(question.chain) if question.chain else nearest.get(question.id))
        for question in questions
    ]
