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
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kgqa_core.errors import ArtifactError, InputError, shorten
from kgqa_core.graph.csr import Ints, expand_ranges, open_array, open_csr, sorted_distinct
from kgqa_core.graph.kg import KnowledgeGraph, write_step
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


# ------ What is searched for answers: the run's graph, or the graph of rows.


@dataclass(frozen=True, slots=True)
class SearchGraph:
    """A graph to search, what its entities are called, and how far a search goes. Implements ``render.Names``."""

    graph: KnowledgeGraph  # that is walked
    entities: KnowledgeGraph  # that names are looked up in; the same but for subgraphs
    subgraphs: Subgraphs | None  # None: all questions search one graph
    max_hops: int  # L: steps from a topic
    reenter_topic: bool  # may a step arrive at a topic?

    @property
    def relation_labels(self) -> list[str]:
        """Return the labels of the forward relations."""
        return self.graph.relation_labels

    def name_of(self, entity_id: int) -> str:
        """Return what an entity of ``graph`` is called; a row is called as its entity."""
        return self.entities.name_of(entity_id if self.subgraphs is None else int(self.subgraphs.entity[entity_id]))

    def relation_text(self, relation: int) -> str:
        """Return words for a relation id."""
        return self.graph.relation_text(relation)

    def place(self, questions: Sequence[Question]) -> list[Question]:
        """Return linked questions whose entities are those of ``graph``.

        Raises:
            InputError: a question has no subgraph, where each needs its own.
        """
        return self.subgraphs.all_to_rows(questions) if self.subgraphs else list(questions)

    def to_entities(self, ids: Sequence[int]) -> tuple[int, ...]:
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
        num = self.graph.num_relations
        return write_step(self.graph.relation_labels[relation % num], relation >= num)

    def step(self, start: int, relation: int, end: int) -> Step:
        """Return the stored triple that leads from ``start`` to ``end`` along a forward or reverse relation id."""
        if relation < self.graph.num_relations:
            return Step(start, relation, end)
        return Step(end, relation - self.graph.num_relations, start, reverse=True)

    def avoided(self, topics: Sequence[int] | Ints) -> Ints:
        """Return the entities (ascending, distinct) that no step may arrive at: the topics, or none."""
        barred: Sequence[int] | Ints = () if self.reenter_topic else topics
        return sorted_distinct(np.asarray(barred, dtype=np.int64))


# ------ Paths as they are walked, and the check that one really stands in a graph.


def ends_of(step: Step) -> tuple[int, int]:
    """Return where a step starts and where it ends, as it was walked."""
    return (step.tail, step.head) if step.reverse else (step.head, step.tail)


def is_evidence(graph: KnowledgeGraph, path: ReasoningPath, answer: int) -> bool:
    """Say whether a path stands in the graph, edge by edge, hangs together and ends in ``answer``."""
    if not path:
        return False
    here = ends_of(path[0])[0]
    for step in path:
        start, end = ends_of(step)
        if start != here or not _is_edge(graph, step):
            return False
        here = end
    return here == answer


def _is_edge(graph: KnowledgeGraph, step: Step) -> bool:
    inside = 0 <= step.head < graph.num_entities and 0 <= step.tail < graph.num_entities
    if not inside or not 0 <= step.relation < graph.num_relations:
        return False
    # bisect beside numpy: of a few numbers, a call of searchsorted takes several times longer.
    first, last = int(graph.group_ptr[step.head]), int(graph.group_ptr[step.head + 1])
    group = bisect_left(graph.group_relation, step.relation, first, last)
    if group == last or graph.group_relation[group] != step.relation:
        return False
    start, end = int(graph.edge_ptr[group]), int(graph.edge_ptr[group + 1])
    place = bisect_left(graph.edge_tail, step.tail, start, end)
    return place < end and bool(graph.edge_tail[place] == step.tail)


# ------ Looking around from a set of entities.


def relations_around(graph: KnowledgeGraph, frontier: Ints, avoided: Ints) -> list[int]:
    """Return the relation ids, ascending, that lead from any of ``frontier`` to an entity that is not ``avoided``."""
    groups = _groups(graph, frontier)
    open_groups = groups[_leads_on(graph, groups, avoided)]
    return [int(one) for one in sorted_distinct(graph.group_relation[open_groups])]


def without(entities: Ints, avoided: Ints) -> Ints:
    """Return ``entities`` without those ``avoided``, of which there are few."""
    for one in avoided:  # cheaper than numpy's isin
        entities = entities[entities != one]
    return entities


def links_to(graph: KnowledgeGraph, frontier: Ints, targets: Ints) -> dict[int, list[int]]:
    """Return the targets, ascending, that are one step from ``frontier``, by relation id, ascending.

    It is looked up from whichever side has fewer edges; ``targets`` are distinct and ascending, as ``frontier`` is.
    """
    here, there = _groups(graph, frontier), _groups(graph, targets)
    if _num_edges(graph, here) <= _num_edges(graph, there):
        tails = graph.edge_tail[expand_ranges(graph.edge_ptr[here], graph.edge_ptr[here + 1])]
        inside = np.isin(tails, targets)
        relations, found = _relation_of_edges(graph, here)[inside], tails[inside]
    else:
        tails = graph.edge_tail[expand_ranges(graph.edge_ptr[there], graph.edge_ptr[there + 1])]
        inside = np.isin(tails, frontier)
        owners = np.repeat(targets, graph.group_ptr[targets + 1] - graph.group_ptr[targets])
        found = np.repeat(owners, graph.edge_ptr[there + 1] - graph.edge_ptr[there])[inside]
        relations = (_relation_of_edges(graph, there)[inside] + graph.num_relations) % graph.identity
    keys = sorted_distinct(relations.astype(np.int64) * graph.num_entities + found)
    links: dict[int, list[int]] = {}
    for key in keys.tolist():
        links.setdefault(key // graph.num_entities, []).append(key % graph.num_entities)
    return links


def _groups(graph: KnowledgeGraph, entities: Ints) -> Ints:
    return expand_ranges(graph.group_ptr[entities], graph.group_ptr[entities + 1])


def _leads_on(graph: KnowledgeGraph, groups: Ints, avoided: Ints) -> NDArray[np.bool_]:
    """Say of each group of edges whether it reaches an entity that is not ``avoided``."""
    sizes = graph.edge_ptr[groups + 1] - graph.edge_ptr[groups]
    leads = sizes > len(avoided)  # more than could all be avoided
    few = np.flatnonzero(~leads)
    edges = expand_ranges(graph.edge_ptr[groups[few]], graph.edge_ptr[groups[few] + 1])
    allowed = ~np.isin(graph.edge_tail[edges], avoided)
    leads[few] = np.bincount(np.repeat(np.arange(len(few)), sizes[few])[allowed], minlength=len(few)) > 0
    return leads


def _num_edges(graph: KnowledgeGraph, groups: Ints) -> int:
    return int((graph.edge_ptr[groups + 1] - graph.edge_ptr[groups]).sum())


def _relation_of_edges(graph: KnowledgeGraph, groups: Ints) -> Ints:
    return np.repeat(graph.group_relation[groups], graph.edge_ptr[groups + 1] - graph.edge_ptr[groups])
