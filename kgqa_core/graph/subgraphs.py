"""A subgraph per question, all of them side by side in one graph of rows.

    block_ptr  int64 [Q+1]    question q owns rows block_ptr[q]..block_ptr[q+1]
    entity     int32 [rows]   the entity of each row, ascending inside a block
    group_ptr, group_relation, edge_ptr, edge_tail    the CSR over rows (see ``csr``)

A block holds the entities of its question's triples, its topics and its answers, with or without a triple. No edge
leaves a block: whoever walks the graph of rows from a question's topics stays inside the question's subgraph. So all
that walks a graph works here unchanged, on questions whose entities were turned into rows (``Subgraphs.to_rows``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.errors import ArtifactError, InputError, shorten
from kgqa_core.graph.csr import I8, Ints, expand_ranges, open_array, open_csr
from kgqa_core.graph.expand import Expander, Expansion
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Prediction, Question, Step

BLOCKS_FILE, FACTS_FILE, RELATIONS_FILE = "blocks.parquet", "subgraphs.json", "relations.parquet"


@dataclass(frozen=True, eq=False)
class Subgraphs:
    """The subgraphs of all questions, opened memory-mapped."""

    graph: KnowledgeGraph  # of rows; it has relation labels, and no names: rows are no entities
    block_ptr: Ints  # [Q+1]
    entity: Ints  # [rows]
    block_of: Mapping[str, int]  # question id -> its block

    def to_rows(self, question: Question) -> Question:
        """Return a question whose topics, answers and claim are rows of its block.

        Raises:
            InputError: the question has no subgraph, or an entity of its own is not in it.
        """
        block = self.block_of.get(question.id)
        if block is None:
            raise InputError(
                f"question {shorten(question.id)} has no subgraph, and this run explores nothing else "
                "(dataset.subgraphs). Ask a question of its files, or a run with dataset.subgraphs: none"
            )
        claim = None if question.claim is None else self._rows(question, block, (question.claim,))[0]
        topics, answers = (self._rows(question, block, ids) for ids in (question.topics, question.answers))
        return replace(question, topics=topics, answers=answers, claim=claim)

    def all_to_rows(self, questions: Sequence[Question]) -> list[Question]:
        """Return ``to_rows`` of each question."""
        return [self.to_rows(question) for question in questions]

    def rows_of(self, question_id: str, entities: Sequence[int]) -> Ints:
        """Return the rows, ascending, of those entities that are in a question's subgraph; none where it has none."""
        block = self.block_of.get(question_id)
        if block is None:
            return np.empty(0, dtype=np.int64)
        start, end = int(self.block_ptr[block]), int(self.block_ptr[block + 1])
        wanted = np.array(sorted(entities), dtype=np.int64)
        places = np.searchsorted(self.entity[start:end], wanted)
        inside = places < end - start
        inside[inside] = self.entity[start + places[inside]] == wanted[inside]
        return start + places[inside]

    def to_entities(self, prediction: Prediction) -> Prediction:
        """Return a prediction made of rows as one made of entities."""
        return replace(
            prediction,
            candidates=tuple(self.entity[list(prediction.candidates)].tolist()),
            answers=tuple(self.entity[list(prediction.answers)].tolist()),
            paths=tuple(tuple(map(self._stored, path)) for path in prediction.paths),
        )

    def _rows(self, question: Question, block: int, entities: Sequence[int]) -> tuple[int, ...]:
        start, end = int(self.block_ptr[block]), int(self.block_ptr[block + 1])
        inside = self.entity[start:end]
        places = np.searchsorted(inside, entities)
        missing = [entity for entity, place in zip(entities, places, strict=True) if entity not in inside[place:][:1]]
        if missing:
            raise InputError(f"question {shorten(question.id)}: entity {missing[0]} is not in the question's subgraph")
        return tuple((start + places).tolist())

    def _stored(self, step: Step) -> Step:
        return replace(step, head=int(self.entity[step.head]), tail=int(self.entity[step.tail]))


def open_subgraphs(folder: Path) -> Subgraphs:
    """Open a folder that ``build_subgraphs`` wrote; ArtifactError where it is not one or is damaged."""
    try:
        facts = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
        graph = KnowledgeGraph(
            folder=folder,
            num_entities=facts["num_rows"],
            num_relations=pq.read_metadata(folder / RELATIONS_FILE).num_rows,
            num_triples=facts["num_triples"],
            **open_csr(folder)._asdict(),
        )
        ids = pq.read_table(folder / BLOCKS_FILE, columns=["question_id"])["question_id"].to_pylist()
        # of two lines with one id the first counts, as it does where the questions are read
        block_of = {question_id: block for block, question_id in reversed(list(enumerate(ids)))}
        return Subgraphs(graph, open_array(folder / "block_ptr.npy"), open_array(folder / "entity.npy"), block_of)
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(
            f"{folder} holds no usable subgraphs ({error}). Build them again: kgqa build CONF"
        ) from error


# ------ One neighbourhood: the triples around some topics, nearest first, with labels and names.


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
    triples = _nearest_first(*expander.walked_triples(found), _hops(found, graph.num_entities))
    return Neighbourhood(graph, tuple(topics), len(found.entity), *triples, found.num_capped, found.stopped)


def of_question(subgraphs: Subgraphs, graph: KnowledgeGraph, question_id: str, topics: Sequence[int]) -> Neighbourhood:
    """Return the subgraph that a question has of its own, ``topics`` being its topics."""
    rows, block = subgraphs.graph, subgraphs.block_of[question_id]
    start, end = (int(subgraphs.block_ptr[at]) for at in (block, block + 1))
    found = Expander(rows, hops=9, cap=None).expand(subgraphs.rows_of(question_id, topics).tolist())
    groups = np.arange(rows.group_ptr[start], rows.group_ptr[end])
    groups = groups[rows.group_relation[groups] < rows.num_relations]
    sizes = rows.edge_ptr[groups + 1] - rows.edge_ptr[groups]
    owner = np.searchsorted(rows.group_ptr, groups, side="right") - 1
    tails = rows.edge_tail[expand_ranges(rows.edge_ptr[groups], rows.edge_ptr[groups + 1])]
    triples = (np.repeat(owner, sizes), np.repeat(rows.group_relation[groups], sizes), tails)
    heads, relations, tails = _nearest_first(*triples, _hops(found, rows.num_entities))
    entity = subgraphs.entity
    return Neighbourhood(graph, tuple(topics), end - start, entity[heads], relations, entity[tails])


def _hops(found: Expansion, num_entities: int) -> I8:
    hops = np.full(num_entities, FAR, dtype=np.int8)
    hops[found.entity] = np.repeat(np.arange(len(found.hop_ptr) - 1), np.diff(found.hop_ptr))
    return hops


def _nearest_first(heads: Ints, relations: Ints, tails: Ints, hops: Ints) -> tuple[Ints, Ints, Ints]:
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
