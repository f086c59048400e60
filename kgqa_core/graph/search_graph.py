"""What is searched for answers: the run's graph, or a subgraph per question, all side by side in one graph of rows.

    block_ptr  int64 [Q+1]    question q owns rows block_ptr[q]..block_ptr[q+1]
    entity     int32 [rows]   the entity of each row, ascending inside a block
    group_ptr, group_relation, edge_ptr, edge_tail    the CSR over rows (see ``csr``)

A block holds the entities of its question's triples, its topics and its answers, with or without a triple. No edge
leaves a block: whoever walks the graph of rows from a question's topics stays inside the question's subgraph. So all
that walks a graph works here unchanged, on questions whose entities were turned into rows (``Subgraphs.to_rows``).
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from kgqa_core.errors import ArtifactError, InputError, shorten
from kgqa_core.graph.csr import Bools, Ints, open_array, open_csr, sorted_distinct
from kgqa_core.graph.follow import LEADS, as_ids, find_leading
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.types import Prediction, Question, ReasoningPath, Step

BLOCKS_FILE, FACTS_FILE, RELATIONS_FILE = "blocks.parquet", "subgraphs.json", "relations.parquet"


@dataclass(frozen=True, eq=False)
class Subgraphs:
    """The subgraphs of all questions, opened memory-mapped."""

    graph: KnowledgeGraph  # of rows; it has relation labels, and no names: rows are no entities
    block_ptr: Ints  # [Q+1]
    entity: Ints  # [rows]
    block_of: Mapping[str, int]  # question id -> its block

    def to_rows(self, question: Question) -> Question:
        """Return a question of rows of its block; InputError where it has none, or lacks an entity of the question."""
        if question.id not in self.block_of:
            raise InputError(
                f"question {shorten(question.id)} has no subgraph, and this run explores nothing else "
                "(dataset.subgraphs). Ask a question of its files, or a run with dataset.subgraphs: none"
            )

        def rows(entities: Sequence[int]) -> tuple[int, ...]:
            found, inside = self._look_up(question.id, np.array(entities, dtype=np.int64))
            if not inside.all():
                missing = entities[int(np.argmin(inside))]
                raise InputError(f"question {shorten(question.id)}: entity {missing} is not in the question's subgraph")
            return tuple(found.tolist())

        claim = None if question.claim is None else rows((question.claim,))[0]
        return replace(question, topics=rows(question.topics), answers=rows(question.answers), claim=claim)

    def rows_of(self, question_id: str, entities: Sequence[int]) -> Ints:
        """Return the rows, ascending, of those entities that are in a question's subgraph; none where it has none."""
        found, inside = self._look_up(question_id, np.array(sorted(entities), dtype=np.int64))
        return found[inside]

    def _look_up(self, question_id: str, entities: Ints) -> tuple[Ints, Bools]:
        """Return the row of each entity in the question's block, and whether it is there; a question may have none."""
        block = self.block_of.get(question_id)
        start, end = (0, 0) if block is None else self.block_ptr[block : block + 2]
        own = self.entity[start:end]
        places = np.searchsorted(own, entities)
        inside = places < len(own)
        inside[inside] = own[places[inside]] == entities[inside]
        return start + places, inside

    def to_entities(self, prediction: Prediction) -> Prediction:
        """Return a prediction made of rows as one made of entities."""
        entity = self.entity
        return replace(
            prediction,
            candidates=tuple(entity[list(prediction.candidates)].tolist()),
            answers=tuple(entity[list(prediction.answers)].tolist()),
            paths=tuple(
                tuple(replace(step, head=int(entity[step.head]), tail=int(entity[step.tail])) for step in path)
                for path in prediction.paths
            ),
        )


def open_subgraphs(folder: Path) -> Subgraphs:
    """Open a folder that ``build_subgraphs`` wrote; ArtifactError where it is not one or is damaged."""
    try:
        facts = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
        num_relations = pq.read_metadata(folder / RELATIONS_FILE).num_rows
        counts = facts["num_rows"], num_relations, facts["num_triples"]
        graph = KnowledgeGraph(folder, *counts, *open_csr(folder, *counts))
        ids = pq.read_table(folder / BLOCKS_FILE, columns=["question_id"])["question_id"].to_pylist()
        # of two lines with one id the first counts, as it does where the questions are read
        block_of = {question_id: block for block, question_id in reversed(list(enumerate(ids)))}
        return Subgraphs(graph, open_array(folder / "block_ptr.npy"), open_array(folder / "entity.npy"), block_of)
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(
            f"{folder} holds no usable subgraphs ({error}). Build them again: kgqa build CONF"
        ) from error


