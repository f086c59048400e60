"""The drift guard: which differences between two builds are larger than a scheduled run may take over unseen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kgqa_core.graph.diff import Change
from kgqa_core.questions.diff import BuildDiff

MAX_SHOWN = 20  # lines of a table


@dataclass(frozen=True, slots=True)
class DriftLimits:
    """The largest differences that pass; None: not checked. Shares are of what the last build had."""

    max_triples_change: float | None = None  # triples that came or went
    max_entities_change: float | None = None
    max_relation_change: float | None = None  # triples of one relation that came or went
    relation_min_triples: int = 1  # relations that had fewer are not checked
    max_questions_change: float | None = None  # questions that came, went or were reworded
    max_coverage_drop: float | None = None  # percentage points, of any group of questions
    max_name_coverage_drop: float | None = None  # percentage points
    min_changed: int = 0  # a share passes where fewer triples, entities or questions changed than this


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
    diff: BuildDiff, limits: DriftLimits, *, guard_graph: bool = True, guard_questions: bool = True
) -> list[Moved]:
    """Return what moved beyond the limits.

    Args:
        diff: what differs.
        limits: what passes.
        guard_graph: whether triples, entities, relations and names count; not where other settings made the graph.
        guard_questions: whether questions and coverage count.
    """
    found = list(_moved_sets(diff, limits)) + list(_moved_names(diff, limits)) if guard_graph else []
    return found + list(_moved_questions(diff, limits)) if guard_questions else found


def _moved_sets(diff: BuildDiff, limits: DriftLimits) -> Iterator[Moved]:
    graph, least = diff.graph, limits.min_changed
    yield from _moved_share("triples", graph.triples, limits.max_triples_change, "max_triples_change", least)
    yield from _moved_share("entities", graph.entities, limits.max_entities_change, "max_entities_change", least)
    for label, change in graph.per_relation.items():
        if change.before >= limits.relation_min_triples:
            limit = limits.max_relation_change
            yield from _moved_share(f"relation {label}", change, limit, "max_relation_change", least)


def _moved_share(what: str, change: Change, limit: float | None, setting: str, least: int) -> Iterator[Moved]:
    if limit is not None and change.share > limit and change.came + change.gone >= least:
        detail = f"+{change.came} -{change.gone}"
        yield Moved(what, change.before, change.after, 100 * change.share, 100 * limit, setting, detail)


def _moved_names(diff: BuildDiff, limits: DriftLimits) -> Iterator[Moved]:
    before, after = diff.graph.named_before, diff.graph.named_after
    limit, setting = limits.max_name_coverage_drop, "max_name_coverage_drop"
    if limit is not None and before is not None and before - (after or 0.0) > limit:
        yield Moved("entities with a name, percent", before, after or 0.0, (after or 0.0) - before, limit, setting)


def _moved_questions(diff: BuildDiff, limits: DriftLimits) -> Iterator[Moved]:
    asked, least = diff.questions, limits.min_changed
    changed = Change(asked.before, asked.after, asked.came, asked.gone + diff.num_reworded)
    yield from _moved_share("questions", changed, limits.max_questions_change, "max_questions_change", least)
    limit, setting = limits.max_coverage_drop, "max_coverage_drop"
    for row in diff.coverage:
        drop = row.any_before - row.any_after
        if limit is not None and drop > limit:
            group = f"{row.split}{'' if row.hops is None else f', {row.hops} hops'}"
            what = f"questions with an answer within reach, {group}, percent"
            yield Moved(what, row.any_before, row.any_after, -drop, limit, setting)


def moved_table(moved: list[Moved]) -> str:
    """Return what moved as lines of text, one per figure."""
    lines = [
        f"  {found.what}: {_number(found.before)} -> {_number(found.after)}"
        f"{f' ({found.detail})' if found.detail else ''}, {_size(found)}, "
        f"{found.setting} allows {found.limit:g}"
        for found in moved[:MAX_SHOWN]
    ]
    if len(moved) > MAX_SHOWN:
        lines.append(f"  and {len(moved) - MAX_SHOWN} more")
    return "\n".join(lines)


def _size(found: Moved) -> str:
    if found.setting.endswith("_drop"):
        return f"{found.change:+.1f} points"
    return f"{found.change:.1f} percent changed"


def _number(value: float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
