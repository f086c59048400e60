"""The table of planners: figures by hops, the mean over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEADER = ("hops", "planner", "n", "hit@1", "hit@3", "as good", "valid", "F1 of first plan")
FIGURES = ("hit@1", "hit@3", "as_good", "valid", "f1")

Scores = Mapping[str, Any]
"""What stage plans writes as scores.json: planner, seed, figures by hops."""


def mean_figures(scores: Sequence[Scores]) -> dict[str, dict[str, float]]:
    """Return hops -> figure -> mean over several seeds of one planner."""
    groups = [one["figures"] for one in scores]
    return {
        hops: {name: sum(group[hops][name] for group in groups) / len(groups) for name in groups[0][hops]}
        for hops in groups[0]
    }


def planner_cells(scores: Sequence[Scores]) -> list[tuple[str, ...]]:
    """Return the cells under ``HEADER``: one row per number of hops and planner, its seeds averaged."""
    by_planner: dict[str, list[Scores]] = {}
    for one in scores:
        by_planner.setdefault(one["planner"], []).append(one)
    means = {name: (mean_figures(own), len(own)) for name, own in by_planner.items()}
    scopes = list(dict.fromkeys(hops for figures, _ in means.values() for hops in figures))
    cells = []
    for hops in scopes:
        for name, (figures, num_seeds) in means.items():
            if hops in figures:
                shown = name if num_seeds == 1 else f"{name} (mean of {num_seeds} seeds)"
                cells.append((hops, shown, *_figures(figures[hops])))
    return cells


def _figures(figures: Mapping[str, float]) -> list[str]:
    return [f"{figures['n']:.0f}", *(f"{figures[name]:.2f}" if name in figures else "" for name in FIGURES)]


def render_planners(scores: Sequence[Scores]) -> str:
    """Return the table as Markdown; empty without scores."""
    if not scores:
        return ""
    rows = [HEADER, tuple("---" if place < 2 else "---:" for place in range(len(HEADER))), *planner_cells(scores)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n"
