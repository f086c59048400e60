"""What differs between two builds of a run: its graph, its questions, and the questions whose subgraph changed.

Graphs are compared by label, as ids move from build to build: DuckDB joins entities and relations by label, and the
triples whose ids were replaced with the new ones, a range of heads at a time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kgqa_core.config_base import DriftSection
from kgqa_core.graph.build import connect
from kgqa_core.graph.csr import Bools
from kgqa_core.graph.expand import Expander
from kgqa_core.graph.input_files import texts_table
from kgqa_core.graph.kg import KnowledgeGraph, open_graph
from kgqa_core.graph.search_graph import BLOCKS_FILE
from kgqa_core.questions.build import read_questions
from kgqa_core.types import Question

if TYPE_CHECKING:
    import duckdb

DIGEST = "digest"  # column of BLOCKS_FILE: hash of a subgraph by labels
GONE = -1
RANGE_EDGES = 2**24  # edges of the heads that are compared at once, in both directions


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
        return _spread(self.old, self.old_ends, hops - 1), _spread(self.new, self.new_ends, hops - 1)


def compare_graphs(old: KnowledgeGraph, new: KnowledgeGraph, memory_limit: str = "1GB") -> GraphComparison:
    """Compare two graphs within DuckDB's memory; ArtifactError, OSError or ValueError where one is damaged."""
    views = {
        f"{age}_{kind}": sorted(graph.folder.glob(files))
        for age, graph in (("old", old), ("new", new))
        for kind, files in (("entity", "entities.parquet"), ("relation", "relations.parquet"), ("triple", "triples-*"))
    }
    with TemporaryDirectory(prefix="kgqa-diff-") as spill, connect(memory_limit, Path(spill), views) as connection:
        new_ids, num_renamed = _match_entities(connection)
        changed = _changed_triples(connection, old, new, new_ids)
    num_kept = int((new_ids != GONE).sum())
    labels = [set(graph.relation_labels) for graph in (old, new)]
    gone, came = (np.concatenate([rows[side] for rows in changed], axis=1) for side in (0, 1))
    diff = GraphDiff(
        entities=Change(old.num_entities, new.num_entities, new.num_entities - num_kept, old.num_entities - num_kept),
        relations=Change(*map(len, (*labels, labels[1] - labels[0], labels[0] - labels[1]))),
        triples=Change(old.num_triples, new.num_triples, came.shape[1], gone.shape[1]),
        num_renamed=num_renamed,
        named_before=name_coverage(old.folder),
        named_after=name_coverage(new.folder),
        new_relations=tuple(sorted(labels[1] - labels[0], key=str.encode)),
        gone_relations=tuple(sorted(labels[0] - labels[1], key=str.encode)),
        per_relation=_per_relation(old, new, gone[1], came[1]),
    )
    old_ends, new_ends = (np.zeros(graph.num_entities, np.bool_) for graph in (old, new))
    old_ends[gone[[0, 2]]] = True
    new_ends[came[[0, 2]]] = True
    return GraphComparison(old, new, diff, new_ids, old_ends, new_ends)


def _match_entities(connection: duckdb.DuckDBPyConnection) -> tuple[NDArray[np.int32], int]:
    """Make the table ``place`` (old id, new id or null); return the new ids [N], and how many names differ."""
    connection.execute(
        "create temp table place as select o.entity_id as old, n.entity_id as new, o.name <> n.name as renamed "
        "from old_entity o left join new_entity n using (label)"
    )
    rows = connection.sql(f"select coalesce(new, {GONE})::int, coalesce(renamed, false) from place order by old")
    new, renamed = (column.to_numpy() for column in rows.to_arrow_table().columns)
    return new, int(renamed.sum())


