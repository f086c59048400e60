"""What a build changed, as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer

NUM_RELATIONS = 10  # shown of those whose triples changed
Row = tuple[str, str, str, str, str]


def print_changes(changes: Mapping[str, Any]) -> None:
    """Print a BuildDiff; one line where nothing changed."""
    from flows.cli_output import print_table

    rows = list(change_rows(changes))
    if not rows:
        typer.echo("Nothing changed since the last build.")
        return
    print_table("Changes since the last build", ("of", "before", "now", "in", "out"), rows, figures_from=1)


def change_rows(changes: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row for everything that changed: what, how many before and now, how many came and went."""
    graph = changes["graph"]
    for name in ("triples", "entities", "relations"):
        yield from _set_row(name, graph[name])
    for name in ("new_relations", "gone_relations"):
        if labels := graph[name]:
            shown = ", ".join(labels[:NUM_RELATIONS]) + (", ..." if len(labels) > NUM_RELATIONS else "")
            yield (f"{name.replace('_', ' ')}: {shown}", "", "", *_in_or_out(name, len(labels)))
    moved = sorted(graph["per_relation"].items(), key=lambda item: (-item[1]["came"] - item[1]["gone"], item[0]))
    for label, change in moved[:NUM_RELATIONS]:
        yield from _set_row(f"triples of {label}", change)
    if len(moved) > NUM_RELATIONS:
        yield (f"triples of {len(moved) - NUM_RELATIONS} more relations", "", "", "", "")
    if graph["num_renamed"]:
        yield ("entities with another name", "", str(graph["num_renamed"]), "", "")
    yield from _percent_row("entities with a name, percent", graph["named_before"], graph["named_after"])
    yield from _set_row("questions", changes["questions"])
    if changes["num_reworded"]:
        yield ("questions reworded", "", str(changes["num_reworded"]), "", "")
    if changes["num_subgraphs_changed"]:
        where = "" if changes["subgraphs_by"] == "digest" else f" within {changes['hops']} hops"
        yield (f"questions whose subgraph changed{where}", "", str(changes["num_subgraphs_changed"]), "", "")
    for row in changes["coverage"]:
        group = row["split"] if row["hops"] is None else f"{row['split']}, {row['hops']} hops"
        yield from _percent_row(f"any answer within reach, {group}, percent", row["any_before"], row["any_after"])
        yield from _percent_row(f"all answers within reach, {group}, percent", row["all_before"], row["all_after"])


def _set_row(name: str, change: Mapping[str, int]) -> Iterator[Row]:
    if change["came"] or change["gone"]:
        yield (name, str(change["before"]), str(change["after"]), f"+{change['came']}", f"-{change['gone']}")


def _percent_row(name: str, before: float | None, after: float | None) -> Iterator[Row]:
    if before != after:
        yield (name, *("" if value is None else f"{value:.2f}" for value in (before, after)), "", "")


def _in_or_out(name: str, count: int) -> tuple[str, str]:
    return (f"+{count}", "") if name.startswith("new") else ("", f"-{count}")
