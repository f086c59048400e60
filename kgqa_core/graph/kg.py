"""A built graph, opened memory-mapped: nothing is read before it is asked for. Relation paths by label."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgqa_core import schemas
from kgqa_core.errors import ArtifactError
from kgqa_core.graph import csr
from kgqa_core.graph.csr import Ints, SortedIndex, expand_ranges, open_array, sorted_distinct
from kgqa_core.types import Question, RelationPath, Step


@dataclass(frozen=True, eq=False)
class KnowledgeGraph:
    """Entities, relations and both directions of all triples; see ``csr`` for the four arrays.

    Relation ids: 0..R-1 forward, R..2R-1 the same walked backwards, 2R identity (stay; never stored).
    """

    folder: Path
    num_entities: int  # N
    num_relations: int  # R
    num_triples: int  # E, each distinct triple once
    group_ptr: Ints  # int64 [N+1]
    group_relation: Ints  # int32 [G]
    edge_ptr: Ints  # int64 [G+1]
    edge_tail: Ints  # int32 [2E]

    @cached_property
    def identity(self) -> int:
        """The relation id that means "stay": 2R."""
        return 2 * self.num_relations

    @cached_property
    def arrays(self) -> csr.CsrArrays:
        """The CSR as compiled code takes it."""
        return self.group_ptr, self.group_relation, self.edge_ptr, self.edge_tail

    @cached_property
    def entity_names(self) -> list[str]:
        """Names by entity id; read on first use. For one name use ``name_of``."""
        return _column(self.folder / "entities.parquet", "name")

    @cached_property
    def entity_labels(self) -> list[str]:
        """Labels by entity id; read on first use."""
        return _column(self.folder / "entities.parquet", "label")

    @cached_property
    def relation_labels(self) -> list[str]:
        """Labels of the R forward relations: what the triples call them."""
        return _column(self.folder / "relations.parquet", "label")

    @cached_property
    def relation_names(self) -> list[str]:
        """Names of the R forward relations, unique: how plans, prompts and encodings call them."""
        return _column(self.folder / "relations.parquet", "name")

    @cached_property
    def steps(self) -> list[str]:
        """How plans write the 2R relation ids: see ``write_step``."""
        return [write_step(label, backward) for backward in (False, True) for label in self.relation_names]

    @cached_property
    def step_ids(self) -> dict[str, int]:
        """Relation ids (0..2R-1) by how plans write them."""
        return {step: relation for relation, step in enumerate(self.steps)}

    @cached_property
    def inverse_labels(self) -> list[str | None]:
        """Labels that the file gave the R relations walked backwards; None where it gave none."""
        return _column(self.folder / "relations.parquet", "inverse")

    @cached_property
    def _label(self) -> Callable[[int], bytes]:
        return csr.open_bytes(self.folder, "label")

    @cached_property
    def _name(self) -> Callable[[int], bytes]:
        return csr.open_bytes(self.folder, "name")

    @cached_property
    def _by_label(self) -> SortedIndex:
        return SortedIndex(self._label, range(self.num_entities))  # ids follow the labels' order

    @cached_property
    def name_index(self) -> SortedIndex:
        """Entities in byte order of their names."""
        ids = open_array(self.folder / "name_order.npy")
        return SortedIndex(lambda row: self._name(ids[row]), ids)

    @cached_property
    def folded_index(self) -> SortedIndex:
        """Entities in byte order of their case-folded names."""
        ids = open_array(self.folder / "folded_order.npy")
        return SortedIndex(lambda row: self.name_of(ids[row]).casefold().encode(), ids)

    def name_of(self, entity_id: int) -> str:
        """Return one entity's name without reading all of them."""
        return self._name(entity_id).decode()

    def label_of(self, entity_id: int) -> str:
        """Return one entity's label without reading all of them."""
        return self._label(entity_id).decode()

    def ids_of_label(self, label: str) -> int | None:
        """Return the entity with this label, or None."""
        return next(iter(self._by_label.ids_of(label)), None)

    def ids_of_name(self, name: str) -> tuple[int, ...]:
        """Return the entities with exactly this name, ascending: several where it is shared, none where unknown."""
        return self.name_index.ids_of(name)

    def ids_of_folded_name(self, name: str) -> tuple[int, ...]:
        """Return the entities with this name whatever its case, ascending."""
        return self.folded_index.ids_of(name.casefold())

    @cached_property
    def _folded_aliases(self) -> tuple[Ints, pa.Array]:
        """Entity and case-folded text of each alias; read on first use."""
        table = self.read_aliases()
        return table["entity_id"].to_numpy(), csr.fold(table["alias"].combine_chunks())

    def read_aliases(self) -> pa.Table:
        """Return schemas.ALIASES; no row where the graph's source gives none."""
        path = self.folder / "aliases.parquet"
        return pq.read_table(path, schema=schemas.ALIASES) if path.is_file() else schemas.ALIASES.empty_table()

    def ids_of_alias(self, name: str) -> tuple[int, ...]:
        """Return the entities with this alias whatever its case, ascending. Looks through all aliases."""
        entities, aliases = self._folded_aliases
        found = pc.equal(aliases, pa.scalar(name.casefold(), pa.large_string())).to_numpy(zero_copy_only=False)
        return tuple(sorted_distinct(entities[np.flatnonzero(found)]).tolist())

    def neighbors(self, entity_id: int, relation: int) -> Ints:
        """Return the entities reached from ``entity_id`` by ``relation`` (0..2R), ascending."""
        if relation == self.identity:
            return np.array([entity_id], dtype=np.int32)
        first, last = self.group_ptr[entity_id], self.group_ptr[entity_id + 1]
        group = first + np.searchsorted(self.group_relation[first:last], relation)
        if group == last or self.group_relation[group] != relation:
            return np.empty(0, dtype=np.int32)
        return self.edge_tail[self.edge_ptr[group] : self.edge_ptr[group + 1]]

    def edges_of(self, entities: Ints) -> tuple[Ints, Ints, Ints]:
        """Return all edges of some entities: the place of the entity left, the relation (0..2R-1), the one reached."""
        first, last = self.group_ptr[entities], self.group_ptr[entities + 1]
        groups = expand_ranges(first, last)
        owner = np.repeat(np.arange(len(entities)), last - first)
        first, last = self.edge_ptr[groups], self.edge_ptr[groups + 1]
        tails = self.edge_tail[expand_ranges(first, last)]
        return np.repeat(owner, last - first), np.repeat(self.group_relation[groups], last - first), tails

    def step(self, start: int, relation: int, end: int) -> Step:
        """Return the stored triple that leads from ``start`` to ``end`` along a relation id (0..2R-1)."""
        if relation < self.num_relations:
            return Step(start, relation, end)
        return Step(end, relation - self.num_relations, start, reverse=True)

    def relation_text(self, relation: int) -> str:
        """Return words for a relation id: "directed by", "directed by (reversed)" or "same entity"."""
        if relation == self.identity:
            return "same entity"
        label = self.relation_names[relation % self.num_relations]
        text = re.sub(r"[\s_./:#]+", " ", label).strip() or label
        return text if relation < self.num_relations else f"{text} (reversed)"