def _changed_triples(
    connection: duckdb.DuckDBPyConnection, old: KnowledgeGraph, new: KnowledgeGraph, new_ids: NDArray[np.int32]
) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Return the triples [3, E] that are gone, by old ids, and those that came, by new ids, in ranges of heads.

    Ids follow the byte order of labels in both graphs, so a range of new heads is a range of old heads: memory is flat.
    """
    connection.execute(
        "create temp table moved as select o.relation_id as old, n.relation_id as new "
        "from old_relation o left join new_relation n using (label)"
    )
    kept = np.flatnonzero(new_ids != GONE)
    num_edges = np.arange(0, int(new.edge_ptr[-1]), RANGE_EDGES)[1:]
    new_cuts = np.unique(np.searchsorted(new.edge_ptr[new.group_ptr], num_edges))
    old_cuts = np.append(kept, old.num_entities)[np.searchsorted(new_ids[kept], new_cuts)]
    old_ranges = pairwise([0, *old_cuts.tolist(), old.num_entities])
    new_ranges = pairwise([0, *new_cuts.tolist(), new.num_entities])
    found = []
    for (old_low, old_high), (new_low, new_high) in zip(old_ranges, new_ranges, strict=True):
        rows = connection.sql(
            "with o as (select t.*, h.new as new_head, r.new as new_relation, e.new as new_tail from old_triple t "
            "join place h on t.head = h.old join moved r on t.relation = r.old join place e on t.tail = e.old "
            f"where t.head >= {old_low} and t.head < {old_high}), n as (from new_triple where head >= {new_low} and "
            f"head < {new_high}) select o.head, o.relation, o.tail, n.head, n.relation, n.tail from o full join n "
            "on new_head = n.head and new_relation = n.relation and new_tail = n.tail "
            "where o.head is null or n.head is null"
        ).to_arrow_table()
        sides = [rows.select(places).drop_null() for places in ([0, 1, 2], [3, 4, 5])]
        gone, came = (np.stack([column.to_numpy() for column in side.columns]) for side in sides)
        found.append((gone, came))
    return found


def name_coverage(folder: Path) -> float | None:
    """Return the percentage of entities with a name in the wanted language; None where no names were given.

    Literals are names themselves, and do not count.
    """
    facts = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
    kinds = facts.get("kinds") or {}
    num_nodes = sum(kinds.values()) - kinds.get("literal", 0)
    if num_nodes:
        return float(100 * kinds.get("entity", 0) / num_nodes)
    return float(100 * facts["num_named"] / facts["num_entities"]) if facts["num_named"] else None


def _per_relation(
    old: KnowledgeGraph, new: KnowledgeGraph, gone: NDArray[np.int32], came: NDArray[np.int32]
) -> dict[str, Change]:
    """Return the relations whose triples changed, most changed first; given are the changed triples' relations."""
    before, after = (Counter(triples_per_relation(graph.folder)) for graph in (old, new))
    num_gone, num_came = (
        Counter({graph.relation_labels[relation]: count for relation, count in enumerate(np.bincount(rows)) if count})
        for graph, rows in ((old, gone), (new, came))
    )
    changes = {
        label: Change(before[label], after[label], int(num_came[label]), int(num_gone[label]))
        for label in num_gone | num_came
    }
    return dict(sorted(changes.items(), key=lambda item: (-item[1].came - item[1].gone, item[0].encode())))


def triples_per_relation(folder: Path) -> dict[str, int]:
    """Return relation -> triples of a graph artifact."""
    table = pq.read_table(folder / "relations.parquet", columns=["label", "num_triples"])
    return dict(zip(table["label"].to_pylist(), table["num_triples"].to_pylist(), strict=True))


def _spread(graph: KnowledgeGraph, ends: Bools, hops: int) -> Bools:
    """Return which entities [N] lie within ``hops`` steps, in any direction, of those marked."""
    reached = ends.copy()
    reached[Expander(graph, hops=hops, cap=None).expand(np.flatnonzero(ends)).entity] = True
    return reached


# ------ Two builds.


@dataclass(frozen=True, slots=True)
class CoverageChange:
    """How reachability changed for one group of questions; see ``Coverage``."""

    hops: int | None
    split: str
    num_before: int  # questions
    num_after: int
    any_before: float  # percent of questions with an answer within reach
    any_after: float
    all_before: float
    all_after: float


@dataclass(frozen=True, slots=True)
class BuildDiff:
    """What differs between two builds; as JSON in changes.json."""

    graph: GraphDiff
    questions: Change  # by id
    num_reworded: int  # questions of both builds with another text, claim or verdict, other topics or answers
    num_moved: int  # questions of both builds that are in another split
    num_subgraphs_changed: int  # questions of both builds whose subgraph changed
    subgraphs_by: Literal["digest", "walk"]  # each question's own, or the triples within ``hops`` of its topics
    hops: int
    coverage: tuple[CoverageChange, ...]


def compare_builds(
    old: Mapping[str, Path], new: Mapping[str, Path], *, hops: int, memory_limit: str = "1GB"
) -> tuple[BuildDiff, pa.Table]:
    """Return the difference, and the questions that it concerns: question_id, change (new, gone, reworded, moved,
    subgraph).

    A build is a folder by stage: graph, questions, and subgraphs where each question has its own. Where they have none,
    the triples within ``hops`` of their topics count as one.
    """
    graphs = compare_graphs(open_graph(old["graph"]), open_graph(new["graph"]), memory_limit)
    before, after = ({one.id: one for one in read_questions(build["questions"])} for build in (old, new))
    kept = [id for id in after if id in before]

    def is_reworded(was: Question, now: Question) -> bool:
        claims = [[] if one.claim is None else [one.claim] for one in (was, now)]
        moved = [graphs.new_ids[list(ids)].tolist() for ids in (was.topics, was.answers, claims[0])]
        same_words = (was.text, was.verdict) == (now.text, now.verdict)
        return not same_words or moved != [list(now.topics), list(now.answers), claims[1]]

    digests = [_read_digests(build.get("subgraphs")) for build in (old, new)]
    if digests[0] is not None and digests[1] is not None:
        changed = [id for id in kept if digests[0].get(id) != digests[1].get(id)]
    else:
        near = graphs.near_change(hops)
        changed = [id for id in kept if near[0][list(before[id].topics)].any() or near[1][list(after[id].topics)].any()]
    concerned = {
        "gone": [id for id in before if id not in after],
        "new": [id for id in after if id not in before],
        "reworded": [id for id in kept if is_reworded(before[id], after[id])],
        "moved": [id for id in kept if before[id].split != after[id].split],
        "subgraph": changed,
    }
    diff = BuildDiff(
        graph=graphs.diff,
        questions=Change(len(before), len(after), len(concerned["new"]), len(concerned["gone"])),
        num_reworded=len(concerned["reworded"]),
        num_moved=len(concerned["moved"]),
        num_subgraphs_changed=len(changed),
        subgraphs_by="walk" if None in digests else "digest",
        hops=hops,
        coverage=_coverage(old["questions"], new["questions"]),
    )
    rows = [(id, change) for change, ids in concerned.items() for id in ids]
    return diff, texts_table(rows, ("question_id", "change"))


