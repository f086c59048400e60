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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from kgqa_core.errors import ArtifactError, InputError, shorten
from kgqa_core.graph.csr import Ints, open_array, open_csr
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
        csr = open_csr(folder)
        graph = KnowledgeGraph(
            folder=folder,
            num_entities=facts["num_rows"],
            num_relations=pq.read_metadata(folder / RELATIONS_FILE).num_rows,
            num_triples=facts["num_triples"],
            group_ptr=csr.group_ptr,
            group_relation=csr.group_relation,
            edge_ptr=csr.edge_ptr,
            edge_tail=csr.edge_tail,
        )
        ids = pq.read_table(folder / BLOCKS_FILE, columns=["question_id"])["question_id"].to_pylist()
        # of two lines with one id the first counts, as it does where the questions are read
        block_of = {question_id: block for block, question_id in reversed(list(enumerate(ids)))}
        return Subgraphs(graph, open_array(folder / "block_ptr.npy"), open_array(folder / "entity.npy"), block_of)
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(
            f"{folder} holds no usable subgraphs ({error}). Build them again: kgqa build CONF"
        ) from error
