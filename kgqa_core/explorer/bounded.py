"""Batches of bounded memory: a batch whose next step would be too large is explored in halves."""

from __future__ import annotations

from collections.abc import Iterator

from kgqa_core.explorer.batch import Batch, QuestionArrays
from kgqa_core.explorer.explore import Exploration, ExploreOptions, explore
from kgqa_core.explorer.frontier import Int
from kgqa_core.explorer.model import Explorer
from kgqa_core.explorer.texts import Texts
from kgqa_core.explorer.walk import TooManyEdges
from kgqa_core.graph.kg import KnowledgeGraph


def explore_rows(
    model: Explorer,
    graph: KnowledgeGraph,
    questions: QuestionArrays,
    rows: Int,
    *,
    texts: Texts,
    options: ExploreOptions,
) -> Iterator[tuple[Int, Batch, Exploration]]:
    """Yield (rows, batch, what was found) of the questions ``rows``: all at once where ``options.max_edges`` allows.

    A single question is never refused: what it needs depends on the edge budget alone.
    """
    parts = [rows]
    while parts:
        part = parts.pop()
        batch = questions.batch(part)
        try:
            found = explore(model, graph, batch, texts=texts, options=options)
        except TooManyEdges:
            half = len(part) // 2
            parts += [part[half:], part[:half]]
            continue
        yield part, batch, found