@dataclass(frozen=True, slots=True)
class SearchGraph:
    """A graph to search, what its entities are called, and how far a search goes. Implements ``render.Names``.

    Planners, systems and those who play a language model all search this one view.
    """

    graph: KnowledgeGraph  # that is walked
    entities: KnowledgeGraph  # that names are looked up in; the same but for subgraphs
    subgraphs: Subgraphs | None  # None: all questions search one graph
    max_hops: int  # L: steps from a topic
    reenter_topic: bool  # may a step arrive at a topic?

    @property
    def whole(self) -> SearchGraph:
        """Return the view of the one graph, whatever subgraphs questions have: ids are of its entities."""
        return self if self.subgraphs is None else replace(self, graph=self.entities, subgraphs=None)

    @property
    def relation_names(self) -> list[str]:
        """Return the labels of the forward relations."""
        return self.graph.relation_names

    def name_of(self, entity_id: int) -> str:
        """Return what an entity of ``graph`` is called; a row is called as its entity."""
        return self.entities.name_of(entity_id if self.subgraphs is None else int(self.subgraphs.entity[entity_id]))

    def place(self, questions: Sequence[Question]) -> list[Question]:
        """Return linked questions whose entities are those of ``graph``; InputError where one has no subgraph."""
        return list(map(self.subgraphs.to_rows, questions)) if self.subgraphs else list(questions)

    def to_entities(self, ids: Sequence[int] | Ints) -> tuple[int, ...]:
        """Return the entities that some ids of ``graph`` stand for."""
        return tuple(ids) if self.subgraphs is None else tuple(self.subgraphs.entity[list(ids)].tolist())

    def entities_named(self, question_id: str, name: str, *, any_case: bool = False) -> Ints:
        """Return the entities of ``graph`` with this name, ascending.

        With ``any_case`` its case does not count, and an alias will do where it is nobody's name.
        Where each question has its own subgraph these are rows of that subgraph alone.
        """
        names = self.entities
        found = names.ids_of_folded_name(name) or names.ids_of_alias(name) if any_case else names.ids_of_name(name)
        if self.subgraphs is None:
            return np.array(found, dtype=np.int64)
        return self.subgraphs.rows_of(question_id, found)

    def step_label(self, relation: int) -> str:
        """Return a forward or reverse relation id as a step by label: "^" before one that is walked backward."""
        return self.graph.steps[relation]

    def avoided(self, topics: Sequence[int] | Ints) -> Ints:
        """Return the entities (ascending, distinct) that no step may arrive at: the topics, or none."""
        barred: Sequence[int] | Ints = () if self.reenter_topic else topics
        return sorted_distinct(np.asarray(barred, dtype=np.int64))


# ------ Paths as they are walked, the check that one really stands in a graph, and looking around.


def ends_of(step: Step) -> tuple[int, int]:
    """Return where a step starts and where it ends, as it was walked."""
    return (step.tail, step.head) if step.reverse else (step.head, step.tail)


def is_evidence(graph: KnowledgeGraph, path: ReasoningPath, answer: int) -> bool:
    """Say whether a path stands in the graph, edge by edge, hangs together and ends in ``answer``."""
    here = None
    for step in path:
        (start, end), head, tail = ends_of(step), step.head, step.tail
        if here not in (None, start) or not 0 <= step.relation < graph.num_relations:
            return False
        if not (0 <= head < graph.num_entities and 0 <= tail < graph.num_entities):
            return False
        tails = graph.neighbors(head, step.relation)
        place = bisect_left(tails, tail)
        if place == len(tails) or tails[place] != tail:
            return False
        here = end
    return here == answer


def relations_around(graph: KnowledgeGraph, frontier: Ints, avoided: Ints) -> list[int]:
    """Return the relation ids, ascending, that lead from any of ``frontier`` to an entity that is not ``avoided``."""
    leading = find_leading(graph.arrays, as_ids(frontier), as_ids(avoided), graph.identity, LEADS)
    found: list[int] = np.flatnonzero(leading).tolist()
    return found


def links_to(graph: KnowledgeGraph, frontier: Ints, targets: Ints) -> dict[int, list[int]]:
    """Return the targets, ascending, that are one step from ``frontier``, by relation id, ascending.

    It is looked up from whichever side has fewer edges; ``targets`` are distinct and ascending, as ``frontier`` is.
    """
    ahead, behind = (
        int((graph.edge_ptr[graph.group_ptr[ids + 1]] - graph.edge_ptr[graph.group_ptr[ids]]).sum())
        for ids in (frontier, targets)
    )
    if ahead <= behind:
        _, relations, found = graph.edges_of(frontier)
        inside = np.isin(found, targets)
    else:
        owner, relations, near = graph.edges_of(targets)
        inside, found = np.isin(near, frontier), targets[owner]
        relations = (relations + graph.num_relations) % graph.identity
    keys = sorted_distinct(relations[inside].astype(np.int64) * graph.num_entities + found[inside])
    links: dict[int, list[int]] = {}
    for key in keys.tolist():
        links.setdefault(key // graph.num_entities, []).append(key % graph.num_entities)
    return links
