"""A sweep's rows as a table: for a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from kgqa_core.sweeps.config import BASE, POINT
from kgqa_core.sweeps.figures import COSTS, short_label
from kgqa_core.sweeps.points import short_names, show_value
from kgqa_core.sweeps.rows import PointRow, Spread

WHOLE_FROM = 1000.0  # costs are shown without decimals from here on
NAMES = {BASE: "run", POINT: "point"}


def header(dimensions: Sequence[str], figures: Sequence[str]) -> list[str]:
    """Return the columns' names: the dimensions, how many explorers, the figures."""
    short = NAMES | short_names(name for name in dimensions if name not in NAMES)
    return [*(short[name] for name in dimensions), "n", *(short_label(name) for name in figures)]


def cells(rows: Sequence[PointRow], dimensions: Sequence[str], figures: Sequence[str]) -> list[list[str]]:
    """Return the rows' cells under ``header``; a figure that a row does not have is an empty cell."""
    return [
        [
            *(show_value(row.place[name]) for name in dimensions),
            str(row.count),
            *(show_spread(name, row.figures[name]) if name in row.figures else "" for name in figures),
        ]
        for row in rows
    ]


def show_spread(name: str, found: Spread) -> str:
    """Return a figure as text, ``96.65 ± 0.12`` where there are repetitions."""
    decimals = 0 if name in COSTS and abs(found.mean) >= WHOLE_FROM else 2
    if name.startswith("num_"):
        decimals = 0
    shown = f"{found.mean:,.{decimals}f}"
    return f"{shown} ± {found.deviation:,.{decimals}f}" if found.count > 1 and found.deviation else shown


def markdown(names: Sequence[str], lines: Sequence[Sequence[str]], num_dimensions: int) -> str:
    """Return a table, its first ``num_dimensions`` columns to the left, as Markdown."""
    ruler = ["---"] * num_dimensions + ["---:"] * (len(names) - num_dimensions)
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (names, ruler, *lines)
    )
