"""What differs between two builds of a run: its graph, its questions, and the questions whose subgraph changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from kgqa_core.config_base import DriftSection
from kgqa_core.graph.diff import Change, GraphDiff, compare_graphs
from kgqa_core.graph.input_files import texts_table
from kgqa_core.graph.kg import open_graph
from kgqa_core.graph.search_graph import BLOCKS_FILE
from kgqa_core.questions.build import read_questions
from kgqa_core.types import Question

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
    num_moved: int  # questions of both builds that are in another split
    num_subgraphs_changed: int  # questions of both builds whose subgraph changed
    subgraphs_by: Literal["digest", "walk"]  # each question's own, or the triples within ``hops`` of its topics
    hops: int
    coverage: tuple[CoverageChange, ...]


def compare_builds(old: Build, new: Build, *, hops: int) -> tuple[BuildDiff, pa.Table]:
    """Return the difference, and the questions that it concerns: question_id, change (new, gone, reworded, moved,
    subgraph).

    Where questions have no subgraph of their own, the triples within ``hops`` of their topics count as one.
    """
    graphs = compare_graphs(open_graph(old.graph), open_graph(new.graph))
    before, after = ({one.id: one for one in read_questions(build.questions)} for build in (old, new))
    kept = [id for id in after if id in before]

    def is_reworded(was: Question, now: Question) -> bool:
        moved = [graphs.new_ids[list(ids)].tolist() for ids in (was.topics, was.answers)]
        return was.text != now.text or moved != [list(now.topics), list(now.answers)]

    digests = [_read_digests(build.subgraphs) for build in (old, new)]
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
        coverage=_coverage(old.questions, new.questions),
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


def find_drift(
    diff: BuildDiff, limits: DriftSection, *, guard_graph: bool = True, guard_questions: bool = True
) -> list[Moved]:
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
