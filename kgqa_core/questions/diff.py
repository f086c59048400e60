"""What differs between two builds of a run: its graph, its questions, and the questions whose subgraph changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kgqa_core.config import DriftSection
from kgqa_core.graph.diff import Bools, Change, GraphComparison, GraphDiff, compare_graphs
from kgqa_core.graph.kg import open_graph
from kgqa_core.graph.subgraphs import BLOCKS_FILE

DIGEST = "digest"  # column of BLOCKS_FILE: hash of a subgraph by labels


@dataclass(frozen=True, slots=True)
class Build:
    """The folders of what one build made."""

    graph: Path
    questions: Path
    subgraphs: Path | None = None  # where each question has its own


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
    num_reworded: int  # questions of both builds with another text, other topics or other answers
    num_subgraphs_changed: int  # questions of both builds whose subgraph changed
    subgraphs_by: Literal["digest", "walk"]  # each question's own, or the triples within ``hops`` of its topics
    hops: int
    coverage: tuple[CoverageChange, ...]

    @property
    def is_empty(self) -> bool:
        """Is it the same graph, and are they the same questions with the same coverage?"""
        counts = (self.questions.came, self.questions.gone, self.num_reworded, self.num_subgraphs_changed)
        moved = [row for row in self.coverage if row.any_before != row.any_after or row.all_before != row.all_after]
        return self.graph.is_empty and not any(counts) and not moved


def compare_builds(old: Build, new: Build, *, hops: int) -> tuple[BuildDiff, pa.Table]:
    """Compare two builds.

    Args:
        old: the earlier one.
        new: the later one.
        hops: of the neighbourhood that counts as a question's subgraph where it has none of its own.

    Returns:
        the difference, and the questions that it concerns: question_id, change (new, gone, reworded, subgraph).
    """
    graphs = compare_graphs(open_graph(old.graph), open_graph(new.graph))
    asked = [_read_questions(build.questions) for build in (old, new)]
    old_rows, new_rows = _same_id(*asked)
    reworded = _reworded(asked[0].take(old_rows), asked[1].take(new_rows), graphs)
    digests = [_read_digests(build.subgraphs) for build in (old, new)]
    if digests[0] is not None and digests[1] is not None:
        changed = _other_digest(asked[1]["id"].take(new_rows), digests[0], digests[1])
    else:
        near = graphs.near_change(hops)
        changed = _touches(asked[0].take(old_rows), near[0]) | _touches(asked[1].take(new_rows), near[1])
    num_kept = len(old_rows)
    diff = BuildDiff(
        graph=graphs.diff,
        questions=Change(len(asked[0]), len(asked[1]), len(asked[1]) - num_kept, len(asked[0]) - num_kept),
        num_reworded=int(reworded.sum()),
        num_subgraphs_changed=int(changed.sum()),
        subgraphs_by="walk" if digests[0] is None or digests[1] is None else "digest",
        hops=hops,
        coverage=_coverage(old.questions, new.questions),
    )
    kept = asked[1]["id"].take(new_rows)
    concerned = {
        "gone": _others(asked[0]["id"], old_rows),
        "new": _others(asked[1]["id"], new_rows),
        "reworded": kept.filter(pa.array(reworded)),
        "subgraph": kept.filter(pa.array(changed)),
    }
    return diff, _table(concerned)


def _read_questions(folder: Path) -> pa.Table:
    table = pq.read_table(folder / "questions.parquet", columns=["id", "text", "topics", "answers"])
    return table.combine_chunks()


def _same_id(old: pa.Table, new: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows [n] in both of the questions that both have, in the order of the new ones."""
    places = pc.index_in(new["id"], value_set=old["id"].combine_chunks()).combine_chunks()
    found = places.is_valid().to_numpy(zero_copy_only=False)
    return places.drop_null().to_numpy().astype(np.int64), np.flatnonzero(found)


def _reworded(old: pa.Table, new: pa.Table, graphs: GraphComparison) -> Bools:
    """Return which questions [n] have another text, other topics or other answers than before."""
    other: Bools = pc.not_equal(old["text"], new["text"]).to_numpy().astype(bool)
    for name in ("topics", "answers"):
        (entities, counts), (now, new_counts) = _lists(old, name), _lists(new, name)
        differ = counts != new_counts
        owner, new_owner = np.repeat(np.arange(len(counts)), counts), np.repeat(np.arange(len(counts)), new_counts)
        # Ids keep their order from build to build, so that equal lists are equal place by place.
        comparable, new_comparable = ~differ[owner], ~differ[new_owner]
        moved = graphs.new_ids[entities[comparable]] != now[new_comparable]
        differ[owner[comparable][moved]] = True
        other |= differ
    return other


def _touches(questions: pa.Table, near: Bools) -> Bools:
    """Return which questions [n] have a topic among the marked entities."""
    topics, counts = _lists(questions, "topics")
    found = np.zeros(len(counts), np.bool_)
    found[np.repeat(np.arange(len(counts)), counts)[near[topics]]] = True
    return found