def _read_digests(folder: Path | None) -> dict[str, str] | None:
    if folder is None or DIGEST not in pq.read_schema(folder / BLOCKS_FILE).names:
        return None
    table = pq.read_table(folder / BLOCKS_FILE, columns=["question_id", DIGEST])
    return dict(zip(table["question_id"].to_pylist(), table[DIGEST].to_pylist(), strict=True))


def _coverage(old: Path, new: Path) -> tuple[CoverageChange, ...]:
    before, after = (
        {(row["hops"], row["split"]): row for row in json.loads((folder / "lint.json").read_text("utf-8"))["coverage"]}
        for folder in (old, new)
    )
    figures = ("num_questions", "any_gold", "all_golds")
    return tuple(
        CoverageChange(*group, *(row[group][figure] for figure in figures for row in (before, after)))
        for group in after
        if group in before
    )


# ------ The drift guard: which differences between two builds are larger than a scheduled run may pass on.


MAX_SHOWN = 20  # lines of a table


@dataclass(frozen=True, slots=True)
class Moved:
    """One figure that moved beyond its limit."""

    what: str  # "triples", "relation people.person.children", "answers within reach, test, 2 hops"
    before: float
    after: float
    change: float  # in percent, or in percentage points where the figure is a percentage itself
    limit: float  # in the same unit
    setting: str  # that sets the limit
    detail: str = ""  # "+120 -3"


def find_drift(diff: BuildDiff, limits: DriftSection, *, guard_graph: bool, guard_questions: bool) -> list[Moved]:
    """Return what moved beyond the limits.

    ``guard_graph`` False: triples, entities, relations and names do not count, as other settings made the graph;
    ``guard_questions`` False: nor do questions and coverage.
    """
    found: list[Moved] = []
    drops: list[Moved] = []

    def share(what: str, change: Change, setting: str) -> None:
        limit = getattr(limits, setting)
        if limit is not None and change.share > limit and change.came + change.gone >= limits.min_changed:
            percent, detail = 100 * change.share, f"+{change.came} -{change.gone}"
            found.append(Moved(what, change.before, change.after, percent, 100 * limit, setting, detail))

    def drop(what: str, before: float | None, after: float | None, setting: str) -> None:
        limit = getattr(limits, setting)
        if limit is not None and before is not None and after is not None and before - after > limit:
            drops.append(Moved(what, before, after, after - before, limit, setting))

    if guard_graph:
        graph = diff.graph
        share("triples", graph.triples, "max_triples_change")
        share("entities", graph.entities, "max_entities_change")
        for label, change in graph.per_relation.items():
            if change.before >= limits.relation_min_triples:
                share(f"relation {label}", change, "max_relation_change")
        named = "entities with a name, percent"
        drop(named, graph.named_before, graph.named_after or 0.0, "max_name_coverage_drop")
    if guard_questions:
        asked = diff.questions
        changed = Change(asked.before, asked.after, asked.came, asked.gone + diff.num_reworded)
        share("questions", changed, "max_questions_change")
        if limits.max_questions_moved is not None and diff.num_moved > limits.max_questions_moved:
            percent, detail = 100 * diff.num_moved / max(asked.before, 1), f"{diff.num_moved} moved"
            what, allowed = "questions in another split", limits.max_questions_moved
            found.append(Moved(what, asked.before, asked.after, percent, allowed, "max_questions_moved", detail))
        for row in diff.coverage:
            group = f"{row.split}{'' if row.hops is None else f', {row.hops} hops'}"
            what = f"questions with an answer within reach, {group}, percent"
            drop(what, row.any_before, row.any_after, "max_coverage_drop")
    return found + drops


def moved_table(moved: list[Moved]) -> str:
    """Return what moved as lines of text, one per figure."""
    lines = []
    for found in moved[:MAX_SHOWN]:
        before, after = (f"{one:.2f}" if isinstance(one, float) else str(one) for one in (found.before, found.after))
        detail = f" ({found.detail})" if found.detail else ""
        in_points = found.setting.endswith("_drop")
        size = f"{found.change:+.1f} points" if in_points else f"{found.change:.1f} percent changed"
        lines.append(f"  {found.what}: {before} -> {after}{detail}, {size}, {found.setting} allows {found.limit:g}")
    if len(moved) > MAX_SHOWN:
        lines.append(f"  and {len(moved) - MAX_SHOWN} more")
    return "\n".join(lines)