def _column(path: Path, name: str) -> list[Any]:
    with pq.ParquetFile(path) as file:  # read_table would first import pyarrow.dataset: a third of a second
        values: list[Any] = file.read(columns=[name])[name].to_pylist()
    return values


def open_graph(folder: Path) -> KnowledgeGraph:
    """Open a folder that ``build_graph`` wrote; ArtifactError where it is not one or is damaged."""
    try:
        facts = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
        counts = {name: facts[name] for name in ("num_entities", "num_relations", "num_triples")}
        return KnowledgeGraph(folder, **counts, **csr.open_csr(folder, **counts)._asdict())
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{folder} holds no usable graph ({error}). Build it again: kgqa build CONF") from error


# ------ Relation paths by label: how plans are written. A step is a relation's label, walked forward; "^" before it
# means backward. A label that itself begins with "^" or a backslash is written with a backslash before it.


BACKWARD, ESCAPE = "^", "\\"


def write_step(label: str, backward: bool = False) -> str:
    """Return the step that walks the relation ``label``."""
    escaped = ESCAPE + label if label.startswith((BACKWARD, ESCAPE)) else label
    return BACKWARD + escaped if backward else escaped


def read_step(step: str) -> tuple[str, bool]:
    """Return (label, is it walked backward?) of a step; total: any text is some step."""
    backward = step.startswith(BACKWARD)
    return (step[1:] if backward else step).removeprefix(ESCAPE), backward


def unsigned(path: Iterable[str]) -> tuple[str, ...]:
    """Return the plain labels of a path, as files without directions hold it."""
    return tuple(read_step(step)[0] for step in path)


def to_labels(graph: KnowledgeGraph, path: RelationPath) -> tuple[str, ...]:
    """Return the steps of a relation path by label; identity steps (stay) leave none."""
    return tuple(graph.steps[step] for step in path if step != graph.identity)


def to_relations(graph: KnowledgeGraph, path: Sequence[str]) -> RelationPath | None:
    """Return the relation ids of a path by label, or None where the graph does not have one of its relations."""
    ids = graph.step_ids
    return tuple(ids[step] for step in path) if all(step in ids for step in path) else None


def golds_of(question: Question, *, reenter_topic: bool = False) -> frozenset[int]:
    """Return the entities that a path should reach: the answers, else the claim where that is known to be right.

    With ``reenter_topic=False`` topics are left out only where other golds remain, since no path can reach them.
    """
    golds = frozenset(question.answers)
    if not golds and question.verdict and question.claim is not None:
        golds = frozenset({question.claim})
    reachable = golds if reenter_topic else golds - frozenset(question.topics)
    return golds if reachable else frozenset()
