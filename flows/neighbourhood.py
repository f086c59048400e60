"""One neighbourhood, for ``kgqa subgraph``: the triples around some topics, nearest first, with labels and names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.graph.csr import Ints
from kgqa_core.graph.expand import Expander, Expansion
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.search_graph import Subgraphs

FAR = 127  # hops of what no walk reaches
BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    """Triples of a graph, sorted by distance from the topics, head, relation and tail."""

    graph: KnowledgeGraph
    topics: tuple[int, ...]
    num_entities: int
    heads: Ints
    relations: Ints
    tails: Ints
    num_capped: int = 0  # groups of which only the first triples are here
    stopped: bool = False  # did a limit of triples end it?

    def __len__(self) -> int:
        """Return the number of triples."""
        return len(self.heads)

    def rows(self, limit: int | None = None) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield label and name of the head, the relation, label and name of the tail."""
        graph = self.graph
        columns = (column[:limit].tolist() for column in (self.heads, self.relations, self.tails))
        for head, relation, tail in zip(*columns, strict=True):
            names = (graph.label_of(head), graph.name_of(head)), (graph.label_of(tail), graph.name_of(tail))
            yield (*names[0], graph.relation_names[relation], *names[1])


def walk_from(expander: Expander, graph: KnowledgeGraph, topics: Sequence[int]) -> Neighbourhood:
    """Return what a walk from ``topics`` comes to."""
    found = expander.expand(topics)
    triples = _nearest_first(found, graph.num_entities, expander.walked_triples(found))
    return Neighbourhood(graph, tuple(topics), len(found.entity), *triples, found.num_capped, found.stopped)


def of_question(subgraphs: Subgraphs, graph: KnowledgeGraph, question_id: str, topics: Sequence[int]) -> Neighbourhood:
    """Return the subgraph that a question has of its own, ``topics`` being its topics."""
    rows, block, entity = subgraphs.graph, subgraphs.block_of[question_id], subgraphs.entity
    own = np.arange(subgraphs.block_ptr[block], subgraphs.block_ptr[block + 1])
    found = Expander(rows, hops=9, cap=None).expand(subgraphs.rows_of(question_id, topics).tolist())
    heads, relations, tails = rows.edges_of(own)
    forward = relations < rows.num_relations
    triples = (own[heads[forward]], relations[forward], tails[forward])
    heads, relations, tails = _nearest_first(found, rows.num_entities, triples)
    return Neighbourhood(graph, tuple(topics), len(own), entity[heads], relations, entity[tails])


def _nearest_first(found: Expansion, num_entities: int, triples: tuple[Ints, Ints, Ints]) -> tuple[Ints, Ints, Ints]:
    hops = np.full(num_entities, FAR, dtype=np.int8)
    hops[found.entity] = np.repeat(np.arange(len(found.hop_ptr) - 1), np.diff(found.hop_ptr))
    heads, relations, tails = triples
    near, far = np.minimum(hops[heads], hops[tails]), np.maximum(hops[heads], hops[tails])
    order = np.lexsort((tails, relations, heads, far, near))
    return heads[order], relations[order], tails[order]


def write_neighbourhood(found: Neighbourhood, out: Path) -> None:
    """Write schemas.NEIGHBOURHOOD to a Parquet file."""
    rows = found.rows()
    with pq.ParquetWriter(out, schemas.NEIGHBOURHOOD, compression="zstd") as writer:
        while batch := list(islice(rows, BATCH_ROWS)):
            columns = [list(column) for column in zip(*batch, strict=True)]
            writer.write_table(pa.table(columns, schema=schemas.NEIGHBOURHOOD))