def _lists(questions: pa.Table, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the values of a column of lists one after the other, and how many each list has."""
    column = questions[name].combine_chunks()
    counts = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    return pc.list_flatten(column).to_numpy().astype(np.int64), counts.astype(np.int64)


def _read_digests(folder: Path | None) -> pa.Table | None:
    """Return question_id and digest of each subgraph; None where there are none."""
    if folder is None or DIGEST not in pq.read_schema(folder / BLOCKS_FILE).names:
        return None
    return pq.read_table(folder / BLOCKS_FILE, columns=["question_id", DIGEST])


def _other_digest(ids: pa.ChunkedArray, old: pa.Table, new: pa.Table) -> Bools:
    """Return which questions [n] have another subgraph than before; one that has none has the digest null."""
    found = [
        table[DIGEST].take(pc.index_in(ids, value_set=table["question_id"].combine_chunks())).combine_chunks()
        for table in (old, new)
    ]
    equal = pc.fill_null(pc.equal(found[0], found[1]), False)
    both_none = pc.and_(pc.is_null(found[0]), pc.is_null(found[1]))
    same: Bools = pc.or_(equal, both_none).to_numpy(zero_copy_only=False).astype(bool)
    return ~same


def _coverage(old: Path, new: Path) -> tuple[CoverageChange, ...]:
    """Return the coverage of both builds, for the groups of questions that both have."""
    before, after = (
        {(row["hops"], row["split"]): row for row in json.loads((folder / "lint.json").read_text("utf-8"))["coverage"]}
        for folder in (old, new)
    )
    return tuple(
        CoverageChange(
            hops=row["hops"],
            split=row["split"],
            num_before=was["num_questions"],
            num_after=row["num_questions"],
            any_before=was["any_gold"],
            any_after=row["any_gold"],
            all_before=was["all_golds"],
            all_after=row["all_golds"],
        )
        for group, row in after.items()
        if (was := before.get(group))
    )


def _others(ids: pa.ChunkedArray, rows: NDArray[np.int64]) -> pa.ChunkedArray:
    keep = np.ones(len(ids), np.bool_)
    keep[rows] = False
    return ids.filter(pa.array(keep))


def _table(concerned: dict[str, pa.ChunkedArray]) -> pa.Table:
    ids = pa.chunked_array([chunk for column in concerned.values() for chunk in column.chunks], pa.string())
    changes = [change for change, column in concerned.items() for _ in range(len(column))]
    return pa.table({"question_id": ids, "change": pa.array(changes, pa.string())})


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


def find_drift(
    diff: BuildDiff, limits: DriftSection, *, guard_graph: bool = True, guard_questions: bool = True
) -> list[Moved]:
    """Return what moved beyond the limits.

    Args:
        diff: what differs.
        limits: what passes.
        guard_graph: whether triples, entities, relations and names count; not where other settings made the graph.
        guard_questions: whether questions and coverage count.
    """
    shares: list[tuple[str, Change, str]] = []  # what changed, and the setting that limits it
    drops: list[tuple[str, float | None, float | None, str]] = []  # a figure in percent before and after
    if guard_graph:
        graph = diff.graph
        shares += [
            ("triples", graph.triples, "max_triples_change"),
            ("entities", graph.entities, "max_entities_change"),
        ]
        shares += [
            (f"relation {label}", change, "max_relation_change")
            for label, change in graph.per_relation.items()
            if change.before >= limits.relation_min_triples
        ]
        named = graph.named_before, graph.named_after or 0.0
        drops.append(("entities with a name, percent", *named, "max_name_coverage_drop"))
    if guard_questions:
        asked = diff.questions
        changed = Change(asked.before, asked.after, asked.came, asked.gone + diff.num_reworded)
        shares.append(("questions", changed, "max_questions_change"))
        for row in diff.coverage:
            group = f"{row.split}{'' if row.hops is None else f', {row.hops} hops'}"
            what = f"questions with an answer within reach, {group}, percent"
            drops.append((what, row.any_before, row.any_after, "max_coverage_drop"))
    return [*_moved_shares(shares, limits), *_moved_drops(drops, limits)]


def _moved_shares(shares: Iterable[tuple[str, Change, str]], limits: DriftSection) -> Iterator[Moved]:
    for what, change, setting in shares:
        limit, least = getattr(limits, setting), limits.min_changed
        if limit is not None and change.share > limit and change.came + change.gone >= least:
            detail = f"+{change.came} -{change.gone}"
            yield Moved(what, change.before, change.after, 100 * change.share, 100 * limit, setting, detail)


def _moved_drops(drops: Iterable[tuple[str, float | None, float | None, str]], limits: DriftSection) -> Iterator[Moved]:
    for what, before, after, setting in drops:
        limit = getattr(limits, setting)
        if limit is not None and before is not None and after is not None and before - after > limit:
            yield Moved(what, before, after, after - before, limit, setting)


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
