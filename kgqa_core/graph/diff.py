"""What differs between two built graphs, by label: entity ids and relation ids move from build to build.

Ids follow the byte order of labels in both, so that old id -> new id is one merge of two sorted string tables, and
triples whose ids are replaced stay sorted. Two streams are merged: one pass over both, memory flat in the triples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kgqa_core.graph.diff_kernels import GONE, Triples, count_differing, match_sorted, merge_triples, reach
from kgqa_core.graph.formats import TRIPLE_COLUMNS
from kgqa_core.graph.kg import KnowledgeGraph
from kgqa_core.graph.strings import open_strings

BATCH_ROWS = 1 << 20

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Change:
    """How a set of things changed."""

    before: int
    after: int
    came: int  # those of after that were not there before
    gone: int  # those of before that are not there any more

    @property
    def share(self) -> float:
        """How many came or went, relative to how many there were."""
        return (self.came + self.gone) / max(self.before, 1)


@dataclass(frozen=True, slots=True)
class GraphDiff:
    """What differs between two graphs; as JSON in changes.json."""

    entities: Change
    relations: Change
    triples: Change
    num_renamed: int  # entities whose label stayed and whose name did not
    named_before: float | None  # percent of entities with a name; None where no names were given
    named_after: float | None
    new_relations: tuple[str, ...]  # labels, in byte order
    gone_relations: tuple[str, ...]
    per_relation: dict[str, Change]  # label -> its triples; only where they changed, most changed first

    @property
    def is_empty(self) -> bool:
        """Do both hold the same triples, entities and names?"""
        sets = (self.entities, self.relations, self.triples)
        return not self.num_renamed and not any(change.came or change.gone for change in sets)


@dataclass(frozen=True, slots=True, eq=False)
class GraphComparison:
    """What differs, and where: N entities of the old graph, M of the new one."""

    old: KnowledgeGraph
    new: KnowledgeGraph
    diff: GraphDiff
    new_ids: NDArray[np.int32]  # [N] the entity's id in the new graph, or GONE
    old_ends: Bools = field(repr=False)  # [N] is it an end of a triple that is gone?
    new_ends: Bools = field(repr=False)  # [M] is it an end of a triple that came?

    def near_change(self, hops: int) -> tuple[Bools, Bools]:
        """Return the entities [N] and [M] whose ``hops``-hop neighbourhood lost, or got, a triple.

        That neighbourhood holds the triples of which an end is less than ``hops`` steps away.
        """
        found = []
        for graph, ends in ((self.old, self.old_ends), (self.new, self.new_ends)):
            reached = ends.copy()
            reach(graph.group_ptr, graph.edge_ptr, graph.edge_tail, reached, hops - 1)
            found.append(reached)
        return found[0], found[1]


def compare_graphs(old: KnowledgeGraph, new: KnowledgeGraph) -> GraphComparison:
    """Compare two graphs; ArtifactError, OSError or ValueError where one is damaged."""
    labels = [open_strings(graph.folder, "label") for graph in (old, new)]
    new_ids = match_sorted(labels[0].data, labels[0].offsets, labels[1].data, labels[1].offsets)
    names = [open_strings(graph.folder, "name") for graph in (old, new)]
    num_renamed = count_differing(names[0].data, names[0].offsets, names[1].data, names[1].offsets, new_ids)
    places = {label: number for number, label in enumerate(new.relation_labels)}
    new_relations = np.array([places.get(label, GONE) for label in old.relation_labels], dtype=np.int32)
    merge = _Merge(old, new, new_ids, new_relations)
    merge.run()
    num_kept, num_kept_relations = int((new_ids != GONE).sum()), int((new_relations != GONE).sum())
    per_relation = _per_relation(old, new, merge)
    num_came, num_gone = (sum(getattr(change, way) for change in per_relation.values()) for way in ("came", "gone"))
    diff = GraphDiff(
        entities=_change(old.num_entities, new.num_entities, num_kept),
        relations=_change(old.num_relations, new.num_relations, num_kept_relations),
        triples=Change(old.num_triples, new.num_triples, num_came, num_gone),
        num_renamed=num_renamed,
        named_before=name_coverage(old.folder),
        named_after=name_coverage(new.folder),
        new_relations=tuple(sorted(set(new.relation_labels) - set(old.relation_labels), key=str.encode)),
        gone_relations=tuple(sorted(set(old.relation_labels) - set(new.relation_labels), key=str.encode)),
        per_relation=per_relation,
    )
    kept = new_ids != GONE
    merge.old_ends[kept] |= (merge.ends[new_ids[kept]] & 1).astype(bool)
    return GraphComparison(old, new, diff, new_ids, merge.old_ends, (merge.ends & 2).astype(bool))


def name_coverage(folder: Path) -> float | None:
    """Return the percentage of entities with a name in the wanted language; None where no names were given.

    Literals are names themselves, and do not count.
    """
    facts = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
    kinds = facts.get("kinds") or {}
    num_nodes = sum(kinds.get(kind, 0) for kind in ("entity", "cvt", "foreign"))
    if num_nodes:
        return float(100 * kinds.get("entity", 0) / num_nodes)
    return float(100 * facts["num_named"] / facts["num_entities"]) if facts["num_named"] else None


class _Merge:
    """The pass over the triples of both graphs; ids are those of the new one."""

    def __init__(
        self, old: KnowledgeGraph, new: KnowledgeGraph, entities: NDArray[np.int32], relations: NDArray[np.int32]
    ) -> None:
        self._old, self._new, self._entities, self._relations = old, new, entities, relations
        self.came = np.zeros(new.num_relations, np.int64)  # triples by relation
        self.gone = np.zeros(new.num_relations, np.int64)
        self.ends = np.zeros(new.num_entities, np.uint8)  # 1: of a triple that is gone, 2: of one that came
        self.old_ends = np.zeros(old.num_entities, np.bool_)  # of triples that cannot be in the new graph

    def run(self) -> None:
        """Compare all triples."""
        old_pieces, new_pieces = self._carried_over(), _read_triples(self._new.folder)
        old: Triples | None = next(old_pieces, None)
        new: Triples | None = next(new_pieces, None)
        while old is not None or new is not None:
            if old is None or new is None:
                self._count_rest(old, new)
                old, new = next(old_pieces, None), next(new_pieces, None)
                continue
            num_old, num_new = merge_triples(old, new, self.gone, self.came, self.ends)
            old = _rest(old, num_old) or next(old_pieces, None)
            new = _rest(new, num_new) or next(new_pieces, None)

    def _count_rest(self, old: Triples | None, new: Triples | None) -> None:
        for triples, counts, mark in ((old, self.gone, 1), (new, self.came, 2)):
            if triples is not None:
                counts += np.bincount(triples[1], minlength=len(counts))
                self.ends[triples[0]] |= np.uint8(mark)
                self.ends[triples[2]] |= np.uint8(mark)

    def _carried_over(self) -> Iterator[Triples]:
        """Yield the old triples with new ids, sorted still; those of which a part is gone are counted here."""
        for heads, relations, tails in _read_triples(self._old.folder):
            moved = self._entities[heads], self._relations[relations], self._entities[tails]
            lost = (moved[0] == GONE) | (moved[1] == GONE) | (moved[2] == GONE)
            if lost.any():
                self.old_ends[heads[lost]] = self.old_ends[tails[lost]] = True
                known = moved[1][lost & (moved[1] != GONE)]
                self.gone += np.bincount(known, minlength=len(self.gone))
                moved = moved[0][~lost], moved[1][~lost], moved[2][~lost]
            if len(moved[0]):
                yield moved


def _read_triples(folder: Path) -> Iterator[Triples]:
    """Yield the triples of a graph in order, in pieces."""
    for shard in sorted(folder.glob("triples-*.parquet")):
        for batch in pq.ParquetFile(shard).iter_batches(BATCH_ROWS, columns=list(TRIPLE_COLUMNS)):
            heads, relations, tails = (column.to_numpy() for column in batch.columns)
            yield heads, relations, tails


def _rest(triples: Triples, used: int) -> Triples | None:
    heads, relations, tails = triples
    return (heads[used:], relations[used:], tails[used:]) if used < len(heads) else None


def _change(before: int, after: int, kept: int) -> Change:
    return Change(before, after, after - kept, before - kept)


def _per_relation(old: KnowledgeGraph, new: KnowledgeGraph, merge: _Merge) -> dict[str, Change]:
    """Return the relations whose triples changed, most changed first."""
    before, after = (triples_per_relation(graph.folder) for graph in (old, new))
    changes = {label: Change(count, 0, 0, count) for label, count in before.items() if label not in after}
    for label, came, gone in zip(new.relation_labels, merge.came.tolist(), merge.gone.tolist(), strict=True):
        if came or gone:
            changes[label] = Change(before.get(label, 0), after[label], came, gone)
    return dict(sorted(changes.items(), key=lambda item: (-item[1].came - item[1].gone, item[0].encode())))


def triples_per_relation(folder: Path) -> dict[str, int]:
    """Return relation -> triples of a graph artifact."""
    table = pq.read_table(folder / "relations.parquet", columns=["label", "num_triples"])
    return dict(zip(table["label"].to_pylist(), table["num_triples"].to_pylist(), strict=True))
