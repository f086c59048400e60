"""One neighbourhood in words: the triples around some topics, nearest first, with labels and names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kgqa_core import schemas
from kgqa_core.graph.csr import Ints, expand_ranges
from kgqa_core.graph.expand import Expander, Expansion, Walk
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.subgraphs import Subgraphs

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
            yield (*names[0], graph.relation_labels[relation], *names[1])


def walk_from(expander: Expander, graph: KnowledgeGraph, topics: Sequence[int]) -> Neighbourhood:
    """Return what a walk from ``topics`` comes to."""
    found = expander.expand(topics)
    hops = np.full(graph.num_entities, FAR, dtype=np.int8)
    hops[found.entity] = _hops(found)
    triples = _nearest_first(*expander.walked_triples(found), lambda entities: hops[entities])
    return Neighbourhood(graph, tuple(topics), len(found.entity), *triples, found.num_capped, found.stopped)


def of_question(subgraphs: Subgraphs, graph: KnowledgeGraph, question_id: str, topics: Sequence[int]) -> Neighbourhood:
    """Return the subgraph that a question has of its own, ``topics`` being its topics."""
    block = subgraphs.block_of[question_id]
    start, end = (int(subgraphs.block_ptr[at]) for at in (block, block + 1))
    inside = subgraphs.entity[start:end]
    walk = Expander(subgraphs.graph, Walk(hops=9, cap=None))
    found = walk.expand((start + np.searchsorted(inside, topics)).tolist())
    hops = np.full(end - start, FAR, dtype=np.int8)
    hops[found.entity - start] = _hops(found)
    csr = subgraphs.graph
    groups = np.arange(csr.group_ptr[start], csr.group_ptr[end])
    groups = groups[csr.group_relation[groups] < csr.num_relations]
    sizes = csr.edge_ptr[groups + 1] - csr.edge_ptr[groups]
    owner = np.searchsorted(csr.group_ptr, groups, side="right") - 1 - start
    tails = csr.edge_tail[expand_ranges(csr.edge_ptr[groups], csr.edge_ptr[groups + 1])] - start
    triples = (np.repeat(owner, sizes), np.repeat(csr.group_relation[groups], sizes), tails)
    heads, relations, tails = _nearest_first(*triples, lambda rows: hops[rows])
    return Neighbourhood(graph, tuple(topics), end - start, inside[heads], relations, inside[tails])


def _hops(found: Expansion) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(found.hop_ptr) - 1), np.diff(found.hop_ptr))


def _nearest_first(heads: Ints, relations: Ints, tails: Ints, hops: Callable[[Ints], Ints]) -> tuple[Ints, Ints, Ints]:
    near, far = np.minimum(hops(heads), hops(tails)), np.maximum(hops(heads), hops(tails))
    order = np.lexsort((tails, relations, heads, far, near))
    return heads[order], relations[order], tails[order]


def write_neighbourhood(found: Neighbourhood, out: Path) -> None:
    """Write schemas.NEIGHBOURHOOD to a Parquet file."""
    with pq.ParquetWriter(out, schemas.NEIGHBOURHOOD, compression="zstd") as writer:
        for rows in _batches(found.rows()):
            columns = [list(column) for column in zip(*rows, strict=True)]
            writer.write_table(pa.table(columns, schema=schemas.NEIGHBOURHOOD))


def _batches(rows: Iterable[tuple[str, ...]]) -> Iterator[list[tuple[str, ...]]]:
    held: list[tuple[str, ...]] = []
    for row in rows:
        held.append(row)
        if len(held) == BATCH_ROWS:
            yield held
            held = []
    if held:
        yield held
